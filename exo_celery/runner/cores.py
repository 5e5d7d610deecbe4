"""The cores of a rank that computes alone: parts of a prefill run on them side by side.

MLX computes all that is no product of matrices on one thread. Two halves of a chunk, each with half of the threads,
therefore take far less time than both together with all of them. In a pipeline the lanes do that instead.
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


class Cores:
    """So many threads; with one everything runs where it is called."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self.parts = min(threads, MOST_PARTS)
        self._pool = ThreadPoolExecutor(self.parts, thread_name_prefix="part")
        self._own = threading.local()

    def split(self, items: Sequence[T]) -> list[Sequence[T]]:
        """Return items in as many runs as there are parts, none of them empty."""
        size = -(-len(items) // self.parts)
        return [items[at : at + size] for at in range(0, len(items), size)]

    def run(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """Run jobs at once; each computes on a stream of its own."""
        if len(jobs) == 1:
            return [jobs[0]()]
        blas.use_threads(self._threads // len(jobs))
        try:
            return list(self._pool.map(self._on_own_stream, jobs))
        finally:
            blas.use_threads(self._threads)

    def _on_own_stream(self, job: Callable[[], T]) -> T:
        if not hasattr(self._own, "stream"):
            self._own.stream = mx.new_stream(mx.default_device())
        with mx.stream(self._own.stream):
            return job()


ONE_CORE: Final = Cores()


def cores_of(spec: ShardSpec) -> Cores:
    """Return what a rank may use for parts of a prefill; a GPU and a ring compute one thing at a time."""
    alone = spec.world == 1 and mx.default_device() == mx.cpu
    return Cores(spec.threads or blas.cores()) if alone else ONE_CORE
