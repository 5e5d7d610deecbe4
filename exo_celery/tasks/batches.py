"""Batches: bring each one on, at the tick and whenever one of its jobs has ended."""

import uuid

from exo_celery.celery import app
from exo_celery.node import hosted
from exo_celery.pump.step import step
from exo_celery.records.batch import MAX_WINDOW_SECONDS
from exo_celery.store import batches, client, files, keys, ticks
from exo_celery.tasks.here import context
from worker_config.celeryconfig import PUMP_SECONDS


@app.task(name="exo.pump_batch")
def pump_batch(batch_id: str) -> None:
    """Bring a batch on; while another task does, it is told to look again."""
    cluster = context()
    who, more = uuid.uuid4().hex, True
    while more and batches.hold(cluster.redis, cluster.ns, batch_id, who):
        try:
            step(cluster, batch_id)
        finally:
            more = batches.release(cluster.redis, cluster.ns, batch_id, who)


@app.task(name="exo.pump_batches")
def pump_batches() -> None:
    """Have every batch brought on that has not ended, and drop what has expired."""
    cluster = context()
    if not ticks.take(cluster.redis, cluster.ns, "pump_batches", PUMP_SECONDS, hosted.agent().node_id):
        return
    for batch in batches.active(cluster.redis, cluster.ns):
        cluster.hint("exo.pump_batch", batch.id)
    now = client.now(cluster.redis)
    files.drop_expired(cluster.redis, cluster.ns, now)
    batches.forget_expired(cluster.redis, cluster.ns, now - keys.BATCH_TTL - MAX_WINDOW_SECONDS)
