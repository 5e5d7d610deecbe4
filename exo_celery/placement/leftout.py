"""Who is not in the ring, grouped by reason, and why no smaller ring would do."""

from typing import Any, Final

from exo_celery.placement import wording
from exo_celery.placement.choice import Choice
from exo_celery.placement.graph import members, set_of
from exo_celery.placement.survey import Survey

SIZES_SHOWN: Final = 5


def left_out(survey: Survey, choice: Choice) -> list[dict[str, Any]]:
    """Return for each reason how many nodes it left out and some of their names, twenty in all."""
    groups: dict[str, list[str]] = {}
    chosen = set_of(choice.ring)
    alone = 0 if len(choice.ring) == 1 else unlinked(survey)
    for i, node in enumerate(survey.question.nodes):
        if not chosen >> i & 1:
            groups.setdefault(reason_of(survey, choice, i, alone), []).append(node.id)
    each = wording.NAMED_AT_MOST // max(1, len(groups))
    return [{"reason": reason, "count": len(names), "nodes": names[:each]} for reason, names in sorted(groups.items())]


def reason_of(survey: Survey, choice: Choice, node: int, alone: int) -> str:
    """Return why a node is not in the ring."""
    if (reason := survey.reasons[node]) is not None:
        return reason.value
    if choice.tensor and not survey.fitting(len(choice.ring), 1 << node):
        return "no_room"
    if alone >> node & 1:
        return "no_two_way_link"
    return "not_chosen" if choice.nodes >> node & 1 else "ready_later"


def unlinked(survey: Survey) -> int:
    """Return the usable nodes without a two-way link to another usable one."""
    links = survey.question.links.two_way
    return set_of(i for i in members(survey.usable) if not links[i] & survey.usable)


def smaller_sizes(survey: Survey, size: int) -> list[dict[str, Any]]:
    """Return what the sizes below the chosen one lack, the nearest first, five at most."""
    smaller = [other for other in survey.sizes if other < size]
    lack = lacking_slices if survey.tensor else lacking_layers
    return [{"size": other, "lacks": lack(survey, other)} for other in smaller[: -SIZES_SHOWN - 1 : -1]]


def lacking_layers(survey: Survey, size: int) -> str:
    """Say what the roomiest `size` nodes lack of a pipeline."""
    demand = survey.demand
    room = sum(sorted((survey.capacities[i] for i in members(survey.usable)), reverse=True)[:size])
    if room >= demand.need:
        return f"no ring of {wording.count(size, 'linked node')} has the room or is ready in time"
    return f"room for {room} of {demand.need} layers at most"


def lacking_slices(survey: Survey, size: int) -> str:
    """Say what the nodes lack of a slice for `size` ranks."""
    share = wording.size(survey.demand.slice_bytes(size))
    fit = survey.fitting(size, survey.usable).bit_count()
    if fit >= size:
        return f"the nodes with {share} free are not linked in a ring or not ready in time"
    return f"{wording.count(fit, 'node')} with {share} free, {size} needed"
