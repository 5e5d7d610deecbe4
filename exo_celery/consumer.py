"""The consumer of our workers: a plain `celery -A exo_celery worker`, without any flag, is right.

Gossip and mingle have command line flags but no settings, so they are switched off here: mingle costs a
second at boot, gossip makes every worker read every other's events, and neither is of use, because our
records say what happened. Set by `worker_consumer = "exo_celery.consumer:Consumer"`.
"""

from typing import Any

import click
from celery.worker.consumer import Consumer as CeleryConsumer

from exo_celery.pool import TaskPool

EX_CONFIG = 78


class Consumer(CeleryConsumer):  # type: ignore[misc]  # celery has no types
    """Celery's consumer without gossip and mingle, on our pool only."""

    def __init__(self, *args: Any, pool: Any = None, **kwargs: Any) -> None:
        if not isinstance(pool, TaskPool):
            refuse(pool)
        kwargs |= {"without_gossip": True, "without_mingle": True}
        super().__init__(*args, pool=pool, **kwargs)


def refuse(pool: object) -> None:
    """End the worker (exit 78): another pool refills slowly, forks threads, or cannot answer when busy."""
    found = f"{type(pool).__module__}:{type(pool).__name__}"
    click.echo(
        f"exo_celery needs its own pool exo_celery.pool:TaskPool, but this worker was started with {found}: "
        "leave out -P/--pool",
        err=True,
    )
    raise SystemExit(EX_CONFIG)
