"""A cap on bytes per second, shared by all threads that move bytes under it."""

import threading
import time


class Rate:
    """Hands out time: whoever moved bytes waits until they are due. 0 bytes per second is no cap."""

    def __init__(self, bytes_per_second: int) -> None:
        self.bytes_per_second = bytes_per_second
        self._guard = threading.Lock()
        self._due = 0.0

    def wait_seconds(self, moved_bytes: int) -> float:
        """Count bytes that were moved, and return how long to wait before the next."""
        if not self.bytes_per_second:
            return 0.0
        with self._guard:
            now = time.monotonic()
            self._due = max(self._due, now) + moved_bytes / self.bytes_per_second
            return self._due - now
