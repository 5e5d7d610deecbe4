"""A Celery app with our settings and three small tasks, for test_storm.py. What is done is told in a file."""

import os
import time
from pathlib import Path

from celery import Celery

app = Celery("storm")
app.config_from_object("worker_config.celeryconfig")
app.conf.update(imports=(), beat_schedule={}, worker_concurrency=8)
if os.environ.get("STORM_QUIET"):  # sending an event wakes the loop too, which a slow refill could hide behind
    app.conf.worker_send_task_events = False
if os.environ.get("STORM_STOCK"):  # what ours is compared with
    app.conf.update(worker_pool="threads", worker_consumer="celery.worker.consumer:Consumer")
DONE = Path(os.environ["STORM_DONE"])


def tell(word: str) -> None:
    """Append a line to the file of what is done; a short append is atomic."""
    with DONE.open("a") as file:
        file.write(f"{word} {time.monotonic()}\n")


@app.task(name="storm.trivial")
def trivial() -> None:
    """Do next to nothing."""
    tell("trivial")


@app.task(name="storm.short")
def short(word: str) -> None:
    """Hold a slot for a moment."""
    time.sleep(0.025)
    tell(word)


@app.task(name="storm.hold")
def hold() -> None:
    """Hold a slot while Redis is killed."""
    tell("begun")
    time.sleep(0.5)
    tell("held")
