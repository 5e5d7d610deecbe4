"""What the engine measures of itself, and when it tells: while something happens, not while nothing does."""

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, NoReturn

from exo_celery.records.engine import BOUNDS_SECONDS, Durations, EngineFigures

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


class Tally:
    """Durations, counted between their bounds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self._sum += seconds

    @property
    def durations(self) -> Durations:
        """What was counted so far."""
        return Durations(counts=tuple(self._counts), sum_seconds=self._sum)


class Meter:
    """Counts what lanes and requests tell; any thread may."""

    def __init__(self) -> None:
        self.changed = threading.Event()
        self.busy = threading.Event()  # set by each step
        self._lock = threading.Lock()
        self._requests = Counter[str]()
        self._prompt_tokens = self._cached_tokens = self._cache_hits = 0
        self._steps = self._rows = 0
        self._queue, self._first_token, self._inter_token = Tally(), Tally(), Tally()

    @property
    def rows(self) -> int:
        """How many tokens have been computed."""
        return self._rows

    def stepped(self, rows: int, gaps_seconds: Iterable[float]) -> None:
        """Count a step that gave so many tokens, and the time since the one before for each that had one."""
        with self._lock:
            self._steps += 1
            self._rows += rows
            for seconds in gaps_seconds:
                self._inter_token.add(seconds)
        self.changed.set()
        self.busy.set()

    def ended(self, request: Ended) -> None:
        """Count a request that has ended."""
        with self._lock:
            self._requests[request.reason] += 1
            if request.queue_seconds is not None:
                self._prompt_tokens += request.prompt_tokens
                self._cached_tokens += request.cached_tokens
                self._cache_hits += request.cached_tokens > 0
                self._queue.add(request.queue_seconds)
            if request.first_token_seconds is not None:
                self._first_token.add(request.first_token_seconds)
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
                queue_seconds=self._queue.durations,
                first_token_seconds=self._first_token.durations,
                inter_token_seconds=self._inter_token.durations,
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
