"""What callers get: the placement from records, its explanation, and the order that asks for the soonest ring."""

from typing import Any

from clusters import cluster, done, placed

from exo_celery.placement.place import decide, place
from exo_celery.placement.question import Question, ask
from exo_celery.placement.score import ASSUMED_DOWNLOAD_BPS
from exo_celery.records.download import Download
from exo_celery.records.instance import PlacementRequest
from exo_celery.records.model import ModelCard
from exo_celery.records.node import Node

CARD = ModelCard(id="org/model", storage_bytes=90, n_layers=9, hidden_size=12)


def question(**request: Any) -> Question:
    nodes = [Node(id=name, ram_available_bytes=50, backends=("MlxCpu",)) for name in ("c", "a", "b")]
    half = Download(node="b", model="org/model", downloaded_bytes=45, total_bytes=90)
    return ask(CARD, PlacementRequest(model="org/model", **request), nodes, {"b": half})


def test_placement_from_records() -> None:
    found = place(question())
    assert found.nodes == ("a", "b")
    assert [(rank.node, rank.rank, rank.start_layer, rank.end_layer) for rank in found.ring] == [
        ("a", 0, 0, 5),
        ("b", 1, 5, 9),
    ]
    assert found.download_score == 0.5
    assert found.available_bytes == 100
    assert found.reserved_bytes == {"a": 50, "b": 40}
    assert found.sharding == "pipeline"
    assert decide(question()).ring == (0, 1)


def test_links_from_records_need_both_ways() -> None:
    nodes = [Node(id=name, ram_available_bytes=50, backends=("MlxCpu",)) for name in "abc"]
    reach = {"a": ["b", "c", "a", "stranger"], "b": ["c"], "c": ["b", "a"]}
    found = place(ask(CARD, PlacementRequest(model="org/model"), nodes, {}, reach=reach))
    assert found.nodes == ("b", "c")  # b has one out-neighbour: a leaf


def test_explanation_in_numbers() -> None:
    found = place(question())
    decision = found.decision
    assert decision["rule"] == "first_by_id"
    assert [ring["nodes"] for ring in decision["rings"]] == [["a", "b"], ["b", "c"], ["a", "c"], ["a", "b", "c"]]
    assert [ring["lacks"] for ring in decision["rings"]] == [
        "",
        "later in the order of ids",
        "0.50 of the model less downloaded",
        "1 node more",
    ]
    assert decision["smaller"] == [{"size": 1, "lacks": "room for 5 of 9 layers at most"}]
    assert decision["left_out"] == [{"reason": "not_chosen", "count": 1, "nodes": ["c"]}]
    assert [(item["node"], item["missing_bytes"], item["from"]) for item in decision["fetch"]] == [
        ("a", 90, "hub"),
        ("b", 45, "hub"),
    ]
    assert decision["ready_seconds"] == round(90 / ASSUMED_DOWNLOAD_BPS, 1)
    assert found.why.count(". ") == 1
    assert found.why.endswith(".")


def test_at_most_twenty_left_out_nodes_are_named() -> None:
    case = cluster({f"n{i:02}": 95 for i in range(30)} | {f"x{i:02}": 1 for i in range(30)})
    groups = placed(case)["decision"]["left_out"]
    assert {group["reason"]: group["count"] for group in groups} == {"no_room": 30, "not_chosen": 29}
    assert sum(len(group["nodes"]) for group in groups) <= 20


def test_auto_is_pipeline() -> None:
    assert place(question(sharding="auto")).sharding == "pipeline"


def soon(**changes: Any) -> dict[str, Any]:
    downloads = {"pair-1": done(), "pair-2": done()}
    return cluster({"big": 200, "pair-1": 50, "pair-2": 50}, downloads=downloads, **changes)


def test_big_empty_node_is_the_default_and_the_pair_that_has_the_model_is_ready_soonest() -> None:
    assert placed(soon())["nodes"] == ["big"]
    found = placed(soon(prefer="ready-soonest"))
    assert found["nodes"] == ["pair-1", "pair-2"]
    assert found["decision"]["rule"] == "ready_soonest"
    assert found["decision"]["rings"][1]["nodes"] == ["big"]
    assert found["decision"]["fetch"] == []


def test_ready_soonest_goes_by_measured_speeds_and_says_which_bytes_from_where() -> None:
    case = cluster({"a": 90, "b": 90, "c": 40}, prefer="ready-soonest", downloads={"c": done()})
    for node, speed in zip(case["nodes"], (10, 30, 20), strict=True):
        node["download_bps"] = speed
    found = placed(case)
    assert found["nodes"] == ["b"]
    assert found["decision"]["fetch"] == [
        {"node": "b", "missing_bytes": 90, "from": "c", "seconds": 3.0, "speed_measured": True}
    ]


def test_ready_soonest_prefers_fewer_nodes_when_all_have_the_model() -> None:
    case = cluster({"a": 50, "b": 50, "c": 95}, prefer="ready-soonest", downloads={n: done() for n in "abc"})
    assert placed(case)["nodes"] == ["c"]


def test_slow_disk_counts() -> None:
    case = cluster({"a": 100, "b": 95}, prefer="ready-soonest", downloads={n: done() for n in "ab"})
    case["nodes"][0]["load_bps"] = 1
    case["nodes"][1]["load_bps"] = 2
    assert placed(case)["nodes"] == ["b"]


def test_ring_order_has_the_fastest_slowest_hop() -> None:
    nodes = [Node(id=name, ram_available_bytes=25, backends=("MlxCpu",)) for name in "abcd"]
    slow = {("a", "b"), ("c", "d")}
    rtt = {a: {b: 9.0 if (a, b) in slow or (b, a) in slow else 1.0 for b in "abcd" if b != a} for a in "abcd"}
    card = CARD.evolve(n_layers=90)
    assert place(ask(card, PlacementRequest(model="org/model"), nodes, {})).nodes == ("a", "b", "c", "d")
    found = place(ask(card, PlacementRequest(model="org/model"), nodes, {}, rtt_ms=rtt))
    assert found.nodes == ("a", "c", "b", "d")
    assert found.decision["slowest_hop_ms"] == 1.0
    rtt["c"]["b"] = 50.0  # the slower direction counts, and two slow hops are better than that
    found = place(ask(card, PlacementRequest(model="org/model"), nodes, {}, rtt_ms=rtt))
    assert found.decision["slowest_hop_ms"] == 9.0
