"""The context of the tasks of this worker process."""

from functools import cache

from exo_celery import settings as configuration
from exo_celery.celery import app
from exo_celery.context import Context, open_context


@cache
def context() -> Context:
    """Return what every task works with."""
    return open_context(configuration.load(), app)
