"""A chosen ring, in numbers: what the decision hands to its explanation."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """Nodes by number in rank order; per rank its layers `[start, end)` and the bytes it will hold.

    `nodes` is the set that was searched: all usable ones, or with `ready-soonest` those ready in time. `passed` are
    other rings of that size that the search came across.
    """

    ring: tuple[int, ...]
    tensor: bool
    spans: tuple[tuple[int, int], ...]
    held_bytes: tuple[int, ...]
    exact: bool
    steps: int
    nodes: int
    passed: tuple[tuple[int, ...], ...] = ()
