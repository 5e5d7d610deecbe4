"""The cluster as a whole: which nodes it has, whether it works, what happened."""

from typing import Any

from exo_celery import settings as configuration
from exo_celery.context import Context, open_context
from exo_celery.records.node import NodeView
from exo_celery.settings import Settings
from exo_celery.store import client, events
from exo_celery.store import nodes as node_store
from exo_celery.store.client import RedisError

Cluster = Context


def open_cluster(settings: Settings | None = None) -> Cluster:
    """Return the cluster that the settings (else the environment) name."""
    return open_context(settings or configuration.load())


def nodes(cluster: Cluster) -> list[NodeView]:
    """Return all nodes that ever registered, by id."""
    return node_store.every(cluster.redis, cluster.ns)


def clock(cluster: Cluster) -> float:
    """Return Redis time in seconds: what the times of all records are told in."""
    return client.now(cluster.redis)


def readiness(cluster: Cluster) -> tuple[bool, list[str]]:
    """Tell whether work is taken and done: Redis answers and a node lives; else the reasons."""
    try:
        alive = node_store.live_boots(cluster.redis, cluster.ns)
    except RedisError as error:
        return False, [f"Redis does not answer: {error}"]
    return (True, []) if alive else (False, ["no node is alive: start one with `celery -A exo_celery worker`"])


def latest_events(cluster: Cluster, count: int = 50) -> list[dict[str, Any]]:
    """Return the newest events first: `id`, `at`, `kind`, `text`, and of what they tell."""
    return events.latest(cluster.redis, cluster.ns, count)
