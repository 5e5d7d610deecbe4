"""Why this ring: the rule that decided, the best rings with their keys, and who was left out. In words and as JSON."""

from collections.abc import Sequence
from typing import Any

from exo_celery.placement import wording
from exo_celery.placement.choice import Choice
from exo_celery.placement.hops import slowest_hop
from exo_celery.placement.leftout import left_out, smaller_sizes
from exo_celery.placement.question import WHOLE
from exo_celery.placement.rivals import Rival, rivals
from exo_celery.placement.score import ASSUMED_DOWNLOAD_BPS, ASSUMED_LOAD_BPS, missing_bytes
from exo_celery.placement.survey import Survey


def explain(survey: Survey, choice: Choice) -> tuple[str, dict[str, Any]]:
    """Return two sentences in numbers, and the whole decision ready for JSON."""
    found, all_seen = rivals(survey, choice)
    fetches = [fetch(survey, i) for i in choice.ring if survey.question.nodes[i].fraction < WHOLE]
    groups = left_out(survey, choice)
    decision = {
        "rule": deciding_rule(found),
        "sharding": "tensor" if choice.tensor else "pipeline",
        "exact": choice.exact,
        "steps": choice.steps,
        "rings": [rival.as_json(found[0]) for rival in found],
        "rings_exact": all_seen,
        "smaller": smaller_sizes(survey, len(choice.ring)),
        "left_out": groups,
        "fetch": fetches,
        "slowest_hop_ms": slowest_hop(choice.ring, survey.hops(choice.ring)),
        "ready_seconds": round(estimated_seconds(survey, choice), 1),
    }
    return f"{what(survey, choice, found[0])} {why(survey, choice, found, groups)}", decision


def deciding_rule(found: Sequence[Rival]) -> str:
    """Name the rule that put the first ring before the second."""
    return found[1].behind(found[0]) if len(found) > 1 else "only_ring"


def what(survey: Survey, choice: Choice, ring: Rival) -> str:
    """Say in one sentence what was chosen."""
    card = survey.question.card
    size = len(ring.names)
    counts = " + ".join(str(end - start) for start, end in choice.spans)
    layers = f"slices of all {survey.demand.layers} layers" if choice.tensor else f"{counts} layers"
    return (
        f"{card.id} ({wording.size(card.storage_bytes)}) goes to {wording.names(ring.names)} as"
        f" {'tensor' if choice.tensor else 'pipeline'} of {wording.count(size, 'node')} with {layers}:"
        f" {float(ring.downloaded):.2f} of {size} {'copy' if size == 1 else 'copies'} downloaded there,"
        f" {wording.size(ring.free_bytes)} free."
    )


def why(survey: Survey, choice: Choice, found: Sequence[Rival], groups: Sequence[dict[str, Any]]) -> str:
    """Say in one sentence which rule decided."""
    first = found[0]
    bound = "" if choice.exact else f"; the search stopped after {choice.steps} steps, so a better one may exist"
    if len(found) == 1:
        others = wording.count(sum(group["count"] for group in groups), "other node")
        return f"It is the only ring found that can hold it, with {others} looked at{bound}."
    second = found[1]
    named = wording.names(second.names)
    reasons = {
        "ready_soonest": f"it can be ready {second.seconds - first.seconds:.1f} s sooner",
        "fewest_nodes": f"it needs {wording.count(len(second.names) - len(first.names), 'node')} less",
        "leaf": "it holds a leaf (a node that reaches one other or none), and such rings come first",
        "most_downloaded": (
            f"it has {float(first.downloaded):.2f} of the model downloaded in sum, not {float(second.downloaded):.2f}"
        ),
        "most_memory": f"with as much downloaded it has {wording.size(first.free_bytes - second.free_bytes)} more free",
        "first_by_id": "with as much downloaded and free its node ids come first",
    }
    return f"It comes before {named} because {reasons[second.behind(first)]}{bound}."


def fetch(survey: Survey, node: int) -> dict[str, Any]:
    """Tell which bytes a node must get, from where, and how long that takes.

    A linked node that has the whole model gives it, else the hub.
    """
    facts = survey.question.nodes
    missing = missing_bytes(facts[node], survey.question.card.storage_bytes)
    near = survey.question.links.two_way[node]
    source = next((peer.id for i, peer in enumerate(facts) if near >> i & 1 and peer.fraction == WHOLE), "hub")
    speed = facts[node].download_bps
    return {
        "node": facts[node].id,
        "missing_bytes": missing,
        "from": source,
        "seconds": round(missing / (speed or ASSUMED_DOWNLOAD_BPS), 1),
        "speed_measured": speed is not None,
    }


def estimated_seconds(survey: Survey, choice: Choice) -> float:
    """Estimate when the ring is loaded: the slowest of its nodes, each with its missing bytes and its own share."""
    size = survey.question.card.storage_bytes
    nodes = (survey.question.nodes[i] for i in choice.ring)
    return max(
        missing_bytes(node, size) / (node.download_bps or ASSUMED_DOWNLOAD_BPS)
        + held / (node.load_bps or ASSUMED_LOAD_BPS)
        for node, held in zip(nodes, choice.held_bytes, strict=True)
    )
