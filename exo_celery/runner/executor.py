"""What every rank does with a step: the same rows, the same caches, the same order; only its own layers."""

import copy
import logging
import struct
import threading
from collections.abc import Sequence
from typing import Any, Final

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache, make_prompt_cache, trim_prompt_cache

from exo_celery.runner.links import Link
from exo_celery.runner.load import Shard
from exo_celery.runner.sampling import Sampler, sample
from exo_celery.runner.step import Admission, Choice, Chunk, Sampled, Step

log = logging.getLogger(__name__)

# Buffers that MLX keeps for reuse are given back every so many steps.
STEPS_PER_CLEARING: Final = 256
# Rows of the trial batch: a number of heads that no model has, so that no mask fits by accident.
UNLIKELY_HEADS: Final = 13
DTYPES: Final = (mx.float32, mx.bfloat16, mx.float16)
HEADER: Final = struct.Struct("<BIII")  # dtype, batch, length, hidden


def pack(hidden: mx.array) -> bytes:
    """Return a hidden state (batch, length, hidden) as bytes."""
    header = HEADER.pack(DTYPES.index(hidden.dtype), *hidden.shape)
    return header + bytes(memoryview(hidden.reshape(-1).view(mx.uint8)))  # type: ignore[arg-type]


def unpack(frame: bytearray) -> mx.array:
    """Return the hidden state that `pack` wrote."""
    dtype, *shape = HEADER.unpack_from(frame)
    raw = mx.array(np.frombuffer(frame, np.uint8, offset=HEADER.size))
    return raw.view(DTYPES[dtype]).reshape(shape)


class Row:
    """A sequence: waiting for its prefill, or live."""

    def __init__(self, admission: Admission, cache: list[Any]) -> None:
        """Begin with a cache that holds the reused tokens."""
        self.number = admission.row
        self.sampler = Sampler(admission.sampling, admission.tokens)
        self.tokens = admission.tokens
        self.cache = cache
        self.prefilled = admission.reused

    @property
    def remaining(self) -> int:
        """Prompt tokens to prefill: all but the last, which the first decode step takes."""
        return len(self.tokens) - 1 - self.prefilled


class Executor:
    """One rank's state of the ring, and the only user of its model.

    `before` and `after` are the links to the neighbours whose hidden states come in and go out; None at the edges.
    `computing` is held while the machine computes, never while this rank waits: lanes take turns.
    """

    def __init__(self, shard: Shard, before: Link | None, after: Link | None, computing: threading.Lock) -> None:
        self._shard = shard
        self._computing = computing
        self._before, self._after = before, after
        self._waiting: dict[int, Row] = {}
        self._live: list[Row] = []
        self._cache: list[Any] = []
        self._merged = False
        self._entries: dict[int, tuple[list[Any], int]] = {}
        self._steps = 0

    @property
    def rows(self) -> tuple[int, ...]:
        """The numbers of the live rows, in the order of their tokens."""
        return tuple(row.number for row in self._live)

    def run(self, step: Step) -> Sampled | None:
        """Apply a step. Return what was sampled on the last rank, None elsewhere and when no row is live."""
        for keep in step.keep:
            self._entries[keep.entry] = self._kept(keep.row), keep.count
        if step.drop:
            self._drop(set(step.drop))
        inputs = list(step.tokens)
        for admission in step.admit:
            self._waiting[admission.row] = Row(admission, self._first_cache(admission))
        for entry in step.forget:
            del self._entries[entry]
        if step.prefill is not None:
            self._prefill(step.prefill)
        for row in [row for row in self._waiting.values() if row.remaining == 0]:
            self._join([row], row.cache, merged=False)
        inputs += [row.tokens[-1] for row in self._live[len(inputs) :]]
        self._steps += 1
        if self._steps % STEPS_PER_CLEARING == 0:
            mx.clear_cache()
        return self._decode(inputs) if inputs else None

    def _kept(self, number: int) -> list[Any]:
        """Return a copy of a live row's cache."""
        at = self.rows.index(number)
        cache = self._cache if self._merged else merge([self._cache])
        copied = [entry.extract(at) for entry in cache]
        with self._computing:
            mx.eval([entry.state for entry in copied])  # or it would keep the whole batch's cache alive
        return copied

    def _first_cache(self, admission: Admission) -> list[Any]:
        """Return the cache a row begins with: empty, or cut out of a kept entry."""
        if admission.entry is None:
            return make_prompt_cache(self._shard.model)
        kept, count = self._entries[admission.entry]
        cache = copy.deepcopy(kept)
        if count > admission.reused:
            trim_prompt_cache(cache, count - admission.reused)
        return cache

    def _drop(self, numbers: set[int]) -> None:
        for number in numbers & self._waiting.keys():
            del self._waiting[number]
        kept = [i for i, row in enumerate(self._live) if row.number not in numbers]
        if len(kept) == len(self._live):
            return
        self._live = [self._live[i] for i in kept]
        if not kept:
            self._cache, self._merged = [], False
            mx.clear_cache()
            return
        for entry in self._cache:
            entry.filter(kept)

    def _prefill(self, chunk: Chunk) -> None:
        """Run prompt tokens through the shard: a piece of one row, or the whole rest of several."""
        rows = [self._waiting[number] for number in chunk.rows]
        if len(rows) == 1:
            (row,) = rows
            end = row.prefilled + min(chunk.count, row.remaining)
            self._forward(mx.array([row.tokens[row.prefilled : end]]), row.cache)
            row.prefilled = end
            return
        cache = merge([row.cache for row in rows])
        lengths = [row.remaining for row in rows]
        longest = max(lengths)
        padding = [longest - length for length in lengths]
        for entry in cache if longest > min(lengths) else ():
            entry.prepare(lengths=lengths, right_padding=padding)
        padded = [row.tokens[row.prefilled : -1] + (0,) * n for row, n in zip(rows, padding, strict=True)]
        self._forward(mx.array(padded), cache)
        for entry in cache if longest > min(lengths) else ():
            entry.finalize()
        self._join(rows, cache, merged=True)

    def _join(self, rows: Sequence[Row], cache: list[Any], *, merged: bool) -> None:
        """Let prefilled rows go live, behind those that are."""
        for row in rows:
            del self._waiting[row.number]
            row.cache = []
        if not self._live:
            self._cache, self._merged = cache, merged
        else:
            if not self._merged:
                self._cache, self._merged = merge([self._cache]), True
            for entry, other in zip(self._cache, cache if merged else merge([cache]), strict=True):
                entry.extend(other)
        self._live += rows

    def _decode(self, inputs: list[int]) -> Sampled | None:
        samplers = [row.sampler for row in self._live]
        choices = self._forward(mx.array(inputs)[:, None], self._cache, samplers)
        return None if choices is None else Sampled(choices=tuple(choices))

    def _forward(
        self, tokens: mx.array, cache: list[Any], samplers: list[Sampler] | None = None
    ) -> list[Choice] | None:
        """Run tokens (batch, length) through the local layers; sample on the last rank, for the samplers given."""
        incoming = None if self._before is None else self._before.receive()
        with self._computing:
            boundary = self._shard.boundary
            boundary.incoming = None if incoming is None else unpack(incoming)
            logits = self._shard.model(tokens, cache=cache)
            hidden, boundary.incoming, boundary.outgoing = boundary.outgoing, None, None
            states = [entry.state for entry in cache]
            if self._after is None or hidden is None:
                mx.eval([logits] if samplers else [], states)
                return sample(logits[:, -1], samplers) if samplers else None
            mx.eval(hidden, states)
            outgoing = pack(hidden)
        self._after.send(outgoing)
        return None


def mergeable(entry: Any) -> bool:
    """Say whether a cache entry can become part of a batch."""
    parts = getattr(entry, "caches", (entry,))
    return all(hasattr(part, "merge") for part in parts)


def merge(caches: list[list[Any]]) -> list[Any]:
    """Return the caches of several rows as one batch's, layer by layer."""
    return [entries[0].merge(list(entries)) for entries in zip(*caches, strict=True)]


def batches(shard: Shard) -> bool:
    """Say whether rows can share a step; mlx-lm cannot batch every architecture. Nothing is computed here."""
    caches = [make_prompt_cache(shard.model) for _ in range(UNLIKELY_HEADS)]
    if not all(mergeable(entry) for entry in caches[0]):
        return False
    try:
        merged = merge(caches)
        for length in (2, 1):
            shard.model(mx.zeros((UNLIKELY_HEADS, length), mx.int32), cache=merged)
    except ValueError as error:
        log.info("rows are served one at a time, mlx-lm cannot batch them: %s", error)
        return False
    return True


def trims(shard: Shard) -> bool:
    """Say whether the model's caches can be cut back to any length: sliding windows and state spaces cannot."""
    return all(isinstance(entry, KVCache) for entry in make_prompt_cache(shard.model))
