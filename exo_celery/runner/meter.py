"""What the engine measures of itself, and when it tells: while something happens, not while nothing does."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn

from exo_celery.records.engine import Durations, EngineFigures

REPORT_SECONDS: Final = 2.0


class Ended(NamedTuple):
    """A request that has ended. Seconds count from its arrival; None where it did not come so far."""

    reason: str
    prompt_tokens: int
    cached_tokens: int
    queue_seconds: float | None
    first_token_seconds: float | None


class Load(NamedTuple):
    """What is going on: requests in lanes and in line, and lanes in use."""

    running: int
    waiting: int
    lanes: int


class Meter:
    """Counts what lanes and requests tell; any thread may."""

    def __init__(self) -> None:
        self.changed = threading.Event()
        self._lock = threading.Lock()
        self._requests = Counter[str]()
        self._prompt_tokens = self._cached_tokens = self._cache_hits = 0
        self._steps = self._rows = 0
        self._queue = self._first_token = self._inter_token = Durations()

    @property
    def rows(self) -> int:
        """How many tokens have been computed."""
        return self._rows

    def stepped(self, rows: int, going_on: int, gap_seconds: float) -> None:
        """Count a step: a token each for so many rows; `going_on` of them had their last one `gap_seconds` before."""
        with self._lock:
            self._steps += 1
            self._rows += rows
            if going_on:
                self._inter_token = self._inter_token.plus(gap_seconds, going_on)
        self.changed.set()

    def ended(self, request: Ended) -> None:
        """Count a request that has ended."""
        with self._lock:
            self._requests[request.reason] += 1
            if request.queue_seconds is not None:
                self._prompt_tokens += request.prompt_tokens
                self._cached_tokens += request.cached_tokens
                self._cache_hits += request.cached_tokens > 0
                self._queue = self._queue.plus(request.queue_seconds)
            if request.first_token_seconds is not None:
                self._first_token = self._first_token.plus(request.first_token_seconds)
        self.changed.set()

    def figures(self, load: Load, tokens_per_second: float) -> EngineFigures:
        """Return all figures."""
        with self._lock:
            return EngineFigures(
                running=load.running,
                waiting=load.waiting,
                lanes=load.lanes,
                tokens_per_second=round(tokens_per_second, 1) if load.running else 0.0,
                requests=dict(self._requests),
                prompt_tokens=self._prompt_tokens,
                cached_tokens=self._cached_tokens,
                cache_hits=self._cache_hits,
                steps=self._steps,
                rows=self._rows,
                queue_seconds=self._queue,
                first_token_seconds=self._first_token,
                inter_token_seconds=self._inter_token,
            )


def report(meter: Meter, load: Callable[[], Load], tell: Callable[[EngineFigures], None]) -> NoReturn:
    """Tell the figures every two seconds while they change, and once after; sleep while they do not."""
    while True:
        meter.changed.wait()
        rows, since = meter.rows, time.monotonic()
        while meter.changed.is_set():
            time.sleep(REPORT_SECONDS)
            meter.changed.clear()
            now, computed = time.monotonic(), meter.rows
            tell(meter.figures(load(), (computed - rows) / (now - since)))
            rows, since = computed, now
