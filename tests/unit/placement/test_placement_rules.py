"""The rules one by one: the reference's change 1767, each improvement on it, and each refusal with its numbers."""

from typing import Any

import pytest
from clusters import cluster, done, part, placed, refused

from exo_celery.errors import PlacementError
from exo_celery.placement.place import place
from exo_celery.placement.question import ask
from exo_celery.records.instance import PlacementRequest
from exo_celery.records.model import ModelCard
from exo_celery.records.node import Node

CARD = ModelCard(id="org/model", storage_bytes=90, n_layers=9, hidden_size=12)
REQUEST = PlacementRequest(model="org/model")

# What change 1767 of the reference brought.


def test_completed_download_is_preferred_to_none_on_equal_memory() -> None:
    assert placed(cluster({"a": 100, "b": 100}, downloads={"b": done()}))["nodes"] == ["b"]


def test_eighty_percent_is_preferred_to_thirty() -> None:
    downloads = {"a": part("ongoing", 30, 100), "b": part("pending", 80, 100)}
    found = placed(cluster({"a": 100, "b": 100}, downloads=downloads))
    assert found["nodes"] == ["b"]
    assert found["download_score"] == 0.8


def test_failed_download_counts_nothing_so_slightly_more_memory_wins() -> None:
    found = placed(cluster({"a": 100, "b": 101}, downloads={"a": part("failed", 89)}))
    assert found["nodes"] == ["b"]
    assert found["decision"]["rule"] == "most_memory"


# What the reference gets wrong for its users (each seen there), and what we do.


def test_more_bytes_than_the_model_do_not_beat_a_completed_download() -> None:
    downloads = {"a": part("ongoing", 120, 100), "b": done()}
    found = placed(cluster({"a": 100, "b": 101}, downloads=downloads))
    assert found["nodes"] == ["b"]
    assert found["download_score"] == 1


def test_capacity_is_counted_in_layers_and_the_next_ring_is_taken() -> None:
    # 46 + 45 bytes are enough, but hold only 4 + 4 of 9 layers of 10 bytes.
    found = placed(cluster({"a": 46, "b": 55, "c": 45}, downloads={"a": done(), "c": done()}))
    assert found["nodes"] == ["a", "b"]
    assert found["layer_counts"] == {"a": 4, "b": 5}


def test_tensor_asks_each_node_for_its_share() -> None:
    case = cluster({"a": 96, "b": 6}, sharding="Tensor", model={"storage_bytes": 100})
    error = refused(case)
    assert error["code"] == "insufficient_memory"
    assert error["numbers"]["short_bytes"] == 4  # one node of 96 is nearer than two slices of 50


def test_larger_ring_with_the_backend_is_taken_where_the_smallest_lacks_it() -> None:
    case = cluster({"a": 60, "b": 60, "c": 30, "d": 30, "e": 30})
    for node in case["nodes"][:2]:
        node["backends"] = ["MlxCpu"]
    case["model"]["backends"] = ["MlxMetal"]
    assert placed(case)["nodes"] == ["c", "d", "e"]


def test_larger_ring_with_rdma_is_taken_where_the_smallest_lacks_it() -> None:
    edges = [["a", "b"], ["b", "c", "rdma"], ["c", "d", "rdma"], ["d", "b", "rdma"]]
    case = cluster({"a": 60, "b": 60, "c": 20, "d": 20}, edges, instance_meta="MlxJaccl")
    for node in case["nodes"]:
        node["rdma_enabled"] = True
    assert placed(case)["nodes"] == ["b", "c", "d"]
    assert placed(case | {"instance_meta": "MlxRing"})["nodes"] == ["a", "b"]


def test_reserved_memory_is_not_promised_twice() -> None:
    nodes = [Node(id="a", ram_available_bytes=100, backends=("MlxCpu",))]
    nodes.append(nodes[0].evolve(id="b", ram_available_bytes=95))
    first = place(ask(CARD, REQUEST, nodes, {}))
    assert first.nodes == ("a",)
    second = place(ask(CARD, REQUEST, nodes, {}, reserved_bytes=first.reserved_bytes))
    assert second.nodes == ("b",)
    reserved = first.reserved_bytes | second.reserved_bytes
    with pytest.raises(PlacementError, match="180 bytes more are promised to loading instances") as caught:
        place(ask(CARD, REQUEST, nodes, {}, reserved_bytes=reserved))
    assert caught.value.code == "insufficient_memory"


@pytest.mark.parametrize(
    ("case", "code", "numbers"),
    [
        (
            cluster({"a": 50, "b": 50, "c": 50}, [["a", "b"], ["b", "c"]], min_nodes=3),
            "no_two_way_ring",
            {"min_nodes": 3, "two_way_links": 2, "nodes": 3},
        ),
        (cluster({"a": 50, "b": 50}, min_nodes=3), "too_few_nodes", {"min_nodes": 3, "nodes": 2, "excluded": 0}),
        (
            cluster({"a": 50, "b": 50}, min_nodes=2, excluded_nodes=["a"]),
            "too_few_nodes",
            {"min_nodes": 2, "nodes": 2, "excluded": 1},
        ),
        (cluster({"a": 50, "b": 50}, required_nodes=["gone"]), "required_node_unknown", {"unknown_nodes": ["gone"]}),
        (cluster({"a": 99}, required_nodes=["a"], excluded_nodes=["a"]), "required_node_excluded", {"nodes": ["a"]}),
        (cluster({"a": 99, "b": 99}, min_nodes=2, max_nodes=1), "size_range", {"min_nodes": 2, "max_nodes": 1}),
        (
            cluster({"a": 9, "b": 9}, min_nodes=2, model={"n_layers": 1}),
            "too_few_layers",
            {"min_nodes": 2, "n_layers": 1},
        ),
        (cluster({"a": None, "b": 99}, min_nodes=2), "no_report", {"nodes": ["a"], "count": 1}),
        (cluster({"a": None, "b": 99}, required_nodes=["a"]), "no_report", {"nodes": ["a"]}),
        (cluster({"a": 99}, labels=["gpu"]), "label_missing", {"nodes": ["a"]}),
        (cluster({"a": 99}, model={"backends": ["Other"]}), "no_shared_backend", {"nodes": ["a"]}),
        (cluster({"a": 99}, instance_meta="MlxJaccl"), "rdma_missing", {"nodes": ["a"]}),
        (cluster({"a": 99}, sharding="Tensor", model={"supports_tensor": False}), "tensor_unsupported", {}),
        (
            cluster({"a": 99, "b": 99, "c": 99}, sharding="Tensor", min_nodes=3),
            "tensor_not_divisible",
            {"sizes": [1, 2, 4]},
        ),
        (
            cluster({"a": 40, "b": 41}),
            "insufficient_memory",
            {"needed_bytes": 90, "available_bytes": 81, "short_bytes": 9},
        ),
        (cluster({"a": 49, "b": 49}), "insufficient_memory", {"room_layers": 8, "needed_layers": 9, "short_bytes": 10}),
        (
            cluster({"a": 99, "b": 7}, min_nodes=2),
            "insufficient_memory",
            {"needed_bytes": 10, "short_bytes": 3, "nodes": ["b"]},
        ),
        (cluster({"a": 0, "b": 0}), "insufficient_memory", {"short_bytes": 10}),
        (cluster({}), "too_few_nodes", {"nodes": 0}),
    ],
)
def test_refusal_names_the_rule_and_numbers(case: dict[str, Any], code: str, numbers: dict[str, Any]) -> None:
    error = refused(case)
    assert error["code"] == code
    assert numbers.items() <= error["numbers"].items()


def test_rdma_is_asked_of_every_link_inside_not_only_along_the_ring() -> None:
    edges = [["a", "b", "rdma"], ["b", "c", "rdma"], ["c", "d", "rdma"], ["d", "a", "rdma"]]
    case = cluster(dict.fromkeys("abcd", 30), edges, instance_meta="MlxJaccl")
    for node in case["nodes"]:
        node["rdma_enabled"] = True
    assert placed(case)["nodes"] == ["a", "b", "c", "d"]
    error = refused(case | {"edges": [*edges, ["a", "c"]], "min_nodes": 4})
    assert error["code"] == "rdma_missing"


def test_leaf_comes_first_and_is_named() -> None:
    edges = [["a", "b"], ["b", "c"], ["c", "a"], ["c", "d"]]
    downloads = {"a": done(), "b": done()}
    found = placed(cluster(dict.fromkeys("abcd", 50), edges, downloads=downloads))
    assert found["nodes"] == ["c", "d"]
    assert found["decision"]["rule"] == "leaf"
    assert "leaf" in found["why"]


def test_single_node_is_always_pipeline() -> None:
    found = placed(cluster({"a": 90}, sharding="Tensor"))
    assert found["sharding"] == "Pipeline"
    assert found["layer_counts"] == {"a": 9}


def test_labels_narrow_the_choice() -> None:
    case = cluster({"a": 100, "b": 95}, labels=["gpu"])
    case["nodes"][1]["labels"] = ["gpu", "rack-2"]
    found = placed(case)
    assert found["nodes"] == ["b"]
    assert {"reason": "label_missing", "count": 1, "nodes": ["a"]} in found["decision"]["left_out"]
