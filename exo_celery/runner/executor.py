"""What every rank does with a step: the same rows, the same caches, the same order; only its own layers."""

import copy
import logging
import struct
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache, make_prompt_cache, trim_prompt_cache

from exo_celery.runner.batch import Batch, Row, merge, mergeable, settle
from exo_celery.runner.cores import ONE_CORE, Cores
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


class Executor:
    """One rank's state of the ring, and the only user of its model.

    `before` and `after` are the links to the neighbours whose hidden states come in and go out; None at the edges.
    `computing` is held while the machine computes, never while this rank waits: lanes take turns. A rank alone has
    `cores` for parts of its prefills.
    """

    def __init__(
        self,
        shard: Shard,
        before: Link | None,
        after: Link | None,
        computing: AbstractContextManager[Any],
        cores: Cores = ONE_CORE,
    ) -> None:
        self._shard = shard
        self._computing, self._cores = computing, cores
        self._before, self._after = before, after
        self._waiting: dict[int, Row] = {}
        self._live: list[Row] = []
        self._batch = Batch()
        self._entries: dict[int, tuple[list[Any], int]] = {}
        self._steps = 0

    @property
    def rows(self) -> tuple[int, ...]:
        """The numbers of the live rows, in the order of their tokens."""
        return tuple(row.number for row in self._live)

    def run(self, step: Step) -> Sampled | None:
        """Apply a step. Return what was sampled on the last rank, None elsewhere and where nothing is to be sampled."""
        for keep in step.keep:
            self._entries[keep.entry] = self._kept(keep.row), keep.count
        if step.drop:
            self._drop(set(step.drop))
        for admission in step.admit:
            self._waiting[admission.row] = Row(admission, self._first_cache(admission))
        for entry in step.forget:
            del self._entries[entry]
        self._steps += 1
        if self._steps % STEPS_PER_CLEARING == 0:
            mx.clear_cache()
        if step.prefill is not None:
            return self._prefill(step.prefill)
        return self._decode(step.tokens) if step.tokens else None

    def _kept(self, number: int) -> list[Any]:
        """Return a copy of a live row's cache."""
        copied = self._batch.cache(next(row for row in self._live if row.number == number))
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
        if any(row.number in numbers for row in self._live):
            self._live = [row for row in self._live if row.number not in numbers]
            self._batch.leave(numbers)

    def _prefill(self, chunk: Chunk) -> Sampled | None:
        """Run prompt tokens through the shard; let the rows that are whole go live, with their first tokens."""
        parts = self._cores.split([self._waiting[number] for number in chunk.rows])
        done = self._cores.run([partial(self._prefill_part, rows, chunk) for rows in parts])
        for rows, (cache, _) in zip(parts, done, strict=True):
            if chunk.completes:
                self._batch.join(rows, cache)
                self._live += rows
        return sampled(choice for _, choices in done for choice in choices)

    def _prefill_part(self, rows: Sequence[Row], chunk: Chunk) -> tuple[list[Any], list[Choice]]:
        """Run some rows' tokens of a chunk; return their cache and what was sampled."""
        pieces = [row.tokens[row.length : row.length + chunk.count] for row in rows]
        lengths = [len(piece) for piece in pieces]
        padding = [max(lengths) - length for length in lengths]
        cache = rows[0].cache if len(rows) == 1 else merge([row.cache for row in rows])
        padded = cache if any(padding) else ()
        for entry in padded:
            entry.prepare(lengths=lengths, right_padding=padding)
        tokens = mx.array([piece + (0,) * n for piece, n in zip(pieces, padding, strict=True)])
        samplers = [row.sampler for row in rows] if chunk.completes else []
        choices = self._forward(tokens, cache, samplers, mx.array(lengths) - 1)
        for entry in padded:
            entry.finalize()
        with self._computing:
            settle(cache)
        for row, length in zip(rows, lengths, strict=True):
            row.length += length
        return cache, choices

    def _decode(self, inputs: Sequence[int]) -> Sampled | None:
        """Run the latest tokens of all live rows through the shard."""
        self._batch.tidy()
        token_of = dict(zip(self._live, inputs, strict=True))
        for row in self._live:
            row.length += 1
        slots = self._batch.rows
        tokens = mx.array([[token_of[row] if row else 0] for row in slots])
        choices = self._forward(tokens, self._batch.entries, [row.sampler if row else None for row in slots])
        chosen = dict(zip([row for row in slots if row], choices, strict=False))
        return sampled(chosen[row] for row in self._live if chosen)

    def _forward(
        self, tokens: mx.array, cache: list[Any], samplers: Sequence[Sampler | None], ends: mx.array | None = None
    ) -> list[Choice]:
        """Run tokens (batch, length) through the local layers; sample on the last rank, for the samplers given.

        `ends` (batch,) are the positions that are sampled, None where there is only one.
        """
        incoming = None if self._before is None else self._before.receive()
        with self._computing:
            boundary = self._shard.boundary
            boundary.incoming = None if incoming is None else unpack(incoming)
            boundary.ends = ends if samplers and self._after is None else None
            logits = self._shard.model(tokens, cache=cache)
            hidden, boundary.incoming, boundary.outgoing = boundary.outgoing, None, None
            states = [entry.state for entry in cache]
            if self._after is None:
                if samplers:
                    return sample(at_ends(logits, ends), samplers, states)
                mx.eval(states)
                return []
            assert hidden is not None
            mx.eval(hidden, states)
            outgoing = pack(hidden)
        self._after.send(outgoing)
        return []


def sampled(choices: Iterable[Choice]) -> Sampled | None:
    """Return what the last rank answers; the others have chosen nothing."""
    found = tuple(choices)
    return Sampled(choices=found) if found else None


def at_ends(logits: mx.array, ends: mx.array | None) -> mx.array:
    """Return the logits (batch, vocabulary) that are sampled; the model narrowed them itself where it could."""
    if ends is None or logits.shape[1] == 1:
        return logits[:, -1]
    return mx.take_along_axis(logits, ends[:, None, None], axis=1)[:, 0]


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
