"""What placement is asked: frozen facts that others have gathered, nodes in order of id."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, Self

from exo_celery.records.download import Download, DownloadStatus
from exo_celery.records.instance import PlacementRequest
from exo_celery.records.model import BACKENDS, ModelCard
from exo_celery.records.node import Node

NOTHING: Final = Fraction(0)
WHOLE: Final = Fraction(1)


def downloaded_fraction(status: str, downloaded_bytes: int, total_bytes: int) -> Fraction:
    """Return how much of a model a node has, without rounding: completed 1, failed 0, else bytes, at most 1."""
    if status == DownloadStatus.COMPLETED:
        return WHOLE
    if status == DownloadStatus.FAILED or total_bytes <= 0 or downloaded_bytes <= 0:
        return NOTHING
    return WHOLE if downloaded_bytes >= total_bytes else Fraction(downloaded_bytes, total_bytes)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node. `available_bytes` None: it has not reported. Speeds are bytes per second, None: never measured."""

    id: str
    available_bytes: int | None
    reserved_bytes: int = 0
    backends: tuple[str, ...] = BACKENDS
    rdma_enabled: bool = False
    labels: tuple[str, ...] = ()
    fraction: Fraction = NOTHING
    download_bps: float | None = None
    load_bps: float | None = None

    @property
    def free_bytes(self) -> int:
        """Available bytes that no loading instance has been promised."""
        return max(0, (self.available_bytes or 0) - self.reserved_bytes)


@dataclass(frozen=True, slots=True)
class Links:
    """Who reaches whom. Node i is the i-th id in order; a set of nodes is an integer, bit i for node i.

    `reach[i]`: the nodes that i reaches; `two_way[i]`: those that reach it too; `plain[i]`: those with a link from or
    to i that is not RDMA.
    """

    reach: tuple[int, ...]
    two_way: tuple[int, ...]
    plain: tuple[int, ...]

    @classmethod
    def every(cls, count: int) -> Self:
        """Link every pair of `count` nodes both ways, without RDMA."""
        all_nodes = (1 << count) - 1
        others = tuple(all_nodes ^ 1 << i for i in range(count))
        return cls(others, others, others)

    @classmethod
    def of(cls, ids: Iterable[str], edges: Iterable[tuple[str, str]], rdma: Iterable[tuple[str, str]] = ()) -> Self:
        """Read directed edges `(from, to)`; those also in `rdma` have an RDMA connection.

        Ends that are not among `ids` and links of a node to itself are left out.
        """
        place = {name: i for i, name in enumerate(sorted(ids))}
        fast = list(rdma)
        out, into = directions(place, edges)
        fast_out, fast_into = directions(place, fast)
        reach = tuple(a | b for a, b in zip(out, fast_out, strict=True))
        back = tuple(a | b for a, b in zip(into, fast_into, strict=True))
        plain = tuple(out[i] & ~fast_out[i] | into[i] & ~fast_into[i] for i in range(len(place)))
        return cls(reach, tuple(a & b for a, b in zip(reach, back, strict=True)), plain)


def directions(place: Mapping[str, int], edges: Iterable[tuple[str, str]]) -> tuple[list[int], list[int]]:
    """Return for each node the set it reaches and the set that reaches it."""
    bits = [1 << i for i in range(len(place))]
    out, into = [0] * len(place), [0] * len(place)
    for start, end in edges:
        i, j = place.get(start), place.get(end)
        if i is not None and j is not None and i != j:
            out[i] |= bits[j]
            into[j] |= bits[i]
    return out, into


@dataclass(frozen=True, slots=True)
class Question:
    """All that a placement depends on. `nodes` are sorted by id, and `links` speaks of them in that order.

    `rtt_ms[a][b]` is the round trip that node a measured to b, where it did; it orders a ring, it does not choose one.
    """

    card: ModelCard
    request: PlacementRequest
    nodes: tuple[NodeFacts, ...]
    links: Links
    rtt_ms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def ask(
    card: ModelCard,
    request: PlacementRequest,
    nodes: Iterable[Node],
    downloads: Mapping[str, Download],
    *,
    reach: Mapping[str, Iterable[str]] | None = None,
    rdma: Mapping[str, Iterable[str]] | None = None,
    rtt_ms: Mapping[str, Mapping[str, float]] | None = None,
    reserved_bytes: Mapping[str, int] | None = None,
    download_bps: Mapping[str, float] | None = None,
    load_bps: Mapping[str, float] | None = None,
) -> Question:
    """Build the question from records, all mappings keyed by node id.

    `nodes` are the live nodes; `downloads` those of this model. `reach` tells which peers a node reaches, None: all
    reach each other. `rtt_ms` are round trips between them. `reserved_bytes` are promised to instances that are still
    loading.
    """
    reserved, fetch, load = reserved_bytes or {}, download_bps or {}, load_bps or {}
    facts = tuple(
        NodeFacts(
            id=node.id,
            available_bytes=node.ram_available_bytes,
            reserved_bytes=reserved.get(node.id, 0),
            backends=node.backends,
            rdma_enabled=node.rdma_enabled,
            labels=node.labels,
            fraction=fraction_of(downloads.get(node.id)),
            download_bps=fetch.get(node.id),
            load_bps=load.get(node.id),
        )
        for node in sorted(nodes, key=lambda node: node.id)
    )
    links = Links.every(len(facts)) if reach is None else links_of(facts, reach, rdma or {})
    return Question(card, request, facts, links, rtt_ms or {})


def fraction_of(download: Download | None) -> Fraction:
    """Return how much of the model a download record stands for."""
    if download is None:
        return NOTHING
    return downloaded_fraction(download.status, download.downloaded_bytes, download.total_bytes)


def links_of(
    nodes: Iterable[NodeFacts], reach: Mapping[str, Iterable[str]], rdma: Mapping[str, Iterable[str]]
) -> Links:
    """Read links from each node's own list of the peers that it reaches."""
    return Links.of(
        (node.id for node in nodes),
        ((node, peer) for node, peers in reach.items() for peer in peers),
        ((node, peer) for node, peers in rdma.items() for peer in peers),
    )
