"""The cores of a rank that computes alone: lanes, and parts of a prefill, compute on them side by side.

MLX computes all that is no product of matrices on one thread. Two halves of the work, each with half of the threads,
therefore take less time than both together with all of them. In a pipeline lanes take turns on each rank instead.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import mlx.core as mx

from exo_celery.runner import blas
from exo_celery.runner.protocol import ShardSpec

T = TypeVar("T")
# Each part keeps another thread busy with handing out its operations.
MOST_PARTS: Final = 4
LANES_ALONE: Final = 2


class Cores:
    """So many threads, shared by the lanes in use; with one everything runs where it is called."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = self._each = threads
        self._pool = ThreadPoolExecutor(MOST_PARTS, thread_name_prefix="part")
        self._own = threading.local()

    @property
    def lanes(self) -> int:
        """How many lanes can compute side by side."""
        return min(self._threads, LANES_ALONE)

    def share(self, lanes: int) -> None:
        """Divide the threads among so many lanes."""
        if self._threads > 1:
            self._each = self._threads // max(1, lanes)
            blas.use_threads(self._each)

    def split(self, items: Sequence[T]) -> list[Sequence[T]]:
        """Return items in as many runs as can compute side by side in one lane, none of them empty."""
        size = -(-len(items) // min(self._each, MOST_PARTS))
        return [items[at : at + size] for at in range(0, len(items), size)]

    def run(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """Run jobs at once; each computes on a stream of its own."""
        if len(jobs) == 1:
            return [jobs[0]()]
        blas.use_threads(max(1, self._each // len(jobs)))
        try:
            return list(self._pool.map(self._on_own_stream, jobs))
        finally:
            blas.use_threads(self._each)

    def _on_own_stream(self, job: Callable[[], T]) -> T:
        if not hasattr(self._own, "stream"):
            self._own.stream = mx.new_stream(mx.default_device())
        with mx.stream(self._own.stream):
            return job()


ONE_CORE: Final = Cores()


def cores_of(spec: ShardSpec) -> Cores:
    """Return what a rank may compute on side by side; a GPU and a ring compute one thing at a time."""
    alone = spec.world == 1 and mx.default_device() == mx.cpu
    return Cores(spec.threads or blas.cores()) if alone else ONE_CORE
