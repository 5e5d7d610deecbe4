"""The decision: a ring in rank order and what each rank holds, or the rule that left none."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from exo_celery.placement.choice import Choice
from exo_celery.placement.explain import explain
from exo_celery.placement.graph import set_of
from exo_celery.placement.hops import with_fastest_hops
from exo_celery.placement.layers import split_layers
from exo_celery.placement.question import Question
from exo_celery.placement.refuse import check_request, refusal
from exo_celery.placement.rings import STEPS, Answer, in_rank_order
from exo_celery.placement.score import ready_seconds
from exo_celery.placement.survey import Survey
from exo_celery.records.instance import Rank


@dataclass(frozen=True, slots=True)
class Placement:
    """A ring that can hold a model.

    `sharding` is "pipeline" or "tensor"; `download_score` sums the ring's downloaded fractions; `available_bytes` its
    free bytes; `reserved_bytes` tells what each rank will hold. `exact` False: the search stopped at its bound, and a
    better ring may exist. `why` is for people, `decision` is the same in full, ready for JSON.
    """

    model: str
    sharding: str
    ring: tuple[Rank, ...]
    download_score: float
    available_bytes: int
    reserved_bytes: dict[str, int]
    exact: bool
    why: str
    decision: dict[str, Any]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Node ids in rank order."""
        return tuple(rank.node for rank in self.ring)

    @property
    def layer_counts(self) -> dict[str, int]:
        """Layers by node id, in rank order."""
        return {rank.node: rank.end_layer - rank.start_layer for rank in self.ring}


def place(question: Question) -> Placement:
    """Decide where a model goes, by the rules in order, and explain it.

    Raises:
        PlacementError: no ring can hold it; `code` names the rule that left none.
    """
    survey = Survey.of(question)
    choice = choose(survey)
    nodes = [question.nodes[i] for i in choice.ring]
    why, decision = explain(survey, choice)
    return Placement(
        model=question.card.id,
        sharding="tensor" if choice.tensor else "pipeline",
        ring=tuple(
            Rank(node=node.id, rank=rank, start_layer=start, end_layer=end)
            for rank, (node, (start, end)) in enumerate(zip(nodes, choice.spans, strict=True))
        ),
        download_score=float(sum(node.fraction for node in nodes)),
        available_bytes=sum(node.free_bytes for node in nodes),
        reserved_bytes={node.id: held for node, held in zip(nodes, choice.held_bytes, strict=True)},
        exact=choice.exact,
        why=why,
        decision=decision,
    )


def decide(question: Question) -> Choice:
    """Decide without explaining: the part of `place` that must be fast.

    Raises:
        PlacementError: no ring can hold it; `code` names the rule that left none.
    """
    return choose(Survey.of(question))


def choose(survey: Survey) -> Choice:
    """Search the best ring and split the model over it."""
    check_request(survey)
    if survey.question.request.prefer == "ready-soonest":
        nodes, answer = soonest(survey)
    else:
        nodes, answer = survey.usable, survey.search(survey.sizes)
    if not answer.rings:
        raise refusal(survey, answer)
    return split(survey, answer, nodes)


def soonest(survey: Survey) -> tuple[int, Answer]:
    """Return the nodes that are ready as early as any ring can be, and the best ring among them.

    A ring is ready with its slowest node, so the earliest moment is the least at which the nodes ready by then hold a
    ring: more nodes never hold fewer rings, so it is found by halving.
    """
    card = survey.question.card
    seconds = {
        i: ready_seconds(node, card.storage_bytes)
        for i, node in enumerate(survey.question.nodes)
        if survey.usable >> i & 1
    }
    moments = sorted(set(seconds.values()))
    nodes, best, exact = survey.usable, survey.search(survey.sizes), True
    low, high = 0, len(moments) - 1
    while best.rings and low < high:
        middle = (low + high) // 2
        early = set_of(i for i, moment in seconds.items() if moment <= moments[middle])
        answer = survey.search(survey.sizes, nodes=early, steps=STEPS // 10)
        exact = exact and answer.exact
        if answer.rings:
            nodes, best, high = early, answer, middle
        else:
            low = middle + 1
    return nodes, Answer(best.rings, exact and best.exact, best.steps, best.passed)


def split(survey: Survey, answer: Answer, nodes: int) -> Choice:
    """Put the best ring in rank order and tell what each rank holds."""
    ring = in_rank_order(ordered(survey, answer.rings[0]))
    demand, size = survey.demand, len(ring)
    tensor = survey.tensor and size > 1
    if tensor:
        spans = [(0, demand.layers)] * size
        held = [demand.slice_bytes(size)] * size
    else:
        facts = [survey.question.nodes[i] for i in ring]
        counts = split_layers([node.free_bytes for node in facts], [node.id for node in facts], demand)
        spans = ranges(counts)
        held = [demand.rank_bytes(count, first=rank == 0, last=rank == size - 1) for rank, count in enumerate(counts)]
    return Choice(ring, tensor, tuple(spans), tuple(held), answer.exact, answer.steps, nodes, answer.passed)


def ordered(survey: Survey, ring: Sequence[int]) -> Sequence[int]:
    """Return a ring in the order with the fastest hops, where round trips are known."""
    if not survey.question.rtt_ms:
        return ring
    links = survey.terrain(set_of(ring), survey.capacities, 0).links
    return with_fastest_hops(ring, links, survey.hops(ring))


def ranges(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the layers `[start, end)` of ranks that hold these counts, the first layers first."""
    spans, start = [], 0
    for count in counts:
        spans.append((start, start + count))
        start += count
    return spans
