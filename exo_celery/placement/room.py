"""Which idle instances have to go so that a model fits. PURE."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from exo_celery.errors import PlacementError
from exo_celery.placement.place import decide
from exo_celery.placement.question import Question


@dataclass(frozen=True)
class Held:
    """The memory that an instance holds, in bytes by node."""

    instance: str
    by_node: Mapping[str, int]


def to_unload(question: Question, leaving: Sequence[Held], idle: Sequence[Held]) -> list[Held] | None:
    """Return the instances to unload, the least recently used first; None where even all of them would not do.

    `leaving` are being unloaded already and count as gone. `idle` may go, least recently used first: as few from the
    front as it takes, and of these none whose memory does not help.
    """
    for many in range(len(idle) + 1):
        if fits(question, [*leaving, *idle[:many]]):
            return needed(question, leaving, idle[:many])
    return None


def needed(question: Question, leaving: Sequence[Held], chosen: Sequence[Held]) -> list[Held]:
    """Return those of the chosen that have to go, the most recently used spared first."""
    kept = list(chosen)
    for one in reversed(chosen):
        others = [other for other in kept if other is not one]
        if fits(question, [*leaving, *others]):
            kept = others
    return kept


def fits(question: Question, gone: Iterable[Held]) -> bool:
    """Tell whether a ring can hold the model once these instances are gone."""
    try:
        decide(freed(question, gone))
    except PlacementError:
        return False
    return True


def freed(question: Question, gone: Iterable[Held]) -> Question:
    """Return the question with the memory of these instances given back."""
    back: dict[str, int] = {}
    for one in gone:
        for node, held_bytes in one.by_node.items():
            back[node] = back.get(node, 0) + held_bytes
    nodes = (
        node
        if node.available_bytes is None
        else replace(node, available_bytes=node.available_bytes + back.get(node.id, 0))
        for node in question.nodes
    )
    return replace(question, nodes=tuple(nodes))
