"""A way to stop work that waits: an event that also calls whoever must be woken."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from exo_celery.errors import DownloadCancelledError


class Stop(threading.Event):
    """An event with callbacks: what blocks in a socket is not woken by a flag alone."""

    def __init__(self) -> None:
        super().__init__()
        self._guard = threading.Lock()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._numbers = itertools.count()

    def set(self) -> None:
        """Set the event and call everybody who asked for it, once."""
        super().set()
        with self._guard:
            due, self._callbacks = list(self._callbacks.values()), {}
        for callback in due:
            callback()

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Have the callback called if the event is set inside this block (or was before)."""
        key = next(self._numbers)
        with self._guard:
            self._callbacks[key] = callback
        if self.is_set():
            callback()
        try:
            yield
        finally:
            with self._guard:
                self._callbacks.pop(key, None)

    def check(self) -> None:
        """Raise DownloadCancelledError once the event is set."""
        if self.is_set():
            raise DownloadCancelledError("the download was cancelled; its bytes are kept")
