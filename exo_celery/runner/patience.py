"""A time limit for foreign Python code that runs in one of our threads."""

import contextlib
import ctypes
import threading
from collections.abc import Iterator


class OutOfTimeError(Exception):
    """Raised inside the code that ran out of time."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupt the body once it has run for so long. It works between bytecodes: a long call into C is not cut.

    Raises:
        OutOfTimeError: the body took longer.
    """
    thread = threading.get_ident()
    lock = threading.Lock()
    done = False

    def interrupt() -> None:
        with lock:
            if not done:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(OutOfTimeError))

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            done = True
        timer.cancel()
