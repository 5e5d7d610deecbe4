"""Which prompts' beginnings are in the ranks' memory already. Rank 0 decides, all ranks do the same. Pure.

Entries are sequences of tokens whose caches are kept; the least recently used go first. Of those that nobody has come
back to only the last few stay: thousands of prompts that come once neither fill the memory nor push out the
conversations. An exact index is for models whose caches cannot be cut back (sliding windows, state spaces): there an
entry helps only if a prompt begins with all of it.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

# Reusing a few tokens saves less than copying their cache costs.
LEAST_TOKENS: Final = 32

Tokens = npt.NDArray[np.int64]


@dataclass
class Entry:
    """A kept sequence, and whether somebody came back to it or to its beginning."""

    tokens: Tokens
    used: bool

    def __len__(self) -> int:
        return len(self.tokens)


class PrefixIndex:
    """The kept entries, at most `budget_tokens` in all; at most `most_unused` of them have not helped anybody yet."""

    def __init__(self, budget_tokens: int, most_unused: int, *, exact: bool) -> None:
        self._budget = budget_tokens
        self._most_unused = most_unused
        self._exact = exact
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._next = 0

    @property
    def tokens(self) -> int:
        """How many tokens are kept."""
        return sum(map(len, self._entries.values()))

    def find(self, tokens: tuple[int, ...]) -> tuple[int, int] | None:
        """Return the entry that saves most of computing `tokens`, and how many of them it saves.

        Of several that save about as much it is one that has helped before: one is enough to keep.
        """
        wanted = np.array(tokens, np.int64)
        best, merit = None, (0, False, 0)
        for number, entry in self._entries.items():
            shared = common(entry.tokens, wanted)
            usable = shared >= LEAST_TOKENS and (not self._exact or shared == len(entry))
            if usable and (shared // LEAST_TOKENS, entry.used, shared) > merit:
                best, merit = number, (shared // LEAST_TOKENS, entry.used, shared)
        if best is None:
            return None
        self._entries[best].used = True
        self._entries.move_to_end(best)
        return best, merit[-1]

    def add(self, tokens: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
        """Keep a sequence; return its entry and those forgotten for it, or None when it is not worth it."""
        new = np.array(tokens, np.int64)
        if not LEAST_TOKENS <= len(new) <= self._budget or self._covered(new):
            return None
        begun = [] if self._exact else [number for number, old in self._entries.items() if begins(new, old)]
        replaced = [self._entries.pop(number) for number in begun]
        number, self._next = self._next, self._next + 1
        self._entries[number] = Entry(new, used=any(entry.used for entry in replaced))
        return number, (*begun, *self._surplus())

    def _surplus(self) -> list[int]:
        """Forget what is too much, oldest first: of the entries that have not helped, then of all."""
        unused = [number for number, entry in self._entries.items() if not entry.used]
        surplus = unused[: -self._most_unused]
        for number in surplus:
            del self._entries[number]
        while self.tokens > self._budget:
            surplus.append(self._entries.popitem(last=False)[0])
        return surplus

    def _covered(self, new: Tokens) -> bool:
        """Say whether an entry can stand for a new one already."""
        return any(
            common(entry.tokens, new) == len(new) and (not self._exact or len(entry) == len(new))
            for entry in self._entries.values()
        )


def begins(whole: Tokens, entry: Entry) -> bool:
    """Say whether a sequence begins with all of an entry."""
    return common(entry.tokens, whole) == len(entry)


def common(one: Tokens, other: Tokens) -> int:
    """Return the length of the common beginning."""
    length = min(len(one), len(other))
    differing = one[:length] != other[:length]
    return int(differing.argmax()) if differing.any() else length
