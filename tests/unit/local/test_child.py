"""How soon a child comes back, and what is shown of its end."""

import signal
import sys
import time
from pathlib import Path

import pytest

from exo_celery.local.child import AT_ONCE, Child, Spec, pause_seconds, tail


def test_five_times_at_once_then_slower_but_never_never() -> None:
    assert [pause_seconds(restarts) for restarts in range(AT_ONCE)] == [0] * 5
    later = [pause_seconds(restarts) for restarts in range(AT_ONCE, 40)]
    assert later[0] >= 1
    assert later == sorted(later)
    assert later[-1] == 60


@pytest.fixture
def child(tmp_path: Path) -> Child:
    code = "import time; print('said', flush=True); time.sleep(60)"
    return Child(Spec("sleeper", (sys.executable, "-c", code), {}, tmp_path / "logs" / "sleeper.log"))


def test_a_child_that_ends_is_started_again(child: Child) -> None:
    first = child.pid
    assert not child.restart_if_due()
    child.process.kill()
    child.process.wait()
    assert child.restart_if_due()
    assert child.pid != first
    assert child.restarts == 1
    assert not child.restart_if_due()
    child.stop(time.monotonic())
    assert child.process.returncode == -signal.SIGKILL


def test_after_five_restarts_there_is_a_pause(child: Child) -> None:
    child.process.kill()
    child.process.wait()
    child.restarts = AT_ONCE
    assert not child.restart_if_due()
    assert child.ended_at is not None
    child.ended_at -= pause_seconds(AT_ONCE)
    assert child.restart_if_due()
    child.stop(time.monotonic())


def test_who_ran_long_has_earned_his_restarts_anew(child: Child) -> None:
    child.process.kill()
    child.process.wait()
    child.restarts = 30
    child.started_at -= 1000
    assert child.restart_if_due()
    assert child.restarts == 1
    child.stop(time.monotonic())


def test_tail_shows_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == ""
    log.write_text("\n".join(map(str, range(100))))
    assert tail(log, 3) == "97\n98\n99"
