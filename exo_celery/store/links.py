"""Links: which peers each node really reaches, written by its own agent only."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence

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


class RoundTrips(Mapping[str, Mapping[str, float]]):
    """Node → peer → milliseconds, read from the stored text when somebody asks: a placement asks for few of many."""

    def __init__(self, stored: Mapping[str, Mapping[str, str]]) -> None:
        self.stored = stored

    def __getitem__(self, node: str) -> Mapping[str, float]:
        return {peer: json.loads(text)["rtt_ms"] for peer, text in self.stored[node].items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def peers(self, node: str) -> Collection[str]:
        """Return whom a node reaches."""
        return self.stored[node].keys()


def round_trips(redis: Redis, ns: str, nodes: Sequence[str]) -> RoundTrips:
    """Return whom these nodes reach and how fast, in one round trip; leaner than `every`."""
    with redis.pipeline(transaction=False) as pipe:
        for node in nodes:
            pipe.hgetall(keys.links(ns, node))
        return RoundTrips(dict(zip(nodes, pipe.execute(), strict=True)))


def read(fields: Mapping[str, str]) -> dict[str, LinkRecord]:
    """Read one node's links."""
    return {peer: LinkRecord.model_validate_json(text) for peer, text in fields.items()}
