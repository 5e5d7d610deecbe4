"""How many lines of a batch may be in work at once. PURE."""

from collections.abc import Iterable, Sequence
from typing import Final

from exo_celery.records.batch import Batch, BatchStatus
from exo_celery.records.instance import Instance, InstanceStatus

KEPT_FREE: Final = 2  # slots for whoever waits for an answer


def room(instances: Iterable[Instance], model: str, default_slots: int) -> int:
    """Return how many lines all batches together may have in work for a model: the slots of its instances less two."""
    ready = [one for one in instances if one.model == model and one.status is InstanceStatus.READY]
    slots = sum(one.ranks[0].slots for one in ready if 0 in one.ranks) or default_slots
    return max(1, slots - KEPT_FREE)


def share(available: int, model: str, batch_id: str, active: Sequence[Batch]) -> int:
    """Return a batch's part of the room for a model: equal parts, what is left over goes to the oldest."""
    sharing = [one.id for one in active if one.status is BatchStatus.IN_PROGRESS and model in one.lines]
    if batch_id not in sharing:
        return 0
    part, over = divmod(available, len(sharing))
    return part + (sharing.index(batch_id) < over)
