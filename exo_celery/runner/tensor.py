"""A rank's place in a tensor ring: each rank computes its slice of every layer of every step, and all add up.

Steps travel from rank to rank as in a pipeline, and their order is the lockstep. Rank 0 samples, and tells the tokens
with its next step. There is one lane: all ranks compute at once anyway.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import mlx.core as mx

from exo_celery.errors import LinkError
from exo_celery.runner.executor import Executor, at_ends
from exo_celery.runner.group import Group
from exo_celery.runner.load import Shard
from exo_celery.runner.protocol import ShardSpec
from exo_celery.runner.ring import Patience
from exo_celery.runner.sampling import Sampler, sample
from exo_celery.runner.step import Choice, Step

CHECK_SECONDS: Final = 1.0


class SliceExecutor(Executor):
    """One rank's state of a tensor ring. Only the one that samples computes the head, where the head is not cut too."""

    def __init__(self, shard: Shard, computing: threading.Lock, *, samples: bool) -> None:
        super().__init__(shard, before=None, after=None, computing=computing)
        self._samples = samples
        self._head_is_cut = shard.slices is not None and shard.slices.head_is_cut

    def _forward(
        self, tokens: mx.array, cache: list[Any], samplers: Sequence[Sampler | None], ends: mx.array | None = None
    ) -> list[Choice]:
        """Run tokens (batch, length) through the slices; sample on rank 0, for the samplers given."""
        with self._computing:
            boundary = self._shard.boundary
            boundary.ends = ends if samplers else None
            logits = self._shard.model(tokens, cache=cache)
            hidden, boundary.outgoing = boundary.outgoing, None
            last = logits if self._head_is_cut else hidden
            # Each rank evaluates the same: a sum that one of them leaves out keeps the others waiting for ever.
            try:
                mx.eval([last] if samplers else [], [entry.state for entry in cache])
            except RuntimeError as error:
                raise LinkError(f"adding up with the other ranks failed: {error}") from error
            return sample(at_ends(logits, ends), samplers) if samplers and self._samples else []


class Watchdog:
    """Ends a step that takes too long: a sum waits for ever for a rank that stands still."""

    def __init__(self, on_late: Callable[[LinkError], None]) -> None:
        self._on_late = on_late
        self._until: float | None = None
        self._busy = threading.Event()
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    @contextmanager
    def within(self, seconds: float | None) -> Iterator[None]:
        """Give the body so many seconds; None is for ever."""
        self._until = None if seconds is None else time.monotonic() + seconds
        self._busy.set()
        yield
        self._busy.clear()
        self._until = None

    def _run(self) -> None:
        while self._busy.wait():
            until = self._until
            if until is not None and time.monotonic() > until:
                self._on_late(LinkError("the ring has not answered in time: a rank stands still"))
            time.sleep(CHECK_SECONDS)


class TensorRing:
    """The tensor ring as one rank sees it. Any LinkError means that the whole group ends."""

    def __init__(
        self,
        spec: ShardSpec,
        shard: Shard,
        group: Group,
        computing: threading.Lock,
        on_broken: Callable[[LinkError], None],
    ) -> None:
        """Take a place. `on_broken` is called from a thread when a rank stands still."""
        if shard.slices is not None:
            shard.slices.join(group.sums)
        self._spec, self._group = spec, group
        self.executor = SliceExecutor(shard, computing, samples=spec.is_first)
        self._patience = Patience()
        self._watchdog = Watchdog(on_broken)

    def lead(self, step: Step) -> tuple[Choice, ...]:
        """Run a step on all ranks; return what was sampled. Rank 0 only.

        Raises:
            LinkError: a rank is gone.
        """
        started = time.monotonic()
        with self._watchdog.within(self._patience.seconds(step.size)):
            self._group.after.send(step.model_dump_json(exclude_defaults=True).encode())
            sampled = self.executor.run(step)
        self._patience.note(step.size, time.monotonic() - started)
        return sampled.choices if sampled else ()

    def follow(self) -> None:
        """Wait for the next step, pass it on, run it. All ranks but the first.

        Raises:
            LinkError: a neighbour is gone.
        """
        frame = self._group.before.next(None)
        if not self._spec.is_last:
            self._group.after.send(frame)
        self.executor.run(Step.model_validate_json(frame))
