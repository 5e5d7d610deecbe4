"""By how much the memory of the best nodes falls short of the model."""

from dataclasses import dataclass
from math import ceil
from typing import Final

from exo_celery.errors import PlacementError
from exo_celery.placement import wording
from exo_celery.placement.graph import members
from exo_celery.placement.rings import best_rings
from exo_celery.placement.survey import Reason, Survey
from exo_celery.placement.terrain import Terrain

SHORTAGE_STEPS: Final = 10_000


@dataclass(frozen=True, slots=True)
class RoomiestRing:
    """The ring with the most room of those looked at; `is_bound`: no ring has more, and maybe none has it."""

    room: int
    free_bytes: int
    size: int
    is_bound: bool


def shortage(survey: Survey) -> PlacementError:
    """Return the error of a model that fits nowhere, with the bytes that the nearest ring lacks."""
    if survey.tensor:
        return slice_shortage(survey)
    return layer_shortage(survey) if survey.may_hold_ring(survey.usable) else least_shortage(survey)


def least_shortage(survey: Survey) -> PlacementError:
    """Tell what the nodes without room for a single layer lack of it, where no ring can do without them."""
    lost = [
        node for node, reason in zip(survey.question.nodes, survey.reasons, strict=True) if reason is Reason.NO_ROOM
    ]
    nearest = max(lost, key=lambda node: node.free_bytes)
    share = ceil(survey.demand.least * survey.demand.layer_bytes)
    what = wording.count(survey.demand.least, "layer")
    return PlacementError(
        f"a ring of at least {wording.count(survey.smallest, 'node')} was asked for, and each node must have room for"
        f" {what} of {survey.question.card.id}, {wording.size(share)}; {wording.count(len(lost), 'node')} without which"
        f" no such ring closes do not, the nearest is {nearest.id} with {wording.size(nearest.free_bytes)} free:"
        f" {wording.size(share - nearest.free_bytes)} short. Free memory there, or ask for fewer nodes",
        code="insufficient_memory",
        needed_bytes=share,
        available_bytes=nearest.free_bytes,
        short_bytes=share - nearest.free_bytes,
        nodes=[node.id for node in lost][: wording.NAMED_AT_MOST],
        count=len(lost),
    )


def layer_shortage(survey: Survey) -> PlacementError:
    """Tell what the roomiest ring lacks of a pipeline."""
    card, demand = survey.question.card, survey.demand
    ring = roomiest_ring(survey)
    needed = demand.rank_bytes(demand.layers, first=True, last=True)
    short_layers = max(1, demand.need - ring.room)
    short_bytes = max(needed - ring.free_bytes, 0) or min(ceil(short_layers * demand.layer_bytes), needed)
    free = survey.before(Reason.NO_ROOM)
    total = sum(survey.question.nodes[i].free_bytes for i in members(free))
    most = "at most" if ring.is_bound else "at best"
    reserved = sum(node.reserved_bytes for node in survey.question.nodes)
    promised = f" ({wording.size(reserved)} more are promised to loading instances)" if reserved else ""
    return PlacementError(
        f"{card.id} needs {wording.size(needed)} in {wording.count(demand.layers, 'layer')}; a ring here has {most}"
        f" {wording.size(ring.free_bytes)} free on {wording.count(ring.size, 'node')}, room for {ring.room} of"
        f" {demand.need} layers: {wording.size(short_bytes)} short. The {wording.count(free.bit_count(), 'node')} that"
        f" could take part have {wording.size(total)} free together{promised}: free memory, add or link nodes,"
        " or choose a smaller model",
        code="insufficient_memory",
        needed_bytes=needed,
        available_bytes=ring.free_bytes,
        short_bytes=short_bytes,
        room_layers=ring.room,
        needed_layers=demand.need,
        nodes=free.bit_count(),
        total_free_bytes=total,
        reserved_bytes=reserved,
    )


def slice_shortage(survey: Survey) -> PlacementError:
    """Tell what the nodes lack of a slice, at the size that comes nearest."""
    card = survey.question.card
    nodes = survey.before(Reason.NO_ROOM)
    free = sorted((survey.question.nodes[i].free_bytes for i in members(nodes)), reverse=True)
    free += [0] * (max(survey.sizes) - len(free))
    short, size = min((survey.demand.slice_bytes(size) - free[size - 1], size) for size in survey.sizes)
    share = survey.demand.slice_bytes(size)
    if short > 0:
        lack = f"the node in place {size} by memory has {wording.size(free[size - 1])}: {wording.size(short)} short"
    else:
        lack = "but the nodes with that much are not linked in a ring"
    return PlacementError(
        f"{card.id} cut over {wording.count(size, 'node')} needs {wording.size(share)} free on each; {lack}."
        " Free memory, add or link nodes, or ask for pipeline, which splits unevenly",
        code="insufficient_memory",
        needed_bytes=share,
        short_bytes=max(short, 0),
        size=size,
        nodes=nodes.bit_count(),
    )


def roomiest_ring(survey: Survey) -> RoomiestRing:
    """Return the ring with the most room, or a bound on it where that already falls short."""
    nodes = survey.usable
    bound = room_bound(survey, nodes)
    if bound.room < survey.demand.need:
        return bound
    return max(roomy_rings(survey, nodes), key=lambda ring: ring.room, default=bound)


def room_bound(survey: Survey, nodes: int) -> RoomiestRing:
    """Return the most room that the nodes of one block have together: no ring can have more."""
    terrain = by_room(survey, nodes)
    largest = max(survey.sizes, default=1)
    capacity, facts = survey.capacities, survey.question.nodes
    some = [[i] for i in members(nodes)]
    some += [[i, j] for i in members(nodes) for j in members(terrain.links[i]) if largest > 1 and i < j]
    some += [group.nodes for group in terrain.groups]
    tops = (sorted(group, key=lambda i: -capacity[i])[:largest] for group in some)
    best = max(tops, key=lambda top: (sum(capacity[i] for i in top), -len(top)), default=[])
    return RoomiestRing(
        sum(capacity[i] for i in best), sum(facts[i].free_bytes for i in best), len(best), is_bound=True
    )


def roomy_rings(survey: Survey, nodes: int) -> list[RoomiestRing]:
    """Return for each allowed size a ring with the most room, as far as a few steps lead."""
    terrain, left, rings = by_room(survey, nodes), SHORTAGE_STEPS, []
    for size in survey.sizes:
        answer = best_rings(terrain, [size], steps=left)
        left -= answer.steps
        for ring in answer.rings:
            rings.append(
                RoomiestRing(
                    sum(survey.capacities[i] for i in ring),
                    sum(survey.question.nodes[i].free_bytes for i in ring),
                    size,
                    is_bound=False,
                )
            )
        if left < SHORTAGE_STEPS // 10:
            break
    return rings


def by_room(survey: Survey, nodes: int) -> Terrain:
    """Return the terrain in which the ring with the most room is the best."""
    count = len(survey.question.nodes)
    plain = survey.terrain(nodes, [0] * count, 0)
    room = [capacity << count | 1 << i for i, capacity in enumerate(survey.capacities)]
    return Terrain(nodes, plain.links, room, plain.room, 0, plain.required, 0, plain.clashes)
