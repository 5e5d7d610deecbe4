"""Memory that nothing holds goes back to the system once nothing is computed: MLX and malloc keep it for the next step.

While steps follow each other that is right; an idle runner would keep many times what it needs.
"""

import ctypes
import sys
import threading
import time
from typing import Final, NoReturn

import mlx.core as mx

IDLE_SECONDS: Final = 5.0


def give_back() -> None:
    """Give back what MLX keeps for reuse, and what malloc does; other libraries than glibc do that by themselves."""
    mx.clear_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def give_back_when_idle(busy: threading.Event) -> NoReturn:
    """Give memory back some seconds after the last of each run of steps; every step sets `busy`. Sleeps in between."""
    while True:
        busy.wait()
        while busy.is_set():
            busy.clear()
            time.sleep(IDLE_SECONDS)
        give_back()
