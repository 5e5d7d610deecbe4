"""The rows that are decoded together, and their caches. A row keeps its slot; one that has left leaves it free.

Taking a row out of mlx-lm's batched caches, or adding one, copies them all, which takes as long as a step. A free slot
costs next to nothing, and the next row can move in with a copy of its own cache alone. Every rank decides the same.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache, KVCache

from exo_celery.runner.sampling import Sampler
from exo_celery.runner.step import Admission

# The batch is moved to the left once so many positions before its longest row are of nobody.
MOST_PADDING: Final = 128


class Row:
    """A sequence: waiting for its prefill, or live in a slot. `length` is how many tokens its cache holds."""

    def __init__(self, admission: Admission, cache: list[Any]) -> None:
        """Begin with a cache that holds the reused tokens."""
        self.number = admission.row
        self.sampler = Sampler(admission.sampling, admission.tokens)
        self.tokens = admission.tokens
        self.cache = cache
        self.length = admission.reused


class Batch:
    """The live rows, by slot: None where one is free."""

    def __init__(self) -> None:
        self.rows: list[Row | None] = []
        self.entries: list[Any] = []
        self._merged = False
        self._wasted = 0  # row steps that free slots have cost since the batch was last made smaller

    def slot(self, row: Row) -> int:
        """Return where a live row is."""
        return self.rows.index(row)

    def cache(self, row: Row) -> list[Any]:
        """Return a copy of a live row's cache, not computed yet."""
        entries = self.entries if self._merged else merge([self.entries])
        return [entry.extract(self.slot(row)) for entry in entries]

    def join(self, rows: Sequence[Row], entries: list[Any]) -> None:
        """Let prefilled rows go live; `entries` is the cache of one, or the merged one of several."""
        merged = len(rows) > 1
        if not any(self.rows):
            self.rows, self.entries, self._merged, self._wasted = list(rows), entries, merged, 0
            return
        if not self._merged:
            self.entries, self._merged = merge([self.entries]), True
        rest = self._move_in(rows, entries)
        if not rest:
            return
        if None in self.rows:
            self.compact()
        for entry, other in zip(self.entries, entries if merged else merge([entries]), strict=True):
            if len(rest) < len(rows):
                other.filter(list(range(len(rows) - len(rest), len(rows))))
            entry.extend(other)
        self.rows += rest

    def _move_in(self, rows: Sequence[Row], entries: list[Any]) -> Sequence[Row]:
        """Give rows free slots, from the first row on; return those for which there is none that is long enough."""
        free = [slot for slot, row in enumerate(self.rows) if row is None]
        if not self._has_slots(entries) or max(row.length for row in rows) > self.entries[0]._idx:
            return rows
        moved = list(enumerate(zip(free, rows, strict=False)))
        for at, (slot, row) in moved:
            self.rows[slot] = row
            for entry, other in zip(self.entries, entries, strict=True):
                move_in(entry, slot, other, at, row.length)
        return rows[len(moved) :]

    def leave(self, numbers: Collection[int]) -> None:
        """Take out rows by their numbers."""
        self.rows = [None if row is None or row.number in numbers else row for row in self.rows]
        if not any(self.rows):
            self.rows, self.entries, self._merged = [], [], False
            mx.clear_cache()
        elif not self._has_slots(self.entries):
            self.compact()

    def tidy(self) -> None:
        """Make the batch smaller once free slots, or positions that are nobody's, have cost as much as that does."""
        free = self.rows.count(None)
        self._wasted += free
        longest = max(row.length for row in self.rows if row is not None)
        padding = self.entries[0]._idx - longest if self._has_slots(self.entries) else 0
        if (free and self._wasted >= len(self.rows) - free) or padding > MOST_PADDING:
            self.compact()

    def compact(self) -> None:
        """Keep the slots of live rows only."""
        kept = [slot for slot, row in enumerate(self.rows) if row is not None]
        self._wasted = 0
        self.rows = [self.rows[slot] for slot in kept]
        for entry in self.entries:
            entry.filter(kept)

    def _has_slots(self, entries: list[Any]) -> bool:
        """Say whether rows can move in: only into plain batches of keys and values."""
        kinds = {type(entry) for entry in self.entries} | {type(entry) for entry in entries}
        return self._merged and kinds <= {BatchKVCache, KVCache}


def move_in(entry: Any, slot: int, other: Any, at: int, length: int) -> None:
    """Copy a row out of its own cache, or out of place `at` of a batch, into a slot; it ends where the others do."""
    end = entry._idx
    theirs = other._idx if isinstance(other, BatchKVCache) else other.offset
    source = (slice(at, at + 1), slice(None), slice(theirs - length, theirs))
    target = (slice(slot, slot + 1), slice(None), slice(end - length, end))
    entry.keys[target] = other.keys[source]
    entry.values[target] = other.values[source]
    entry.left_padding[slot] = end - length
    entry.offset[slot] = length


def parts_of(entry: Any) -> tuple[Any, ...]:
    """Return the caches that a cache entry is made of: itself, or those of a list of them."""
    return tuple(getattr(entry, "caches", (entry,)))


def mergeable(entry: Any) -> bool:
    """Say whether a cache entry can become part of a batch."""
    return all(hasattr(part, "merge") for part in parts_of(entry))


def settle(entries: Sequence[Any]) -> None:
    """Compute all that a cache holds: what is left to compute is bound to the thread that it was asked for in."""
    mx.eval([vars(part) for entry in entries for part in parts_of(entry)])


def merge(caches: list[list[Any]]) -> list[Any]:
    """Return the caches of several rows as one batch's, layer by layer."""
    return [entries[0].merge(list(entries)) for entries in zip(*caches, strict=True)]
