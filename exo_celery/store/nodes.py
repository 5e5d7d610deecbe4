"""Nodes: records without an end, lives with a TTL."""

from dataclasses import dataclass
from typing import Final

from redis import Redis

from exo_celery.records.node import Node, NodeView
from exo_celery.store import keys
from exo_celery.store.hashes import decode, encode
from exo_celery.store.scripts import run

# What a placement depends on.
PLACED_BY: Final = (
    "id",
    "ram_available_bytes",
    "backends",
    "rdma_enabled",
    "labels",
    "links_at",
    "load_bps",
    "seen_at",
)


@dataclass(frozen=True)
class Life:
    """Who holds a node id now: its boot id, and for how many milliseconds more unless renewed."""

    boot_id: str
    ttl_ms: int


def heartbeat(redis: Redis, ns: str, node: Node) -> None:
    """Write the node's record and renew its life."""
    fields = encode(node, without=frozenset({"seen_at"}))
    pairs = [part for pair in fields.items() for part in pair]
    where = [keys.node(ns, node.id), keys.alive(ns, node.id), keys.nodes(ns)]
    run(redis, "heartbeat", where, [node.id, node.boot_id, keys.ALIVE_TTL, *pairs])


def leave(redis: Redis, ns: str, node: str, boot_id: str) -> None:
    """End the node's life at once, if it is still ours: a clean stop need not be waited out."""
    if redis.get(keys.alive(ns, node)) == boot_id:
        redis.delete(keys.alive(ns, node))


def life(redis: Redis, ns: str, node: str) -> Life | None:
    """Return who lives under this node id, or None."""
    with redis.pipeline() as pipe:
        pipe.get(keys.alive(ns, node))
        pipe.pttl(keys.alive(ns, node))
        boot_id, ttl_ms = pipe.execute()
    return Life(boot_id, ttl_ms) if boot_id else None


def record(redis: Redis, ns: str, node: str) -> Node | None:
    """Return a node's record, or None if it never registered."""
    fields = redis.hgetall(keys.node(ns, node))
    return decode(Node, fields) if fields else None


def every(redis: Redis, ns: str) -> list[NodeView]:
    """Return all nodes that ever registered, by id, in two round trips."""
    ids = sorted(redis.smembers(keys.nodes(ns)))
    with redis.pipeline(transaction=False) as pipe:
        for node in ids:
            pipe.hgetall(keys.node(ns, node))
            pipe.get(keys.alive(ns, node))
        answers = pipe.execute()
    found = zip(ids, answers[::2], answers[1::2], strict=True)
    return [decode(NodeView, {**fields, "alive": str(int(bool(boot)))}) for _, fields, boot in found if fields]


def placeable(redis: Redis, ns: str) -> list[NodeView]:
    """Return the live nodes by id with what a placement asks of them and no more, in two round trips."""
    ids = sorted(redis.smembers(keys.nodes(ns)))
    with redis.pipeline(transaction=False) as pipe:
        pipe.mget([keys.alive(ns, node) for node in ids] or [keys.alive(ns, "")])
        for node in ids:
            pipe.hmget(keys.node(ns, node), *PLACED_BY)
        boots, *answers = pipe.execute()
    found = [zip(PLACED_BY, values, strict=True) for values, boot in zip(answers, boots, strict=False) if boot]
    told = [{name: text for name, text in pairs if text is not None} for pairs in found]
    return [decode(NodeView, {**fields, "alive": "1"}) for fields in told if fields]


def live_boots(redis: Redis, ns: str) -> dict[str, str]:
    """Return node id → boot id of every live node, in two round trips."""
    ids = sorted(redis.smembers(keys.nodes(ns)))
    boots = redis.mget([keys.alive(ns, node) for node in ids]) if ids else []
    return {node: boot for node, boot in zip(ids, boots, strict=True) if boot}
