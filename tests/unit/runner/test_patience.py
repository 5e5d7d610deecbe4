import threading
import time

import pytest

from exo_celery.runner.patience import OutOfTimeError, time_limit


def spin(limit_seconds: float) -> None:
    with time_limit(limit_seconds):
        while True:
            pass


def test_a_loop_without_end_is_cut() -> None:
    started = time.monotonic()
    with pytest.raises(OutOfTimeError):
        spin(0.1)
    assert time.monotonic() - started < 5


def test_what_ends_in_time_is_left_alone() -> None:
    before = threading.active_count()
    for _ in range(50):
        with time_limit(30):
            pass
    deadline = time.monotonic() + 5
    while threading.active_count() > before:
        assert time.monotonic() < deadline, "a watch went on after its body had ended"
        time.sleep(0.01)


def test_other_threads_go_on() -> None:
    counted: list[int] = []
    other = threading.Thread(target=lambda: counted.append(sum(range(10**6))))
    other.start()
    with pytest.raises(OutOfTimeError):
        spin(0.05)
    other.join()
    assert counted == [sum(range(10**6))]
