"""Which nodes and sizes a request leaves, before any ring is looked for; and the search over them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from exo_celery.placement.demand import Demand
from exo_celery.placement.graph import members, set_of
from exo_celery.placement.hops import Hops, hops_of
from exo_celery.placement.question import NodeFacts, Question
from exo_celery.placement.rings import STEPS, Answer, best_rings
from exo_celery.placement.score import worths
from exo_celery.placement.terrain import Terrain, rounded_need

ENGINE_BACKENDS: Final[Mapping[str, frozenset[str]]] = {
    "MlxRing": frozenset({"MlxMetal", "MlxCuda", "MlxCpu"}),
    "MlxJaccl": frozenset({"MlxMetal"}),
}

PROBE_STEPS: Final = 5_000  # to tell whether any ring exists, whatever it holds


class Reason(StrEnum):
    """Why a node cannot take part, in the order in which the rules are asked."""

    EXCLUDED = "excluded"
    LABEL_MISSING = "label_missing"
    NO_REPORT = "no_report"
    NO_SHARED_BACKEND = "no_shared_backend"
    RDMA_DISABLED = "rdma_disabled"
    NO_ROOM = "no_room"


@dataclass(frozen=True)
class Survey:
    """A question with what follows from it at once. Nodes are numbers: the i-th of `question.nodes`."""

    question: Question
    demand: Demand
    tensor: bool
    sizes: tuple[int, ...]
    reasons: tuple[Reason | None, ...]

    @classmethod
    def of(cls, question: Question) -> "Survey":
        """Ask each node the rules that concern it alone, and list the sizes that the request and the model allow."""
        request, card = question.request, question.card
        tensor = request.sharding == "tensor"
        largest = min(request.max_nodes or card.n_layers, card.n_layers, len(question.nodes))
        smallest = max(request.min_nodes, len(set(request.required_nodes)), 1)
        sizes = tuple(size for size in range(smallest, largest + 1) if not tensor or divides(size, question))
        demand = Demand.of(card, request)
        least_bytes = demand.slice_bytes(max(largest, 1)) if tensor else demand.least_bytes
        return cls(question, demand, tensor, sizes, sift(question, least_bytes))

    @property
    def rdma(self) -> bool:
        """Tell whether the engine needs RDMA."""
        return self.question.request.instance_meta == "MlxJaccl"

    @cached_property
    def required(self) -> int:
        """The set of required nodes; ids that are not known are left out."""
        wanted = frozenset(self.question.request.required_nodes)
        return set_of(i for i, node in enumerate(self.question.nodes) if node.id in wanted) if wanted else 0

    @cached_property
    def leaves(self) -> int:
        """The nodes with at most one out-neighbour in the whole graph, whatever links and nodes are good for."""
        return set_of(i for i, reach in enumerate(self.question.links.reach) if reach.bit_count() <= 1)

    @cached_property
    def worth(self) -> list[int]:
        """The worth of each node."""
        return worths([node.fraction for node in self.question.nodes], self.free)

    @cached_property
    def free(self) -> list[int]:
        """Free bytes of each node."""
        return [node.free_bytes for node in self.question.nodes]

    @cached_property
    def usable(self) -> int:
        """The set of nodes that no rule about one node leaves out."""
        return set_of(i for i, reason in enumerate(self.reasons) if reason is None)

    def before(self, reason: Reason) -> int:
        """Return the nodes that every rule before this one lets through."""
        order = list(Reason)
        later = {None, *order[order.index(reason) :]}
        return set_of(i for i, found in enumerate(self.reasons) if found in later)

    def terrain(self, nodes: int, room: Sequence[int], need: int, *, rdma: bool | None = None) -> Terrain:
        """Return what the search sees of some of the nodes."""
        links = self.question.links
        two_way = within(nodes, links.two_way)
        clashes: Sequence[int] = ()
        if self.rdma if rdma is None else rdma:
            clashes = within(nodes, links.plain)
            two_way = [mask & ~clash for mask, clash in zip(two_way, clashes, strict=True)]
        return Terrain(
            nodes=nodes,
            links=two_way,
            worth=self.worth,
            room=room,
            need=rounded_need(need, (room[i] for i in members(nodes))),
            required=self.required,
            leaves=self.leaves if self.smallest <= 2 else 0,  # none lies on a longer ring
            clashes=clashes if any(clashes) else (),
        )

    @cached_property
    def capacities(self) -> list[int]:
        """How many layers each node has room for."""
        return self.demand.capacities(self.free)

    def hops(self, ring: Sequence[int]) -> Hops:
        """Return the round trips between the nodes of a ring."""
        return hops_of(ring, [node.id for node in self.question.nodes], self.question.rtt_ms)

    def fitting(self, size: int, nodes: int) -> int:
        """Return those of the nodes that have room for one of `size` slices of a tensor ring."""
        share = self.demand.slice_bytes(size)
        return set_of(i for i in members(nodes) if self.free[i] >= share)

    def search(self, sizes: Sequence[int], *, nodes: int | None = None, keep: int = 1, steps: int = STEPS) -> Answer:
        """Return the best rings of the smallest of these sizes that has one, among usable (or the given) nodes."""
        among = self.usable if nodes is None else nodes
        if self.tensor:
            return self.search_slices(sizes, among, keep, steps)
        return best_rings(self.terrain(among, self.capacities, self.demand.need), sizes, keep=keep, steps=steps)

    @property
    def smallest(self) -> int:
        """The least number of nodes that the request allows."""
        return max(self.question.request.min_nodes, len(set(self.question.request.required_nodes)), 1)

    def may_hold_ring(self, nodes: int, *, rdma: bool = False) -> bool:
        """Tell whether these nodes have a ring of an allowed size with the required ones, whatever it can hold.

        Also true where a few steps do not suffice to tell.
        """
        layers = self.demand.layers
        largest = min(self.question.request.max_nodes or layers, layers, nodes.bit_count())
        terrain = self.terrain(nodes, [0] * len(self.question.nodes), 0, rdma=rdma)
        answer = best_rings(terrain, range(self.smallest, largest + 1), steps=PROBE_STEPS)
        return bool(answer.rings) or not answer.exact

    def search_slices(self, sizes: Sequence[int], nodes: int, keep: int, steps: int) -> Answer:
        """Search tensor rings: their size tells which nodes have room, and then nothing is to be added up."""
        exact, left = True, steps
        nothing = [0] * len(self.question.nodes)
        for size in sizes:
            terrain = self.terrain(self.fitting(size, nodes), nothing, 0)
            answer = best_rings(terrain, [size], keep=keep, steps=left)
            exact = exact and answer.exact
            left -= answer.steps
            if answer.rings:
                return Answer(answer.rings, exact, steps - left, answer.passed)
        return Answer((), exact, steps - left)


def within(nodes: int, masks: Sequence[int]) -> Sequence[int]:
    """Return the neighbours inside a set for the nodes of the set, none for the others."""
    if nodes == (1 << len(masks)) - 1:
        return masks
    return [mask & nodes if nodes >> i & 1 else 0 for i, mask in enumerate(masks)]


def sift(question: Question, least_bytes: int) -> tuple[Reason | None, ...]:
    """Return for each node the first rule about it alone that leaves it out, or None."""
    request = question.request
    engine = ENGINE_BACKENDS[request.instance_meta].intersection(question.card.backends)
    fitting = {backends for backends in {node.backends for node in question.nodes} if engine.intersection(backends)}
    excluded, labels = frozenset(request.excluded_nodes), frozenset(request.labels)
    rdma = request.instance_meta == "MlxJaccl"

    def reason(node: NodeFacts) -> Reason | None:
        if node.id in excluded:
            return Reason.EXCLUDED
        if labels and not labels.issubset(node.labels):
            return Reason.LABEL_MISSING
        if node.available_bytes is None:
            return Reason.NO_REPORT
        if node.backends not in fitting:
            return Reason.NO_SHARED_BACKEND
        if rdma and not node.rdma_enabled:
            return Reason.RDMA_DISABLED
        return None if node.free_bytes >= least_bytes else Reason.NO_ROOM

    return tuple(map(reason, question.nodes))


def divides(size: int, question: Question) -> bool:
    """Tell whether hidden size, KV heads and the other parts of layers (where known) can be cut into equal slices."""
    card = question.card
    return not any(parts % size for parts in (card.hidden_size, card.num_key_value_heads, card.tensor_parts) if parts)
