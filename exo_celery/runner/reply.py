"""One request on its way: from tokens to the events its caller hears."""

import time
from collections.abc import Callable
from typing import Literal, Protocol

from exo_celery.records.job import Usage
from exo_celery.records.logprobs import Candidate, TokenLogprobs
from exo_celery.records.tools import ToolCall
from exo_celery.runner.calls import PlainReader, Reader, Said
from exo_celery.runner.meter import Ended
from exo_celery.runner.protocol import Delta, Event, Finished, Started
from exo_celery.runner.step import Choice, Sampling
from exo_celery.runner.stops import StopScanner

FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]


class Detokenizer(Protocol):
    """What tokens are turned to text with: mlx-lm's streaming detokenizers."""

    @property
    def last_segment(self) -> str:
        """The text that has become certain since it was last asked for."""

    def add_token(self, token: int) -> None:
        """Take a token."""

    def finalize(self) -> None:
        """Let everything be certain."""


class Speller(Protocol):
    """What turns tokens to text: a model's tokenizer."""

    def detokenizer(self) -> Detokenizer:
        """Return a fresh detokenizer."""

    def spell(self, token: int) -> str:
        """Return the text of a single token."""


class Reply:
    """What a request has said so far. `emit` hears its events, `on_finish` that it ended.

    `max_tokens` includes the context's limit.
    """

    def __init__(
        self,
        request_id: str,
        prompt: tuple[int, ...],
        sampling: Sampling,
        *,
        max_tokens: int,
        stops: tuple[str, ...],
        end_tokens: frozenset[int],
        speller: Speller,
        emit: Callable[[Event], None],
        on_finish: Callable[["Reply"], None],
        reader: Reader | None = None,
        priority: int = 0,
    ) -> None:
        self.id = request_id
        self.prompt = prompt
        self.sampling = sampling
        self.priority = priority
        self.finished = False
        self.gap_seconds: float | None = None  # between the latest two tokens
        self._max_tokens = max_tokens
        self._end_tokens = end_tokens
        self._speller = speller
        self._detokenizer = speller.detokenizer()
        self._scanner = StopScanner(stops)
        self._reader: Reader = reader or PlainReader()
        self._emit = emit
        self._on_finish = on_finish
        self._pieces: list[str] = []
        self._calls: list[ToolCall] = []
        self._likely: list[TokenLogprobs] = []
        self._chosen: list[int] = []  # with the end token, if it came
        self._count = 0
        self._reason = ""
        self._cached_tokens = 0
        self._arrived_at = time.monotonic()
        self._started_at = self._first_at = self._last_at = 0.0

    @property
    def most_tokens(self) -> int:
        """How many positions of cache it may come to need."""
        return len(self.prompt) + self._max_tokens

    @property
    def cached(self) -> tuple[int, ...]:
        """The tokens that its row's cache holds after its first step: all but the last chosen one."""
        return self.prompt + tuple(self._chosen[:-1])

    @property
    def just_joined(self) -> bool:
        """Say whether it has taken its first token, and no other."""
        return len(self._chosen) == 1

    @property
    def ended(self) -> Ended:
        """How it ended, and when it came how far."""
        queue, first = (at - self._arrived_at if at else None for at in (self._started_at, self._first_at))
        return Ended(self._reason, len(self.prompt), self._cached_tokens, queue, first)

    def start(self, cached_tokens: int) -> None:
        """Tell the caller that the request was admitted, and how much of its prompt was known already."""
        self._started_at, self._cached_tokens = time.monotonic(), cached_tokens
        self._emit(Started(id=self.id, prompt_tokens=len(self.prompt), cached_tokens=cached_tokens))

    def take(self, choice: Choice) -> None:
        """Take the next token, hand it out, and finish when it was the last."""
        now = time.monotonic()
        self.gap_seconds = now - self._last_at if self._first_at else None
        self._last_at = now
        self._first_at = self._first_at or now
        self._chosen.append(choice.token)
        if choice.token in self._end_tokens:
            self.finish("stop")
            return
        self._count += 1
        self._detokenizer.add_token(choice.token)
        if self._say(self._detokenizer.last_segment, choice) or self._reader.full:
            self.finish("stop", flush=False)
        elif self._count >= self._max_tokens:
            self.finish("length")

    def finish(self, reason: FinishReason, *, flush: bool = True) -> None:
        """Say what was held back and end the request."""
        if flush:
            self._detokenizer.finalize()
            if not self._say(self._detokenizer.last_segment) and self._scanner.held:
                self._say_certain(self._scanner.held)
        self._hand_out(self._reader.finish())
        if self._calls and reason == "stop":
            reason = "tool_calls"
        self.finished, self._reason = True, reason
        said = {"text": "".join(self._pieces), "tool_calls": tuple(self._calls), "logprobs": tuple(self._likely)}
        self._emit(Finished(id=self.id, finish_reason=reason, usage=self._usage(), **said))
        self._on_finish(self)

    def _say(self, text: str, choice: Choice | None = None) -> bool:
        """Emit what is certain of the text; say whether a stop string was met."""
        self._scanner, certain, stopped = self._scanner.feed(text)
        self._say_certain(certain, choice)
        return stopped

    def _say_certain(self, text: str, choice: Choice | None = None) -> None:
        self._hand_out(self._reader.feed(text), choice)

    def _hand_out(self, said: list[Said], choice: Choice | None = None) -> None:
        """Emit text and calls, the token with the first of them, or alone."""
        tokens = () if choice is None else (choice.token,)
        logprobs = self._logprobs(choice)
        self._likely += logprobs
        for part in said or [""] * len(tokens):
            text, calls = (part, ()) if isinstance(part, str) else ("", part)
            self._pieces.append(text)
            self._calls.extend(calls)
            self._emit(Delta(id=self.id, text=text, token_ids=tokens, logprobs=logprobs, tool_calls=calls))
            tokens, logprobs = (), ()

    def _logprobs(self, choice: Choice | None) -> tuple[TokenLogprobs, ...]:
        if choice is None or choice.logprob is None:
            return ()
        top = tuple(
            Candidate(token_id=token, token=self._speller.spell(token), logprob=logprob)
            for token, logprob in choice.top
        )
        spelled = self._speller.spell(choice.token)
        return (TokenLogprobs(token_id=choice.token, token=spelled, logprob=choice.logprob, top=top),)

    def _usage(self) -> Usage:
        seconds = self._last_at - self._first_at
        return Usage(
            prompt_tokens=len(self.prompt),
            completion_tokens=self._count,
            total_tokens=len(self.prompt) + self._count,
            tokens_per_second=round((self._count - 1) / seconds, 2) if seconds > 0 else 0.0,
        )
