"""What the engine measures of itself, and when it tells."""

import threading
import time

import pytest

from exo_celery.records.engine import BOUNDS_SECONDS, EngineFigures
from exo_celery.runner import meter as metering
from exo_celery.runner.meter import Ended, Load, Meter, Tally


def test_durations_are_counted_between_their_bounds() -> None:
    tally = Tally()
    for seconds in (0.01, 0.02, 0.02, 0.02, 1000.0):
        tally.add(seconds)
    measured = tally.durations
    assert measured.counts[:2] == (1, 3)
    assert measured.counts[-1] == 1
    assert len(measured.counts) == len(BOUNDS_SECONDS) + 1
    assert (measured.count, measured.sum_seconds) == (5, pytest.approx(1000.07))


def test_steps_and_requests_add_up() -> None:
    meter = Meter()
    meter.stepped(2, [])  # first tokens have none before them
    meter.stepped(3, [0.04, 0.04])
    meter.ended(Ended("stop", prompt_tokens=50, cached_tokens=40, queue_seconds=0.2, first_token_seconds=0.3))
    meter.ended(Ended("cancelled", prompt_tokens=70, cached_tokens=0, queue_seconds=None, first_token_seconds=None))
    figures = meter.figures(Load(running=1, waiting=4, lanes=1), tokens_per_second=12.34)
    assert (figures.steps, figures.rows) == (2, 5)
    assert (figures.inter_token_seconds.count, figures.inter_token_seconds.sum_seconds) == (2, pytest.approx(0.08))
    assert figures.requests == {"stop": 1, "cancelled": 1}
    assert (figures.prompt_tokens, figures.cached_tokens, figures.cache_hits) == (50, 40, 1)
    assert (figures.queue_seconds.count, figures.first_token_seconds.count) == (1, 1)
    assert (figures.running, figures.waiting, figures.lanes, figures.tokens_per_second) == (1, 4, 1, 12.3)


def test_it_tells_while_something_happens_and_once_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "REPORT_SECONDS", 0.05)
    meter, told = Meter(), list[EngineFigures]()
    load = [Load(running=1, waiting=0, lanes=1)]
    threading.Thread(target=metering.report, args=(meter, lambda: load[0], told.append), daemon=True).start()
    time.sleep(0.2)
    assert told == []
    meter.stepped(1, [])
    time.sleep(0.2)
    assert [one.rows for one in told] == [1]
    meter.stepped(1, [0.2])
    load[0] = Load(running=0, waiting=0, lanes=0)
    time.sleep(0.2)
    assert [(one.rows, one.running, one.tokens_per_second) for one in told[1:]] == [(2, 0, 0.0)]
