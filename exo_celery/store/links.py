"""Links: which peers each node really reaches, written by its own agent only."""

from collections.abc import Mapping, Sequence

from redis import Redis

from exo_celery.records.node import LinkRecord
from exo_celery.store import keys


def replace(redis: Redis, ns: str, node: str, reached: Mapping[str, LinkRecord]) -> None:
    """Write what a node reaches now; whoever is not among it is not reached."""
    with redis.pipeline() as pipe:
        pipe.delete(keys.links(ns, node))
        if reached:
            pipe.hset(keys.links(ns, node), mapping={peer: link.model_dump_json() for peer, link in reached.items()})
        pipe.execute()


def every(redis: Redis, ns: str, nodes: Sequence[str]) -> dict[str, dict[str, LinkRecord]]:
    """Return node → peer → link of these nodes, in one round trip."""
    with redis.pipeline(transaction=False) as pipe:
        for node in nodes:
            pipe.hgetall(keys.links(ns, node))
        answers = pipe.execute()
    return {node: read(fields) for node, fields in zip(nodes, answers, strict=True)}


def read(fields: Mapping[str, str]) -> dict[str, LinkRecord]:
    """Read one node's links."""
    return {peer: LinkRecord.model_validate_json(text) for peer, text in fields.items()}
