"""Instances without work: unloaded after their keep-alive, or when a model that work waits for needs their memory."""

from exo_celery import plan
from exo_celery.context import Context
from exo_celery.placement import room, wording
from exo_celery.placement.question import Question
from exo_celery.placement.room import Held
from exo_celery.records.instance import Instance
from exo_celery.store import client, instances
from exo_celery.tasks import facts


def unload_idle(cluster: Context) -> None:
    """Let the instances go that have had no work for as long as they are kept."""
    now = client.now(cluster.redis)
    for one in facts.idle(cluster):
        unloads_at = plan.unloads_at(one)
        if unloads_at is not None and now >= unloads_at:
            keep_alive = seconds(one.request.keep_alive or 0)
            drain(cluster, one, f"{one.id} is unloaded: no work for its keep-alive of {keep_alive}")


def make_room(cluster: Context, model: str, question: Question) -> str:
    """Let idle instances go so that a model fits, and say what it waits for; '' where that would not do."""
    chosen = to_unload(cluster, question)
    if chosen is None:
        return ""
    now = client.now(cluster.redis)
    for one in chosen:
        idle_for = seconds(now - plan.idle_since(one))
        drain(cluster, one, f"{one.id} makes room for {model}, which work waits for: it was idle for {idle_for}")
    gone = [one.instance for one in facts.leaving(cluster)]
    return f"waits for the memory of {wording.names(gone)}, idle and being unloaded"


def to_unload(cluster: Context, question: Question) -> list[Instance] | None:
    """Return the idle instances to unload so that the question has an answer; None where even all would not do."""
    idle = {one.id: one for one in facts.may_make_room(cluster)}
    held: list[Held] = [facts.held(one) for one in idle.values()]
    chosen = room.to_unload(question, facts.leaving(cluster), held)
    return None if chosen is None else [idle[one.instance] for one in chosen]


def drain(cluster: Context, instance: Instance, note: str) -> None:
    """Let an instance go, unless it was used since it was read."""
    if instances.drain(cluster.redis, cluster.ns, instance, note):
        cluster.hint("exo.reconcile_instance", instance.id)


def seconds(span: float) -> str:
    """Write a span of time."""
    return f"{span:.0f} s"
