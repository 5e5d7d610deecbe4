"""Where our threads hook into a Celery worker: a step that lives as long as the worker itself.

Consumer steps are restarted on each reconnect to Redis; worker steps are not.
"""

import logging
import time
from typing import Any, ClassVar

import click
from celery import Celery, bootsteps, signals
from kombu.entity import Queue

from exo_celery import queues
from exo_celery import settings as configuration
from exo_celery.errors import ExoError
from exo_celery.node import hosted, machine
from exo_celery.settings import Settings
from exo_celery.store.client import TRANSIENT, connect

log = logging.getLogger(__name__)
EX_CONFIG = 78
RETRY_SECONDS = 2.0
SETTINGS = configuration.load()


class WorkerStep(bootsteps.StartStopStep):  # type: ignore[misc]  # celery has no types
    """Make this worker a node worker, or a serving worker where a node worker started it."""

    requires: ClassVar = {"celery.worker.components:Timer"}

    def create(self, worker: Any) -> Any:
        """Build what the worker hosts and make it known to the tasks of this process, once Redis is there."""
        # Imported here, since `celery inspect` and beat import us too and need neither.
        wait_for_redis(SETTINGS)
        if SETTINGS.serve_instance:
            from exo_celery.node.serving import Serving  # noqa: PLC0415

            hosted.SERVINGS[:] = [Serving(SETTINGS, worker.app)]
            return hosted.serving()
        from exo_celery.node.agent import Agent  # noqa: PLC0415

        hosted.AGENTS[:] = [Agent(SETTINGS, worker.app, worker.hostname)]
        return hosted.agent()

    def start(self, worker: Any) -> None:
        """Start the threads; a worker that may not live ends with exit code 78."""
        try:
            self.obj.start()
        except ExoError as error:
            click.echo(f"{worker.hostname}: {error}", err=True)
            raise SystemExit(EX_CONFIG) from error
        if hosted.SERVINGS:
            # The engine may have fewer slots than we have threads; a message is taken only for a free slot.
            worker.max_concurrency = hosted.serving().slots

    def stop(self, worker: Any) -> None:
        """End the threads and what they look after."""
        self.obj.stop()


def wait_for_redis(settings: Settings) -> None:
    """Wait as long as it takes, and say so: after a power cut all machines start at once."""
    with connect(settings, retries=0) as redis:
        while True:
            try:
                redis.ping()
            except TRANSIENT as error:
                log.warning("Redis does not answer, trying again (is EXO_REDIS_URL right?): %s", error)
                time.sleep(RETRY_SECONDS)
            else:
                return


def install(app: Celery) -> None:
    """Make every worker of this app ours, and of no other: the `celery` command imports us for everybody's apps."""
    app.steps["worker"].add(WorkerStep)

    def ours(sender: str, instance: Any, conf: Any, options: dict[str, Any], **_: Any) -> None:
        if instance.app is app:
            name_and_queues(sender, instance, conf, options)

    signals.celeryd_init.connect(ours, weak=False)
    signals.worker_ready.connect(boot_report, weak=False)
    signals.worker_shutting_down.connect(hand_back, weak=False)


def name_and_queues(sender: str, instance: Any, conf: Any, options: dict[str, Any]) -> None:
    """Give a worker that was started without flags its name and its queues."""
    if SETTINGS.serve_instance:
        return
    node = configuration.node_id(SETTINGS)
    if sender.startswith("celery@"):
        instance.hostname = f"{node}@{machine.hostname()}"
    if not options.get("queues"):
        conf.task_queues = [Queue(queues.CLUSTER), Queue(queues.node_queue(node))]


def boot_report(**_: Any) -> None:
    """Write the download hashes once the worker takes tasks."""
    for agent in hosted.AGENTS:
        agent.boot_report()


def hand_back(**_: Any) -> None:
    """Let a serving worker that is told to end hand its jobs back instead of waiting for them."""
    for serving in hosted.SERVINGS:
        serving.stop()
