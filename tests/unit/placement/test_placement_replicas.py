"""Several rings for one model: apart where they can be, on shared nodes where memory allows, all or none."""

from dataclasses import replace

import pytest

from exo_celery.errors import PlacementError
from exo_celery.placement.place import Placement
from exo_celery.placement.question import Question, ask
from exo_celery.placement.replicas import place_beside, place_replicas
from exo_celery.placement.room import Held, to_unload
from exo_celery.records.download import Download, DownloadStatus
from exo_celery.records.instance import PlacementRequest
from exo_celery.records.model import ModelCard
from exo_celery.records.node import Node

MODEL = "org/model"


def question(memory: dict[str, int], replicas: int = 1, size: int = 90, **request: object) -> Question:
    """A model of nine layers and nodes with these available bytes, all linked."""
    card = ModelCard(id=MODEL, storage_bytes=size, n_layers=9, hidden_size=12)
    nodes = [Node(id=name, ram_available_bytes=free, backends=("MlxCpu",)) for name, free in memory.items()]
    return ask(card, PlacementRequest(model=MODEL, replicas=replicas, **request), nodes, {})


def rings(found: list[Placement]) -> list[set[str]]:
    return [set(one.nodes) for one in found]


def test_rings_are_apart_though_one_node_could_hold_them_all() -> None:
    found = place_replicas(question({"a": 500, "b": 50, "c": 50, "d": 100}, replicas=3))
    assert rings(found) == [{"a"}, {"d"}, {"b", "c"}]
    assert all(one.decision["shared_nodes"] == [] for one in found)
    assert found[1].why.startswith("Replica 2 of 3: ")
    assert found[1].why.endswith("No other replica is on its nodes.")


def test_the_best_ring_gives_way_where_it_would_leave_the_others_none() -> None:
    # The best pair by memory is a, b; what it leaves holds nothing, and all four nodes would have to be shared.
    found = place_replicas(question({"a": 60, "b": 60, "c": 40, "d": 40}, replicas=2))
    assert sorted(len(ring) for ring in rings(found)) == [2, 2]
    assert not set.intersection(*rings(found))


def test_nodes_are_shared_only_when_they_must_be_and_only_within_their_memory() -> None:
    found = place_replicas(question({"a": 200, "b": 100}, replicas=3))
    assert sorted(map(sorted, rings(found))) == [["a"], ["a"], ["b"]]
    promised = {"a": 0, "b": 0}
    for one in found:
        for node, held in one.reserved_bytes.items():
            promised[node] += held
    assert promised == {"a": 180, "b": 90}
    assert "It shares a with another." in found[-1].why


def test_all_or_none_and_in_numbers() -> None:
    with pytest.raises(PlacementError, match=r"^2 of 3 replicas fit: for one more, org/model needs 90") as refused:
        place_replicas(question({"a": 100, "b": 100, "c": 60}, replicas=3))
    assert refused.value.code == "insufficient_memory"
    assert (refused.value.numbers["replicas"], refused.value.numbers["replicas_fit"]) == (3, 2)
    with pytest.raises(PlacementError, match=r"^0 of 2 replicas fit"):
        place_replicas(question({"a": 50}, replicas=2))
    with pytest.raises(PlacementError, match=r"^org/model needs 90"):
        place_replicas(question({"a": 50}))


def test_what_was_asked_of_a_ring_holds_for_each() -> None:
    found = place_replicas(question({"a": 99, "b": 99, "c": 99, "d": 99}, replicas=2, min_nodes=2))
    assert [len(ring) for ring in rings(found)] == [2, 2]
    assert not set.intersection(*rings(found))
    in_both = place_replicas(question({"a": 200, "b": 80, "c": 80}, 2, min_nodes=2, required_nodes=("a",)))
    assert [sorted(ring) for ring in rings(in_both)] == [["a", "b"], ["a", "c"]]
    without = place_replicas(question({"a": 300, "b": 100, "c": 100}, 2, excluded_nodes=("a",)))
    assert rings(without) == [{"b"}, {"c"}]


def test_nodes_of_other_replicas_are_not_called_excluded() -> None:
    found = place_replicas(question({"a": 100, "b": 100}, replicas=2))
    assert [group["reason"] for group in found[1].decision["left_out"]] == ["holds_replica"]


def test_a_lost_replica_keeps_clear_of_the_others_where_it_can() -> None:
    both = question({"a": 300, "b": 100}, replicas=2)
    assert place_beside(both, 2, {"a"}).nodes == ("b",)
    alone = question({"a": 300, "b": 20}, replicas=2)
    found = place_beside(alone, 2, {"a"})
    assert found.nodes == ("a",)
    assert found.why.startswith("Replica 2 of 2")
    assert "shares a" in found.why


def test_one_alone_is_placed_as_ever() -> None:
    whole = Download(node="b", model=MODEL, status=DownloadStatus.COMPLETED, downloaded_bytes=90, total_bytes=90)
    asked = question({"a": 500, "b": 100})
    card = asked.card
    nodes = [Node(id=one.id, ram_available_bytes=one.available_bytes, backends=("MlxCpu",)) for one in asked.nodes]
    (found,) = place_replicas(ask(card, asked.request, nodes, {"b": whole}))
    assert found.nodes == ("b",)
    assert "Replica" not in found.why


FULL = {"a": 10, "b": 10, "c": 10}
OLD, MIDDLE, YOUNG = Held("old", {"a": 30}), Held("middle", {"b": 90}), Held("young", {"c": 90})


def test_nothing_goes_where_nothing_has_to() -> None:
    assert to_unload(question({"a": 100}), [], [OLD]) == []


def test_the_least_recently_used_goes_and_nobody_whose_memory_does_not_help() -> None:
    assert to_unload(question(FULL), [], [MIDDLE, YOUNG]) == [MIDDLE]
    # 40 + 10 + 10 bytes hold 6 layers of 9: the oldest is no help once the next one goes.
    assert to_unload(question(FULL), [], [OLD, MIDDLE, YOUNG]) == [MIDDLE]
    # Here it takes both.
    assert to_unload(question(FULL, size=120), [], [OLD, MIDDLE]) == [OLD, MIDDLE]


def test_memory_that_is_being_given_back_already_is_counted() -> None:
    assert to_unload(question(FULL), [MIDDLE], [YOUNG]) == []


def test_nobody_goes_in_vain() -> None:
    assert to_unload(question(FULL, size=900), [], [OLD, MIDDLE, YOUNG]) is None
    assert to_unload(question(FULL, min_nodes=4), [], [OLD, MIDDLE, YOUNG]) is None
    silent = question(FULL)
    silent = replace(silent, nodes=tuple(replace(node, available_bytes=None) for node in silent.nodes))
    assert to_unload(silent, [], [MIDDLE]) is None
