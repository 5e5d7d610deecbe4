"""What everybody works with who asks something of a cluster: its settings, its records, an app to send tasks with."""

from dataclasses import dataclass

from celery import Celery

from exo_celery import queues
from exo_celery.settings import Settings
from exo_celery.store.client import Redis, connect


@dataclass(frozen=True)
class Context:
    """One cluster, as any caller holds it."""

    settings: Settings
    redis: Redis
    app: Celery

    @property
    def ns(self) -> str:
        """The namespace of all keys."""
        return self.settings.namespace

    def hint(self, task: str, *args: object, queue: str = queues.CLUSTER) -> None:
        """Hasten what a tick would bring anyway."""
        queues.hint(self.app, task, *args, queue=queue)


def open_context(settings: Settings, app: Celery | None = None) -> Context:
    """Return a cluster's context; without an app of one's own, one that only sends."""
    return Context(settings, connect(settings), app or queues.sender(settings))
