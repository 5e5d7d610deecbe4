"""Numbers and names as people read them."""

from collections.abc import Sequence
from typing import Final

NAMED_AT_MOST: Final = 20


def size(count_bytes: int) -> str:
    """Write bytes with three digits: 18.5 GB, 640 MB; below a kilobyte as they are."""
    value, unit = float(count_bytes), "bytes"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{count_bytes} bytes" if unit == "bytes" else f"{value:.3g} {unit}"


def count(number: int, thing: str) -> str:
    """Write a number with its noun: 1 node, 3 nodes."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def names(ids: Sequence[str], most: int = NAMED_AT_MOST) -> str:
    """Write a list of names, the first `most` of them."""
    shown = ", ".join(ids[:most])
    return f"{shown} and {len(ids) - most} more" if len(ids) > most else shown
