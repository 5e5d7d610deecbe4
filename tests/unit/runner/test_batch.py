"""Rows that join and leave a batch keep their caches, whatever slot they are in."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache, RotatingKVCache

from exo_celery.runner.batch import MOST_PADDING, Batch, Row, merge
from exo_celery.runner.step import Admission

LAYERS = 2
Entry = KVCache | RotatingKVCache


def random(length: int) -> mx.array:
    return mx.random.normal((1, 3, length, 4))


def row(number: int, length: int, kind: type = KVCache) -> Row:
    """Return a prefilled row with random keys and values."""
    cache = [kind(max_size=64) if kind is RotatingKVCache else kind() for _ in range(LAYERS)]
    for entry in cache:
        entry.update_and_fetch(random(length), random(length))
    made = Row(Admission(row=number, tokens=(1,) * length), cache)
    made.length = length
    return made


def held(batch: Batch, which: Row) -> np.ndarray:
    """Return a row's keys and values as the batch holds them, (layer, key or value, head, position, size)."""
    return np.array([[np.array(part[0]) for part in entry.keys_and_values()] for entry in batch.cache(which)])


def own(which: Row) -> np.ndarray:
    """Return a row's keys and values as they were before it joined."""
    return np.array([[np.array(part[0]) for part in entry.keys_and_values()] for entry in which.cache])


def decode(batch: Batch, steps: int = 1) -> None:
    """Add a position to every slot, as decoding does."""
    for _ in range(steps):
        batch.tidy()
        for live in batch.rows:
            if live:
                live.length += 1
        for entry in batch.entries:
            new = mx.random.normal((len(batch.rows), 3, 1, 4))
            entry.update_and_fetch(new, new)


def check(batch: Batch, *rows: Row) -> None:
    for each in rows:
        before = own(each)
        assert np.array_equal(held(batch, each)[:, :, :, : before.shape[3]], before)
        assert held(batch, each).shape[3] == each.length


def full(lengths: tuple[int, ...] = (9, 5, 7, 3), kind: type = KVCache) -> tuple[Batch, list[Row]]:
    """Return a batch of rows that joined together, but for the last, and have been decoded."""
    rows = [row(number, length, kind) for number, length in enumerate(lengths)]
    batch = Batch()
    batch.join(rows[:-1], merge([each.cache for each in rows[:-1]]))
    decode(batch)
    batch.join(rows[-1:], rows[-1].cache)
    decode(batch)
    return batch, rows


def test_rows_join_together_and_alone() -> None:
    batch, rows = full()
    check(batch, *rows)
    assert batch.rows == rows


def test_a_row_moves_into_a_free_slot_and_nothing_else_moves() -> None:
    batch, rows = full()
    batch.leave({1})
    late = row(9, 6)
    batch.join([late], late.cache)
    assert batch.rows == [rows[0], late, rows[2], rows[3]]
    decode(batch)
    check(batch, rows[0], late, rows[2], rows[3])


def test_of_several_rows_some_move_in_and_the_rest_is_added() -> None:
    batch, rows = full()
    batch.leave({0, 2})
    late = [row(number, length) for number, length in ((7, 8), (8, 2), (9, 4))]
    batch.join(late, merge([each.cache for each in late]))
    assert batch.rows == [late[0], rows[1], late[1], rows[3], late[2]]
    decode(batch)
    check(batch, *late, rows[1], rows[3])


def test_a_row_that_is_longer_than_all_does_not_move_in() -> None:
    batch, rows = full()
    batch.leave({1})
    late = row(9, 40)
    batch.join([late], late.cache)
    assert batch.rows == [rows[0], rows[2], rows[3], late]
    check(batch, *batch.rows)


def test_free_slots_are_given_up_once_they_have_cost_as_much_as_that() -> None:
    batch, rows = full()
    batch.leave({1})
    decode(batch, 2)
    assert batch.rows == [rows[0], None, rows[2], rows[3]]
    decode(batch, 1)
    assert batch.rows == [rows[0], rows[2], rows[3]]
    check(batch, rows[0], rows[2], rows[3])


def test_positions_that_are_nobodys_are_given_up() -> None:
    batch, rows = full((MOST_PADDING + 30, 5, 7))
    batch.leave({0})
    late = row(9, 4)
    batch.join([late], late.cache)
    assert batch.entries[0]._idx > MOST_PADDING
    decode(batch)
    assert batch.entries[0]._idx == max(each.length for each in batch.rows if each)
    check(batch, late, rows[1], rows[2])


def test_the_last_to_leave_takes_the_batch_along() -> None:
    batch, _ = full()
    batch.leave({0, 1, 2, 3})
    assert (batch.rows, batch.entries) == ([], [])


@pytest.mark.parametrize("number", [0, 1, 3])
def test_other_caches_have_no_slots(number: int) -> None:
    batch, rows = full(kind=RotatingKVCache)
    batch.leave({number})
    left = [each for each in rows if each.number != number]
    assert batch.rows == left
    late = row(9, 6, RotatingKVCache)
    batch.join([late], late.cache)
    check(batch, *left, late)
