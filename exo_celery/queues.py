"""Queue names, and sending a task by its name: what lower rooms need of Celery, and no more.

Nothing here imports a task. `sender()` is an app that only publishes; it is never the current app, so it can live in
somebody else's process.
"""

import logging
from typing import Any, Final

from celery import Celery
from kombu.exceptions import OperationalError

from exo_celery.settings import Settings

log = logging.getLogger(__name__)

CLUSTER: Final = "cluster"
# Priorities on Redis: 0 is taken first.
INTERACTIVE, JOB, BATCH = 0, 5, 9
HINT_SECONDS: Final = 60  # a hint that waited this long is stale
PUBLISHED: Final = "exo_published"  # message header: Redis time at which a job's message was published


def node_queue(node: str) -> str:
    """Return the queue that only this node's worker takes from."""
    return f"node.{node}"


def model_queue(model: str) -> str:
    """Return the queue of a model: the serving workers of its ready instances take from it."""
    return f"model.{model}"


def broker_settings(settings: Settings) -> dict[str, Any]:
    """Return the Celery settings that each of our apps needs to meet the others on Redis.

    Reasons and measurements: ARCHITECTURE.md, "Celery on Redis".
    """
    return {
        "broker_url": settings.redis_url,
        # A CELERY_BROKER_URL in the environment beats broker_url, but not these two: records and messages
        # must never go to two servers.
        "broker_read_url": settings.redis_url,
        "broker_write_url": settings.redis_url,
        "broker_transport": "exo_celery.transport:Transport",
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_transport_options": {
            "global_keyprefix": f"{settings.namespace}:celery:",
            "visibility_timeout": 3600,
            "retry_on_timeout": False,
            "socket_timeout": 30,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 10,
            "priority_steps": list(range(10)),
            "sep": ":",
            "queue_order_strategy": "priority",
        },
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_ignore_result": True,
        "task_send_sent_event": True,  # the only event that names a task's queue
        "task_create_missing_queues": True,
    }


def plain_broker_settings(url: str, prefix: str) -> dict[str, Any]:
    """Return the settings of an app that sends to a broker of somebody else's, as a stock Celery would."""
    return {
        "broker_url": url,
        "broker_read_url": url,
        "broker_write_url": url,
        "broker_transport_options": {"socket_connect_timeout": 5} | ({"global_keyprefix": prefix} if prefix else {}),
        "task_serializer": "json",
        "task_ignore_result": True,
    }


def sender(settings: Settings) -> Celery:
    """Return an app that can only send: for the web front, the CLI and programs of other people."""
    app = Celery("exo_celery.sender", set_as_current=False)
    app.conf.update(broker_settings(settings))
    return app


def send(
    app: Celery,
    task: str,
    *args: Any,
    queue: str,
    priority: int = INTERACTIVE,
    expires: float | None = None,
    headers: dict[str, Any] | None = None,
) -> None:
    """Send a task by its name and return at once; its result is a record, never Celery's.

    Raises:
        kombu.exceptions.OperationalError: Redis cannot be reached. Whoever keeps a record may leave it to the reaper.
    """
    app.send_task(
        task,
        args=args,
        queue=queue,
        priority=priority,
        expires=expires,
        headers=headers,
        ignore_result=True,
        retry=False,
        argsrepr="(…)",
    )


def hint(app: Celery, task: str, *args: Any, queue: str) -> None:
    """Send a task that only hastens what a tick would bring anyway; an outage of Redis is no error."""
    try:
        send(app, task, *args, queue=queue, expires=HINT_SECONDS)
    except OperationalError as error:
        log.warning("%s was not sent, the next tick will do: %s", task, error)
