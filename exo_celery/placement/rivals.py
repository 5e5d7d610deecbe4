"""The best rings of a decision, and what each lacks against the first."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from exo_celery.placement import wording
from exo_celery.placement.choice import Choice
from exo_celery.placement.rings import in_rank_order
from exo_celery.placement.score import ready_seconds
from exo_celery.placement.survey import Survey

SHOWN: Final = 5
STEPS: Final = 4_000  # for all rivals together: an explanation must not cost more than the decision


@dataclass(frozen=True, slots=True)
class Rival:
    """A ring with its keys. `names` are in rank order; `late`: it has a node that is not ready in time."""

    names: tuple[str, ...]
    downloaded: Fraction
    free_bytes: int
    leaf: bool
    seconds: float
    late: bool

    def behind(self, first: "Rival") -> str:
        """Name the rule by which the first ring comes before this one."""
        rules = (
            ("ready_soonest", self.late),
            ("fewest_nodes", len(self.names) > len(first.names)),
            ("leaf", first.leaf and not self.leaf),
            ("most_downloaded", self.downloaded < first.downloaded),
            ("most_memory", self.free_bytes < first.free_bytes),
        )
        return next((rule for rule, decides in rules if decides), "first_by_id")

    def lacks(self, first: "Rival") -> str:
        """Say what this ring lacks against the first."""
        return {
            "ready_soonest": f"ready {self.seconds - first.seconds:.1f} s later",
            "fewest_nodes": f"{wording.count(len(self.names) - len(first.names), 'node')} more",
            "leaf": "no leaf",
            "most_downloaded": f"{float(first.downloaded - self.downloaded):.2f} of the model less downloaded",
            "most_memory": f"{wording.size(first.free_bytes - self.free_bytes)} less free",
            "first_by_id": "later in the order of ids",
        }[self.behind(first)]

    def as_json(self, first: "Rival") -> dict[str, Any]:
        """Return the ring with its keys; `lacks` is empty for the chosen one."""
        return {
            "nodes": list(self.names),
            "size": len(self.names),
            "downloaded": float(self.downloaded),
            "free_bytes": self.free_bytes,
            "leaf": self.leaf,
            "ready_seconds": round(self.seconds, 1),
            "chosen": self is first,
            "lacks": "" if self is first else self.lacks(first),
        }


def rivals(survey: Survey, choice: Choice) -> tuple[list[Rival], bool]:
    """Return the chosen ring and the next best, five at most, and whether none better than these was overlooked.

    They are of the chosen size first, then of the next sizes that have any; with `ready-soonest` the ring that the
    default order would have chosen is among them.
    """
    others, exact = next_best(survey, choice)
    if choice.nodes != survey.usable:
        default = survey.search(survey.sizes)
        others = [*default.rings[:1], *others]
    found = [choice.ring]
    seen = {frozenset(choice.ring)}
    for ring in others:
        if frozenset(ring) not in seen:
            seen.add(frozenset(ring))
            found.append(in_rank_order(ring))
    return [measure(survey, choice, ring) for ring in found[:SHOWN]], exact


def next_best(survey: Survey, choice: Choice) -> tuple[list[tuple[int, ...]], bool]:
    """Return the best rings from the chosen size on, and whether the search for them was exact.

    Where the decision itself stopped at its bound, these are the rings that it came across.
    """
    if not choice.exact:
        return list(choice.passed), False
    found: list[tuple[int, ...]] = []
    sizes = [size for size in survey.sizes if size >= len(choice.ring)]
    exact, left = True, STEPS
    while sizes and len(found) < SHOWN and left > 0:
        answer = survey.search(sizes, nodes=choice.nodes, keep=SHOWN - len(found), steps=left)
        exact = exact and answer.exact
        left -= answer.steps
        if not answer.rings:
            break
        found += answer.rings
        sizes = [size for size in sizes if size > len(answer.rings[0])]
    return found, exact


def measure(survey: Survey, choice: Choice, ring: Sequence[int]) -> Rival:
    """Return a ring with its keys."""
    nodes = [survey.question.nodes[i] for i in ring]
    storage = survey.question.card.storage_bytes
    return Rival(
        names=tuple(node.id for node in nodes),
        downloaded=sum((node.fraction for node in nodes), Fraction(0)),
        free_bytes=sum(node.free_bytes for node in nodes),
        leaf=any(survey.leaves >> i & 1 for i in ring),
        seconds=max(ready_seconds(node, storage) for node in nodes),
        late=any(not choice.nodes >> i & 1 for i in ring),
    )
