"""The rings that a search has found so far, and the steps that it has left."""

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

REMEMBERED: Final = 5


class OutOfStepsError(Exception):
    """The search has used up its steps: whatever it has found so far stands, but may not be the best."""


@dataclass(slots=True)
class Steps:
    """A bound on work, counted and not timed, so that a search always stops at the same place."""

    left: int

    def take(self, count: int = 1) -> None:
        """Use up steps.

        Raises:
            OutOfStepsError: there are none left.
        """
        self.left -= count
        if self.left < 0:
            raise OutOfStepsError

    def suffice(self, most: int, work: Callable[["Steps"], None]) -> bool:
        """Do work with `most` of the steps, and tell whether that was enough; what it did not use is here again.

        Raises:
            OutOfStepsError: it was not, and no more are left.
        """
        few = Steps(min(most, self.left))
        self.take(few.left)
        try:
            work(few)
        except OutOfStepsError:
            if not self.left:
                raise
            return False
        self.left += few.left
        return True


class Found:
    """The `keep` best rings of one size, by worth. A set of nodes has its own worth, so none is kept twice.

    A few that were pushed out are remembered: they are no worse than what was not found.
    """

    def __init__(self, keep: int = 1) -> None:
        self.keep = keep
        self.best: list[tuple[int, tuple[int, ...]]] = []
        self.bar = -1

    def offer(self, worth: int, ring: Iterable[int]) -> None:
        """Keep a ring if it is among the best; `bar` is the worth that the next one must exceed."""
        if worth <= self.bar or any(worth == other for other, _ in self.best):
            return
        insort(self.best, (worth, tuple(ring)), key=lambda entry: -entry[0])
        del self.best[max(self.keep, REMEMBERED) :]
        if len(self.best) >= self.keep:
            self.bar = self.best[self.keep - 1][0]

    @property
    def rings(self) -> list[tuple[int, ...]]:
        """The `keep` best, best first."""
        return [ring for _, ring in self.best[: self.keep]]

    @property
    def passed(self) -> list[tuple[int, ...]]:
        """Rings that were among the best for a while, best first; better ones than these may never have been seen."""
        return [ring for _, ring in self.best[self.keep :]]
