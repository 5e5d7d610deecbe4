"""How many layers each rank takes: plain by total bytes, weighed where embedding, head and context are told."""

from fractions import Fraction

import pytest
from clusters import cluster, placed, refused

from exo_celery.placement.demand import Demand
from exo_celery.placement.layers import split_layers
from exo_celery.records.instance import PlacementRequest
from exo_celery.records.model import ModelCard

CARD = ModelCard(id="org/model", storage_bytes=90, n_layers=9, hidden_size=12)
REQUEST = PlacementRequest(model="org/model")
WEIGHED = {"layers_bytes": 300, "embedding_bytes": 80, "head_bytes": 80}


@pytest.mark.parametrize(
    ("free", "counts"),
    [
        ([50, 50], [5, 4]),  # a tie of remainders goes to the smaller id
        ([200, 10, 10], [7, 1, 1]),  # at least one each
        ([46, 55], [4, 5]),
        ([70, 20], [7, 2]),
        ([100, 100, 15], [4, 4, 1]),
    ],
)
def test_split_by_largest_remainder_within_capacity(free: list[int], counts: list[int]) -> None:
    assert split_layers(free, ["a", "b", "c"][: len(free)], Demand.of(CARD, REQUEST)) == counts


def test_split_moves_only_what_is_too_much() -> None:
    # Shares of 9 layers are 5.4, 2.1, 1.5, so 5 + 2 + 2; the last holds one layer at most.
    assert split_layers([72, 28, 19], ["a", "b", "c"], Demand.of(CARD, REQUEST)) == [6, 2, 1]


def weighed(context: int | None, kv: int = 0) -> Demand:
    card = ModelCard(id="org/model", storage_bytes=460, n_layers=30, hidden_size=12, kv_bytes_per_token=kv, **WEIGHED)
    return Demand.of(card, PlacementRequest(model="org/model", context_tokens=context))


def test_head_is_work_of_the_last_rank() -> None:
    # facts of SmolLM2: 30 layers, a head worth 8 of them; two equal nodes do best with 19 and 11.
    assert split_layers([1000, 1000], ["a", "b"], weighed(100)) == [19, 11]
    assert split_layers([1000, 1000], ["a", "b"], weighed(None)) == [15, 15]


def test_embedding_and_head_take_memory_of_the_ends() -> None:
    demand = weighed(100)
    assert (demand.first_layers, demand.last_layers, demand.need, demand.least) == (8, 8, 46, 9)
    counts = split_layers([200, 400], ["a", "b"], demand)
    held = [demand.rank_bytes(counts[0], first=True, last=False), demand.rank_bytes(counts[1], first=False, last=True)]
    assert sum(counts) == 30
    assert held[0] <= 200
    assert held[1] <= 400


def test_context_is_reserved_with_the_layers() -> None:
    assert weighed(100, kv=3).layer_bytes == Fraction(600, 30)
    assert weighed(None, kv=3).layer_bytes == Fraction(460, 30)


def test_context_that_does_not_fit_is_refused() -> None:
    case = cluster({"a": 100}, model={"kv_bytes_per_token": 1})
    placed(case | {"context_tokens": 10})
    error = refused(case | {"context_tokens": 10, "concurrency": 2})
    assert error["code"] == "insufficient_memory"
    assert error["numbers"]["needed_bytes"] == 110


def test_each_rank_of_a_tensor_ring_holds_a_slice_of_the_layers_and_the_ends_whole() -> None:
    assert [weighed(None).slice_bytes(size) for size in (1, 2, 3)] == [460, 230, 154]
    assert [weighed(100).slice_bytes(size) for size in (1, 2, 3)] == [460, 310, 260]
    assert weighed(100, kv=3).slice_bytes(2) == 160 + 300
