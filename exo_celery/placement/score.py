"""How rings compare: worths for the default order, seconds for `ready-soonest`."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from exo_celery.placement.question import NodeFacts

# Bytes per second taken where a node has never been measured: a home line, and a plain SSD.
ASSUMED_DOWNLOAD_BPS: Final = 50e6
ASSUMED_LOAD_BPS: Final = 1e9


def worths(fractions: Sequence[Fraction], free_bytes: Sequence[int]) -> list[int]:
    """Return one integer per node; sums over sets of one size compare as the rules say.

    Three numbers are packed into one, the first the most significant: the downloaded fraction as parts of a common
    denominator, the free bytes, and a bit for the place of the id among all ids. The greater sum has more downloaded,
    then more memory, then the ids that come first in order. No two sets have the same sum and nothing is rounded.
    """
    count = len(fractions)
    whole = math.lcm(*{fraction.denominator for fraction in fractions})
    above_bytes = sum(free_bytes) + 1
    return [
        (fraction.numerator * (whole // fraction.denominator) * above_bytes + free << count) | 1 << count - 1 - i
        for i, (fraction, free) in enumerate(zip(fractions, free_bytes, strict=True))
    ]


def missing_bytes(node: NodeFacts, storage_bytes: int) -> int:
    """Return what a node must still fetch; what a failed download left behind does not count."""
    return math.ceil((1 - node.fraction) * storage_bytes)


def ready_seconds(node: NodeFacts, storage_bytes: int) -> float:
    """Estimate when a node could have the model in memory: missing bytes at its download speed, all at its load speed.

    A ring is ready with its slowest node. Loading counts the whole model, though a rank loads only its share: the split
    is not known yet, and a ring must not seem sooner only because it is longer.
    """
    fetch = node.download_bps or ASSUMED_DOWNLOAD_BPS
    load = node.load_bps or ASSUMED_LOAD_BPS
    return missing_bytes(node, storage_bytes) / fetch + storage_bytes / load
