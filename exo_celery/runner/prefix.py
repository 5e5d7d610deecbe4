"""Which prompts' beginnings are in the ranks' memory already. Rank 0 decides, all ranks do the same. Pure.

Entries are sequences of tokens whose caches are kept; the least recently used go first. An exact index is for models
whose caches cannot be cut back (sliding windows, state spaces): there an entry helps only if a prompt begins with all
of it.
"""

from collections import OrderedDict
from typing import Final

import numpy as np
import numpy.typing as npt

# Reusing a few tokens saves less than copying their cache costs.
LEAST_TOKENS: Final = 32

Tokens = npt.NDArray[np.int64]


class PrefixIndex:
    """The kept entries, at most `budget_tokens` of them in all."""

    def __init__(self, budget_tokens: int, *, exact: bool) -> None:
        self._budget = budget_tokens
        self._exact = exact
        self._entries: OrderedDict[int, Tokens] = OrderedDict()
        self._next = 0

    @property
    def tokens(self) -> int:
        """How many tokens are kept."""
        return sum(len(entry) for entry in self._entries.values())

    def find(self, tokens: tuple[int, ...]) -> tuple[int, int] | None:
        """Return the entry that saves most of computing `tokens`, and how many of them it saves."""
        wanted = np.array(tokens, np.int64)
        best: tuple[int, int] | None = None
        for number, entry in self._entries.items():
            shared = common(entry, wanted)
            usable = shared >= LEAST_TOKENS and (not self._exact or shared == len(entry))
            if usable and (best is None or shared > best[1]):
                best = number, shared
        if best is not None:
            self._entries.move_to_end(best[0])
        return best

    def add(self, tokens: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
        """Keep a sequence; return its entry and those forgotten for it, or None when it is not worth it."""
        new = np.array(tokens, np.int64)
        if not LEAST_TOKENS <= len(new) <= self._budget or self._covered(new):
            return None
        forgotten = [] if self._exact else [n for n, old in self._entries.items() if common(old, new) == len(old)]
        for number in forgotten:
            del self._entries[number]
        while self.tokens + len(new) > self._budget:
            forgotten.append(self._entries.popitem(last=False)[0])
        number, self._next = self._next, self._next + 1
        self._entries[number] = new
        return number, tuple(forgotten)

    def _covered(self, new: Tokens) -> bool:
        """Say whether an entry can stand for a new one already."""
        return any(
            common(entry, new) == len(new) and (not self._exact or len(entry) == len(new))
            for entry in self._entries.values()
        )


def common(one: Tokens, other: Tokens) -> int:
    """Return the length of the common beginning."""
    length = min(len(one), len(other))
    differing = one[:length] != other[:length]
    return int(differing.argmax()) if differing.any() else length
