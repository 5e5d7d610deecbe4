"""Celery's settings: what beat sends exists and cannot pile up, and a worker without flags is right."""

import pytest

from exo_celery.celery import app
from exo_celery.queues import CLUSTER


@pytest.mark.parametrize("entry", sorted(app.conf.beat_schedule))
def test_what_beat_sends_exists_and_expires(entry: str) -> None:
    tick = app.conf.beat_schedule[entry]
    app.loader.import_default_modules()
    assert tick["task"] in app.tasks
    assert tick["options"]["queue"] == CLUSTER
    assert tick["schedule"] < tick["options"]["expires"] <= tick["schedule"] + 60


def test_the_tick_comes_every_five_minutes() -> None:
    assert app.conf.beat_schedule["tick-downloads"]["schedule"] == 300


def test_a_worker_without_flags_is_right() -> None:
    assert app.conf.worker_pool == "exo_celery.pool:TaskPool"
    assert app.conf.worker_consumer == "exo_celery.consumer:Consumer"
    assert app.conf.broker_transport == "exo_celery.transport:Transport"
    assert app.conf.worker_disable_prefetch
    assert not app.conf.task_acks_late
    assert app.conf.accept_content == ["json"]
