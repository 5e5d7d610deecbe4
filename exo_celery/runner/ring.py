"""A rank's place in the ring: links to its neighbours, and the lockstep over them, lane by lane."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from exo_celery.errors import LinkError, RunnerError
from exo_celery.runner.cores import Cores
from exo_celery.runner.executor import Executor
from exo_celery.runner.links import Hello, Link, Listener, connect
from exo_celery.runner.load import Shard
from exo_celery.runner.protocol import ShardSpec
from exo_celery.runner.step import Choice, Sampled, Step

# How long rank 0 waits for a step: so many times what the slowest step took per token, and a base for stutters.
PATIENCE_FACTOR: Final = 20
PATIENCE_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Neighbours:
    """The links of one lane to the rank before and the rank after; a ring of one has none."""

    before: Link | None = None
    after: Link | None = None


def listen(spec: ShardSpec, key: bytes, lanes: int) -> Listener | None:
    """Open the port at which the previous rank connects, once for each lane; a ring of one needs none."""
    if spec.world == 1:
        return None
    previous = (spec.rank - 1) % spec.world
    return Listener(spec.host, key, [hello(spec, previous, spec.rank, lane) for lane in range(lanes)])


def link_up(
    spec: ShardSpec, key: bytes, listener: Listener | None, peers: Sequence[str], lanes: int
) -> list[Neighbours]:
    """Link up with both neighbours, once for each lane.

    Raises:
        LinkError: the next rank cannot be reached, or does not know the key.
    """
    if listener is None:
        return [Neighbours()] * lanes
    following = (spec.rank + 1) % spec.world
    after = [connect(peers[following], key, hello(spec, spec.rank, following, lane)) for lane in range(lanes)]
    return [Neighbours(*pair) for pair in zip(listener.links(), after, strict=True)]


def hello(spec: ShardSpec, from_rank: int, to_rank: int, lane: int) -> Hello:
    """Name a link of this forming of the ring."""
    return Hello(spec.instance, spec.epoch, from_rank, to_rank, lane)


class Incoming:
    """What the rank before sends, read by a thread of its own: so a broken ring is noticed whatever else goes on."""

    def __init__(self, link: Link, on_broken: Callable[[LinkError], None]) -> None:
        self._link = link
        self._on_broken = on_broken
        self._frames: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="incoming", daemon=True).start()

    def next(self, patience_seconds: float | None) -> bytes:
        """Wait for the next frame; None is for ever.

        Raises:
            LinkError: none came in time.
        """
        try:
            return bytes(self._frames.get(timeout=patience_seconds))
        except queue.Empty:
            raise LinkError(f"the ring has not answered for {patience_seconds:.0f} s") from None

    def _read(self) -> None:
        try:
            while True:
                self._frames.put(self._link.receive())
        except LinkError as error:
            self._on_broken(error)


class Patience:
    """How long a step may take, from those before it."""

    def __init__(self) -> None:
        self._seconds_per_token = 0.0

    def seconds(self, tokens: int) -> float | None:
        """Return how long a step of so many tokens may take; the first one, in warm-up, is watched by the parent."""
        if not self._seconds_per_token:
            return None
        return PATIENCE_SECONDS + PATIENCE_FACTOR * self._seconds_per_token * tokens

    def note(self, tokens: int, seconds: float) -> None:
        """Remember how long a step took."""
        self._seconds_per_token = max(self._seconds_per_token, seconds / tokens)


class Ring:
    """One lane of the ring as one rank sees it. Any LinkError means that the whole group ends."""

    def __init__(
        self,
        spec: ShardSpec,
        shard: Shard,
        neighbours: Neighbours,
        computing: AbstractContextManager[Any],
        cores: Cores,
        on_broken: Callable[[LinkError], None],
    ) -> None:
        """Take a place. `on_broken` is called from a thread when the ring breaks in rank 0's sleep."""
        self._spec = spec
        self._before, self._after = neighbours.before, neighbours.after
        # Hidden states flow from first to last; from last to first only tokens do.
        self.executor = Executor(
            shard,
            before=None if spec.is_first else self._before,
            after=None if spec.is_last else self._after,
            computing=computing,
            cores=cores,
        )
        self._answers = Incoming(self._before, on_broken) if self._before is not None and spec.is_first else None
        self._patience = Patience()

    def lead(self, step: Step) -> tuple[Choice, ...]:
        """Run a step on all ranks; return what was sampled. Rank 0 only.

        Raises:
            LinkError: a rank is gone, or took far longer than any step before.
        """
        started = time.monotonic()
        patience = self._patience.seconds(step.size)
        if self._after is not None:
            self._after.patience_seconds = patience
            self._after.send(step.model_dump_json(exclude_defaults=True).encode())
        sampled = self.executor.run(step)
        if self._answers is not None and step.samples:
            sampled = Sampled.model_validate_json(self._answers.next(patience))
        self._patience.note(step.size, time.monotonic() - started)
        return sampled.choices if sampled else ()

    def follow(self) -> None:
        """Wait for the next step, pass it on, run it. All ranks but the first.

        Raises:
            LinkError: a neighbour is gone.
        """
        if self._before is None or self._after is None:
            raise RunnerError("a ring of one has nobody to follow")
        frame = self._before.receive()
        if not self._spec.is_last:
            self._after.send(frame)
        sampled = self.executor.run(Step.model_validate_json(bytes(frame)))
        if sampled is not None:
            self._after.send(sampled.model_dump_json(exclude_defaults=True).encode())
