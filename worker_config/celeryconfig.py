"""Celery's settings of every node worker, serving worker and beat, read when the app is configured.

Reasons and measurements: ARCHITECTURE.md, "Celery on Redis".
"""

from typing import Any, Final

from exo_celery.queues import CLUSTER, broker_settings
from exo_celery.settings import load

SETTINGS: Final = load()
REAP_SECONDS: Final = 3.0
WATCH_SECONDS: Final = 5.0
PUMP_SECONDS: Final = 2.0
CLOCK_SLACK_SECONDS: Final = 30.0  # clocks of nodes may differ by that much without a tick being thrown away

# Celery reads this module's names; these are shared with programs that only send.
globals().update(broker_settings(SETTINGS))

imports = ("exo_celery.tasks",)
task_default_queue = CLUSTER

worker_pool = "exo_celery.pool:TaskPool"
worker_consumer = "exo_celery.consumer:Consumer"
worker_concurrency = 16
# Take a message only when a slot is free; our pool wakes the loop for it.
worker_prefetch_multiplier = 1
worker_disable_prefetch = True
task_acks_late = False
worker_cancel_long_running_tasks_on_connection_loss = False
worker_send_task_events = True


def every(seconds: float, task: str) -> dict[str, Any]:
    """Return one entry of the schedule; a tick that nobody takes expires, so that none pile up."""
    options = {"queue": CLUSTER, "expires": seconds + CLOCK_SLACK_SECONDS}
    return {"task": task, "schedule": seconds, "options": options}


# Several beats are safe: each tick is guarded by `SET tick:<name>:<bucket> NX EX`.
beat_schedule = {
    "tick-downloads": every(SETTINGS.report_seconds, "exo.tick_downloads"),
    "reap-jobs": every(REAP_SECONDS, "exo.reap_jobs"),
    "tell-ends": every(REAP_SECONDS, "exo.tell_ends"),
    "pump-batches": every(PUMP_SECONDS, "exo.pump_batches"),
    "watch-nodes": every(WATCH_SECONDS, "exo.watch_nodes"),
}
