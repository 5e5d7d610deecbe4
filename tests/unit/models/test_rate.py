"""A cap on bytes per second: turns follow each other, and a short delay is made up for."""

import pytest

from exo_celery.models.rate import LATE_SECONDS, Rate


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("exo_celery.models.rate.time.monotonic", lambda: now[0])
    return now


def test_turns_wait_for_those_before(clock: list[float]) -> None:
    rate = Rate(1000)
    waits = [rate.turn(500) for _ in range(4)]
    assert waits == pytest.approx([0.0, 0.5 - LATE_SECONDS, 1.0 - LATE_SECONDS, 1.5 - LATE_SECONDS])


def test_who_is_a_little_late_catches_up(clock: list[float]) -> None:
    rate = Rate(1000)
    rate.turn(1000)
    clock[0] += 1.0
    assert rate.turn(1000) == 0.0
    assert rate.turn(1000) == pytest.approx(1.0 - LATE_SECONDS), "no more than that is lost"


def test_a_long_silence_gives_no_leave_to_be_faster(clock: list[float]) -> None:
    rate = Rate(1000)
    clock[0] += 3600.0
    assert rate.turn(1000) == 0.0
    assert rate.turn(1000) >= 1.0 - LATE_SECONDS


def test_no_cap_never_waits() -> None:
    rate = Rate(0)
    assert [rate.turn(1 << 40) for _ in range(3)] == [0.0] * 3
    assert rate.piece(1 << 20) == 1 << 20
