"""The Celery app: `celery -A exo_celery worker | beat | inspect | control`."""

from celery import Celery

from exo_celery import control
from exo_celery.node import steps

__all__ = ["app", "control"]  # importing control makes `inspect` and `control` know our commands

app = Celery("exo_celery")
app.config_from_object("worker_config.celeryconfig")
steps.install(app)
