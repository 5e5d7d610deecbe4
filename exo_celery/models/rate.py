"""A cap on bytes per second, shared by all threads that move bytes under it."""

import threading
import time
from typing import Final

SMALLEST_PIECE_BYTES: Final = 1 << 16
LATE_SECONDS: Final = 0.1  # a turn that comes later loses its time; one that does not may catch up


class Rate:
    """Hands out turns: whoever is to move bytes waits until those before them are paid for. 0 is no cap."""

    def __init__(self, bytes_per_second: int) -> None:
        self.bytes_per_second = bytes_per_second
        self._guard = threading.Lock()
        self._free_at = 0.0

    def turn(self, count_bytes: int) -> float:
        """Take a turn for so many bytes, and return the seconds to wait for it."""
        if not self.bytes_per_second:
            return 0.0
        with self._guard:
            now = time.monotonic()
            begin = max(self._free_at, now - LATE_SECONDS)
            self._free_at = begin + count_bytes / self.bytes_per_second
            return max(0.0, begin - now)

    def piece(self, most_bytes: int) -> int:
        """Return how many bytes to move in one turn, so that turns come several times a second."""
        if not self.bytes_per_second:
            return most_bytes
        return min(most_bytes, max(SMALLEST_PIECE_BYTES, self.bytes_per_second // 4))
