"""Several rings for one model: each apart from the others where that is possible, on shared nodes where memory allows.

A thin layer on `place`: it asks again with the nodes of the rings that were found left out, and what they were promised
taken away.
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any, Final

from exo_celery.errors import PlacementError
from exo_celery.placement import wording
from exo_celery.placement.place import Placement, place
from exo_celery.placement.question import Question
from exo_celery.placement.survey import Reason

TRIES: Final = 24  # decisions beyond one per replica, for rings that stand in each other's way


def place_replicas(question: Question) -> list[Placement]:
    """Decide where all replicas of a request go.

    Rings without a common node come first: the best, then the best of what is left, and where that leads nowhere the
    next best. What then still lacks a ring gets one of nodes that have memory left. Required nodes are in every ring.

    Raises:
        PlacementError: not all fit; with the code of what the first without a ring lacks, and how many do fit.
    """
    asked, left = question.request.replicas, question
    if asked == 1:
        return [place(question)]
    found = apart(question, asked, count())
    for one in found:
        left = promised(left, one)
    while len(found) < asked:
        try:
            found.append(place(left))
        except PlacementError as refusal:
            raise not_all(refusal, len(found), asked) from refusal
        left = promised(left, found[-1])
    return [explained(question, one, number, nodes_of(found, one)) for number, one in enumerate(found, 1)]


def place_beside(question: Question, number: int, taken: Collection[str]) -> Placement:
    """Decide where a replica goes again whose others hold the `taken` nodes: apart from them if any ring is.

    Raises:
        PlacementError: no ring can hold it.
    """
    if question.request.replicas == 1:
        return place(question)
    try:
        found = place(without(question, taken))
    except PlacementError:
        found = place(question)
    return explained(question, found, number, taken)


def nodes_of(found: list[Placement], one: Placement) -> set[str]:
    """Return the nodes of all rings but one."""
    return {node for other in found if other is not one for node in other.nodes}


def apart(question: Question, wanted: int, tries: Iterator[int]) -> list[Placement]:
    """Return as many rings without a common node as are found, `wanted` at most: depth first, best rings first."""
    if not wanted:
        return []
    try:
        first = place(question)
    except PlacementError:
        return []
    best: list[Placement] = []
    for ring in candidates(question, first):
        rest = apart(without(promised(question, ring), ring.nodes), wanted - 1, tries)
        best = max(best, [ring, *rest], key=len)
        if len(best) == wanted or next(tries) >= TRIES:
            break
    return best


def candidates(question: Question, first: Placement) -> Iterator[Placement]:
    """Give the best ring, then those that came next, each as a decision of its own."""
    yield first
    for rival in first.decision["rings"][1:]:
        exactly = {"required_nodes": tuple(rival["nodes"]), "min_nodes": rival["size"], "max_nodes": rival["size"]}
        with suppress(PlacementError):
            yield place(asking(question, **exactly))


def asking(question: Question, **changes: Any) -> Question:
    """Return the question with another request."""
    return replace(question, request=question.request.model_copy(update=changes))


def without(question: Question, taken: Collection[str]) -> Question:
    """Return the question with nodes left out, but for those that were required."""
    request = question.request
    excluded = {*request.excluded_nodes, *taken} - set(request.required_nodes)
    return asking(question, excluded_nodes=tuple(sorted(excluded)))


def promised(question: Question, ring: Placement) -> Question:
    """Return the question with a ring's memory promised."""
    held = ring.reserved_bytes
    nodes = (replace(node, reserved_bytes=node.reserved_bytes + held.get(node.id, 0)) for node in question.nodes)
    return replace(question, nodes=tuple(nodes))


def explained(question: Question, ring: Placement, number: int, taken: Collection[str]) -> Placement:
    """Return one of several rings with what it has to do with the others."""
    of, shared = question.request.replicas, sorted(set(ring.nodes).intersection(taken))
    said = f"It shares {wording.names(shared)} with another." if shared else "No other replica is on its nodes."
    decision = ring.decision | {"replica": number, "shared_nodes": shared}
    if not question.request.excluded_nodes:
        decision["left_out"] = [
            group | ({"reason": "holds_replica"} if group["reason"] == Reason.EXCLUDED else {})
            for group in ring.decision["left_out"]
        ]
    return replace(ring, why=f"Replica {number} of {of}: {ring.why} {said}", decision=decision)


def not_all(refusal: PlacementError, fit: int, asked: int) -> PlacementError:
    """Return the refusal of a request of which only some replicas fit."""
    message = f"{fit} of {asked} replicas fit: for one more, {refusal.message}"
    return PlacementError(message, code=refusal.code, **refusal.numbers, replicas=asked, replicas_fit=fit)
