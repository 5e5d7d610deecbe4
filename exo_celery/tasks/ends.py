"""Ends of jobs: told to the Celery task that is to follow, and to webhooks, each at least once."""

import logging
from functools import cache

from celery import Celery
from kombu.exceptions import OperationalError

from exo_celery import queues
from exo_celery.celery import app
from exo_celery.context import Context
from exo_celery.errors import NotFoundError
from exo_celery.node import trust, webhook
from exo_celery.records.job import Continuation, Job
from exo_celery.store import client, events, jobs, outbox
from exo_celery.store.outbox import THEN, WEBHOOK, Entry
from exo_celery.tasks.here import context

log = logging.getLogger(__name__)
AT_ONCE = 200  # entries of one run; what is left is the next tick's


@app.task(name="exo.tell_ends")
def tell_ends() -> None:
    """Send what is due of continuations and webhooks; each entry is one worker's for the length of a lease."""
    cluster = context()
    for _ in range(AT_ONCE):
        if not (tell(cluster, THEN) | tell(cluster, WEBHOOK)):
            return


def tell(cluster: Context, what: str) -> bool:
    """Tell one end that is due; False when none is."""
    entry = outbox.take(cluster.redis, cluster.ns, what)
    if entry is None:
        return False
    try:
        job = jobs.get(cluster.redis, cluster.ns, entry.job_id)
    except NotFoundError:
        outbox.done(cluster.redis, cluster.ns, entry)  # its retention is over
        return True
    if what == THEN:
        send_continuation(cluster, entry, job)
    else:
        send_webhook(cluster, entry, job)
    return True


def send_continuation(cluster: Context, entry: Entry, job: Job) -> None:
    """Send the task that follows a job; when their broker is away, the entry is due again after its lease."""
    if job.then:
        try:
            follow(cluster, job.id, job.then)
        except OperationalError as error:
            log.warning("the continuation of %s was not sent, trying again: %s", job.id, error)
            return
    outbox.done(cluster.redis, cluster.ns, entry, then_sent_at=client.now(cluster.redis))


def follow(cluster: Context, job_id: str, then: Continuation) -> None:
    """Send a continuation with the job's id as its first argument, or as it is where it is immutable."""
    there = their_app(cluster.settings.then_broker_url or cluster.settings.redis_url, then.prefix)
    signature = there.signature(then.signature)
    args = () if signature.immutable else (job_id,)
    options = {"task_id": f"{job_id}.then", "queue": signature.options.get("queue") or then.queue}
    signature.apply_async(args=args, retry=False, ignore_result=True, **options)


@cache
def their_app(broker_url: str, prefix: str) -> Celery:
    """Return an app that sends to somebody else's broker as a stock Celery does."""
    there = Celery("exo_celery.then", set_as_current=False)
    there.conf.update(queues.plain_broker_settings(broker_url, prefix))
    return there


def send_webhook(cluster: Context, entry: Entry, job: Job) -> None:
    """Post a job's end; what is refused is tried again after a growing pause, and given up after about a day."""
    now = client.now(cluster.redis)
    key = trust.purpose_key(trust.cluster_secret(cluster.settings, cluster.redis), "webhook")
    problem = webhook.post(job, key, int(now))
    tries = job.webhook_tries + 1
    if problem is None:
        outbox.done(cluster.redis, cluster.ns, entry, webhook_sent_at=now, webhook_tries=tries, webhook_error="")
    elif tries >= len(webhook.PAUSES):
        outbox.done(cluster.redis, cluster.ns, entry, webhook_tries=tries, webhook_error=problem)
        text = f"the webhook of {job.id} was given up after {tries} tries: {problem}"
        events.add(cluster.redis, cluster.ns, "webhook", text, job=job.id)
    else:
        pause = webhook.PAUSES[tries]
        outbox.later(cluster.redis, cluster.ns, entry, pause, webhook_tries=tries, webhook_error=problem)
