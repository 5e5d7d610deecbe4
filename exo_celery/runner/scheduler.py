"""What the ring does next: rank 0's decisions about rows and prefill. No MLX, no IO, no clock."""

from collections.abc import Sequence
from typing import Final

from exo_celery.runner.prefix import PrefixIndex
from exo_celery.runner.reply import Reply
from exo_celery.runner.step import Admission, Choice, Chunk, Keep, Step

# Prompt tokens per step while nobody waits for a next token, and at least while somebody does.
FULL_CHUNK: Final = 512
LEAST_CHUNK: Final = 32
# Prompts that are prefilled together have so many tokens: with more the first of them would wait for little gain.
COMPANY: Final = 160
# How long prefill may hold up running streams, and how many of their own steps where those are slower.
STALL_SECONDS: Final = 0.5
STALL_STEPS: Final = 4
# Weight of a measurement that is larger than those before.
SMOOTHING: Final = 0.1


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
        self._sampled: tuple[int, ...] = ()  # the rows that the latest step gives tokens to
        self._step_seconds = 0.0  # that any step takes, however few its tokens; 0 while unknown
        self._token_seconds = 0.0  # that each prompt token adds
        self._somebody_waits = False  # for a next token, while the latest step runs
        self._stalled_seconds = 0.0  # since they had their latest tokens

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
        self._somebody_waits = bool(self._live)
        if prefill is None:
            self._sampled = tuple(self._live)
            tokens = tuple(self._last_token[row] for row in self._live)
            return Step(keep=keep, drop=drop, admit=admit, forget=forget, tokens=tokens)
        self._sampled = prefill.rows if prefill.completes else ()
        for row in self._sampled:
            del self._remaining[row]
            self._live[row] = self._prefilling.pop(row)
        return Step(keep=keep, drop=drop, admit=admit, forget=forget, prefill=prefill)

    def take(self, choices: Sequence[Choice]) -> list[float]:
        """Hand out a step's tokens; rows that finish are dropped with the next step.

        Return the seconds since the token before, for each row that had one.
        """
        gaps = []
        for row, choice in zip(self._sampled, choices, strict=True):
            reply = self._live[row]
            self._last_token[row] = choice.token
            reply.take(choice)
            if reply.gap_seconds is not None:
                gaps.append(reply.gap_seconds)
            if reply.finished or reply.just_joined:
                self._keep[row] = reply.cached
            if reply.finished:
                self._forget(row)
        return gaps

    def note(self, step: Step, seconds: float) -> None:
        """Learn how long a step took: the size of the next chunks follows."""
        if step.prefill is None:
            self._stalled_seconds = 0.0
            self._step_seconds = smoothed(self._step_seconds, seconds if step.tokens else self._step_seconds)
            return
        self._stalled_seconds += seconds if self._somebody_waits else 0.0
        if step.prefill.completes and step.prefill.size >= LEAST_CHUNK:
            added = max(seconds - self._step_seconds, seconds / 4)
            self._token_seconds = smoothed(self._token_seconds, added / step.prefill.size)

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
            self._remaining[row] = len(reply.prompt) - reused
            admitted.append(
                Admission(row=row, tokens=reply.prompt, sampling=reply.sampling, entry=entry, reused=reused)
            )
            reply.start(reused)
        self._arrived.clear()
        return admitted

    def _next_chunk(self) -> Chunk | None:
        """Choose what to prefill, if it is time to: the first in line, with company where both are short.

        The line is ordered by priority, then by arrival: a chat does not wait for the long prompts of a batch.
        """
        budget = self._budget()
        if not self._remaining or not budget:
            return None
        first, *line = sorted(self._remaining, key=lambda row: self._prefilling[row].priority)
        if self._remaining[first] > budget:
            self._remaining[first] -= budget
            return Chunk(rows=(first,), count=budget)
        rows, longest = [first], self._remaining[first]
        for row in line:
            padded = max(longest, self._remaining[row])
            if padded * (len(rows) + 1) <= min(budget, COMPANY):
                rows.append(row)
                longest = padded
        return Chunk(rows=tuple(rows), count=longest, completes=True)

    def _budget(self) -> int:
        """Return how many tokens may be prefilled before live rows get their next tokens."""
        if not self._live:
            return FULL_CHUNK
        left_seconds = max(STALL_SECONDS, STALL_STEPS * self._step_seconds) - self._stalled_seconds
        spare_seconds = max(0.0, left_seconds - self._step_seconds)
        tokens = int(spare_seconds / self._token_seconds) if self._token_seconds else LEAST_CHUNK
        if self._stalled_seconds and (not spare_seconds or tokens < LEAST_CHUNK):
            return 0
        return max(LEAST_CHUNK, min(FULL_CHUNK, tokens))


def smoothed(known: float, measured: float) -> float:
    """Return what is known after one more measurement; disturbances only ever make one larger."""
    return known + SMOOTHING * (measured - known) if known and measured > known else measured
