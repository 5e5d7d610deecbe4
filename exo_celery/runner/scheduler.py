"""What the ring does next: rank 0's decisions about rows and prefill. No MLX, no IO, no clock."""

from collections.abc import Sequence
from typing import Final

from exo_celery.runner.prefix import PrefixIndex
from exo_celery.runner.reply import Reply
from exo_celery.runner.step import Admission, Choice, Chunk, Keep, Step

# Prompt tokens per step while nobody waits for a next token, and at least while somebody does.
FULL_CHUNK: Final = 512
LEAST_CHUNK: Final = 32
# How long a chunk of prefill may hold up running streams.
STALL_SECONDS: Final = 0.25
# Weight of the newest measurement in the running mean.
SMOOTHING: Final = 0.3


class Scheduler:
    """The rows of a lane. Requests arrive, are prefilled, live, and are dropped in the step after they finished."""

    def __init__(self, prefixes: PrefixIndex) -> None:
        self._prefixes = prefixes
        self._next_row = 0
        self._arrived: list[Reply] = []
        self._prefilling: dict[int, Reply] = {}
        self._remaining: dict[int, int] = {}
        self._live: dict[int, Reply] = {}
        self._last_token: dict[int, int] = {}
        self._drop: list[int] = []
        self._keep: dict[int, tuple[int, ...]] = {}
        self._prefill_seconds = 0.0  # per prompt token; 0 while unknown

    @property
    def idle(self) -> bool:
        """Say whether no step is needed."""
        return not (self._arrived or self._prefilling or self._live or self._drop)

    def submit(self, reply: Reply) -> None:
        """Take a request into the next step."""
        self._arrived.append(reply)

    def cancel(self, reply: Reply) -> None:
        """Finish a request now; its row is gone in the next step. One that has finished is left alone."""
        if reply.finished:
            return
        reply.finish("cancelled")
        if reply in self._arrived:
            self._arrived.remove(reply)
        for row in [row for row, other in (self._prefilling | self._live).items() if other is reply]:
            self._forget(row)

    def next_step(self) -> Step:
        """Decide the next step."""
        keep, forget = self._keepings()
        drop, self._drop = tuple(self._drop), []
        admit = tuple(self._admissions())
        prefill = self._next_chunk()
        tokens = tuple(self._last_token[row] for row in self._live)
        for row in [row for row in self._prefilling if self._remaining[row] == 0]:
            del self._remaining[row]
            self._live[row] = self._prefilling.pop(row)
        return Step(keep=keep, drop=drop, admit=admit, forget=forget, prefill=prefill, tokens=tokens)

    def take(self, rows: Sequence[int], choices: Sequence[Choice]) -> None:
        """Hand out a step's tokens; rows that finish are dropped with the next step."""
        self._live = {row: self._live[row] for row in rows}
        for row, choice in zip(rows, choices, strict=True):
            reply = self._live[row]
            self._last_token[row] = choice.token
            reply.take(choice)
            if reply.finished or reply.just_joined:
                self._keep[row] = reply.cached
            if reply.finished:
                self._forget(row)

    def note_prefill(self, tokens: int, seconds: float) -> None:
        """Learn how long prefill takes: the size of the next chunks follows."""
        measured = seconds / tokens
        known = self._prefill_seconds or measured
        self._prefill_seconds = known + SMOOTHING * (measured - known)

    def _forget(self, row: int) -> None:
        for rows in (self._prefilling, self._remaining, self._live, self._last_token):
            rows.pop(row, None)
        self._drop.append(row)

    def _keepings(self) -> tuple[tuple[Keep, ...], tuple[int, ...]]:
        """Keep the caches of rows that have just joined or are about to go; say what is forgotten for them."""
        keep: list[Keep] = []
        forget: list[int] = []
        for row, tokens in self._keep.items():
            if (added := self._prefixes.add(tokens)) is not None:
                keep.append(Keep(row=row, entry=added[0], count=len(tokens)))
                forget += added[1]
        self._keep.clear()
        return tuple(keep), tuple(forget)

    def _admissions(self) -> list[Admission]:
        """Give each arrival a row."""
        admitted = []
        for reply in self._arrived:
            row, self._next_row = self._next_row, self._next_row + 1
            entry, reused = self._prefixes.find(reply.prompt[:-1]) or (None, 0)
            self._prefilling[row] = reply
            self._remaining[row] = len(reply.prompt) - 1 - reused  # the first decode step takes the last
            admitted.append(
                Admission(row=row, tokens=reply.prompt, sampling=reply.sampling, entry=entry, reused=reused)
            )
            reply.start(reused)
        self._arrived.clear()
        return admitted

    def _next_chunk(self) -> Chunk | None:
        """Choose what to prefill: the first in line, with company where all fit into the budget together."""
        line = [row for row, remaining in self._remaining.items() if remaining]
        if not line:
            return None
        budget = self._budget()
        first = line[0]
        if self._remaining[first] > budget:
            self._remaining[first] -= budget
            return Chunk(rows=(first,), count=budget)
        rows, longest = [first], self._remaining[first]
        for row in line[1:]:
            padded = max(longest, self._remaining[row])
            if padded * (len(rows) + 1) <= budget:
                rows.append(row)
                longest = padded
        for row in rows:
            self._remaining[row] = 0
        return Chunk(rows=tuple(rows), count=longest)

    def _budget(self) -> int:
        if not self._live:
            return FULL_CHUNK
        if not self._prefill_seconds:
            return LEAST_CHUNK
        return max(LEAST_CHUNK, min(FULL_CHUNK, int(STALL_SECONDS / self._prefill_seconds)))
