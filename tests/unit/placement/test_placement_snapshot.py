"""Snapshots from strangers: each fault is answered by line and field, and costs no other line its answer."""

import json
from typing import Any

import pytest
from clusters import cluster, done

from exo_celery.placement.snapshot import answer, answers

GOOD = cluster({"a": 100, "b": 50}, [["a", "b"]], downloads={"a": done()})
KEYS = {"ok", "nodes", "layer_counts", "sharding", "download_score", "error", "why"}


def changed(path: list[str | int], value: Any) -> str:
    case = json.loads(json.dumps(GOOD))
    target = case
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return json.dumps(case)


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (["nodes"], "many", "nodes"),
        (["nodes"], None, "nodes"),
        (["nodes", 1], 7, "nodes[1]"),
        (["nodes", 1, "id"], "a", "nodes[1].id"),
        (["nodes", 1, "id"], "", "nodes[1].id"),
        (["nodes", 1, "id"], ["a"], "nodes[1].id"),
        (["nodes", 1, "id"], "\ud800", "nodes[1].id"),
        (["nodes", 1, "id"], "n" * 1000, "nodes[1].id"),
        (["nodes", 0, "ram_available_bytes"], -1, "nodes[0].ram_available_bytes"),
        (["nodes", 0, "ram_available_bytes"], 10**30, "nodes[0].ram_available_bytes"),
        (["nodes", 0, "ram_available_bytes"], 10**4000, "nodes[0].ram_available_bytes"),
        (["nodes", 0, "ram_available_bytes"], 1.5, "nodes[0].ram_available_bytes"),
        (["nodes", 0, "ram_available_bytes"], 1e300, "nodes[0].ram_available_bytes"),
        (["nodes", 0, "ram_available_bytes"], float("nan"), "nodes[0].ram_available_bytes"),
        (["nodes", 0, "ram_available_bytes"], float("inf"), "nodes[0].ram_available_bytes"),
        (["nodes", 0, "ram_available_bytes"], True, "nodes[0].ram_available_bytes"),
        (["nodes", 0, "ram_available_bytes"], "8G", "nodes[0].ram_available_bytes"),
        (["nodes", 0], {"id": "a"}, "nodes[0].ram_available_bytes"),
        (["nodes", 0, "backends"], "MlxCpu", "nodes[0].backends"),
        (["nodes", 0, "backends"], [1], "nodes[0].backends[0]"),
        (["nodes", 0, "rdma_enabled"], 1, "nodes[0].rdma_enabled"),
        (["nodes", 0, "load_bps"], 0, "nodes[0].load_bps"),
        (["nodes", 0, "download_bps"], float("nan"), "nodes[0].download_bps"),
        (["edges"], "some", "edges"),
        (["edges"], None, "edges"),
        (["edges", 0], ["a"], "edges[0]"),
        (["edges", 0], ["a", 1], "edges[0]"),
        (["edges", 0], {"from": "a"}, "edges[0]"),
        (["edges", 0], ["a", "ghost"], "edges[0][1]"),
        (["edges", 0], ["a", "a"], "edges[0]"),
        (["edges", 0], ["a", "b", "fast"], "edges[0][2]"),
        (["undirected"], "yes", "undirected"),
        (["downloads"], [], "downloads"),
        (["downloads", "a"], 7, "downloads.a"),
        (["downloads", "a"], [7], "downloads.a[0]"),
        (["downloads", "\ud800"], {}, r"downloads.'\ud800'.status"),
        (["downloads", "a", "status"], "done", "downloads.a.status"),
        (["downloads", "a"], {"downloaded": 5}, "downloads.a.status"),
        (["downloads", "a", "downloaded"], -5, "downloads.a.downloaded"),
        (["downloads", "a", "total"], "9", "downloads.a.total"),
        (["model"], None, "model"),
        (["model", "id"], 3, "model.id"),
        (["model", "storage_bytes"], -1, "model.storage_bytes"),
        (["model", "storage_bytes"], None, "model.storage_bytes"),
        (["model", "n_layers"], 0, "model.n_layers"),
        (["model", "n_layers"], 10**9, "model.n_layers"),
        (["model", "num_key_value_heads"], 0, "model.num_key_value_heads"),
        (["model", "supports_tensor"], "no", "model.supports_tensor"),
        (["sharding"], "Ring", "sharding"),
        (["sharding"], 1, "sharding"),
        (["instance_meta"], "Vllm", "instance_meta"),
        (["min_nodes"], 0, "min_nodes"),
        (["min_nodes"], 2.0, "min_nodes"),
        (["max_nodes"], -1, "max_nodes"),
        (["required_nodes"], "a", "required_nodes"),
        (["required_nodes"], [None], "required_nodes[0]"),
        (["prefer"], "fastest", "prefer"),
    ],
)
def test_fault_is_named_by_line_and_field(path: list[str | int], value: Any, field: str) -> None:
    found = answer(changed(path, value), 7)
    assert found["ok"] is False
    assert set(found) >= KEYS
    assert found["error"]["code"] == "invalid_request"
    assert found["error"]["field"] == field
    assert found["error"]["message"].startswith(f"line 7, field {field}: ")
    assert len(found["error"]["message"]) < 300
    json.dumps(found, ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "nonsense",
        "[]",
        "3",
        "null",
        "[" * 100_000,
        '{"nodes": [' * 50_000,
        '{"nodes": ' + "1" * 10_000 + "}",
        json.dumps(GOOD)[:-1],
        json.dumps(GOOD) + "}",
        '{"min_nodes": 1, "min_nodes": 2}',
    ],
)
def test_what_is_no_case_is_named_by_line(line: str) -> None:
    found = answer(line, 3)
    assert found["ok"] is False
    assert found["error"]["message"].startswith("line 3")
    assert set(found) >= KEYS


def test_other_lines_are_still_answered_in_order() -> None:
    lines = [json.dumps(GOOD), "{broken", "", json.dumps(cluster({})), changed(["edges", 0], ["a", "ghost"])]
    found = answers("\n".join([*lines, json.dumps({"input": GOOD})]))
    assert [entry["ok"] for entry in found] == [True, False, False, False, True]
    assert [entry["error"] and entry["error"].get("line") for entry in found] == [None, 2, None, 5, None]
    assert found[2]["error"]["code"] == "too_few_nodes"
    assert found[0]["nodes"] == found[4]["nodes"] == ["a"]


def test_one_document_over_many_lines_has_one_answer() -> None:
    assert [entry["ok"] for entry in answers(json.dumps(GOOD, indent=2))] == [True]
    assert [entry["ok"] for entry in answers(json.dumps(GOOD, indent=2)[:-1])] == [False]
    assert [entry["ok"] for entry in answers("\ufeff" + json.dumps(GOOD) + "\r\n")] == [True]
    assert answers("\n\n") == []


def test_line_breaks_of_unicode_inside_a_text_do_not_split_a_line() -> None:
    case = json.dumps(GOOD | {"case": "one\u2028two\x85three"}, ensure_ascii=False)
    assert [entry["case"] for entry in answers(case + "\n" + case)] == ["one\u2028two\x85three"] * 2


def test_fault_inside_a_case_file_is_named_with_its_path() -> None:
    found = answer(json.dumps({"input": json.loads(changed(["min_nodes"], "two"))}))
    assert found["error"]["field"] == "input.min_nodes"


def test_all_links_every_pair_both_ways() -> None:
    case = cluster({f"n{i}": 30 for i in range(3)}, "all")
    assert sorted(answer(json.dumps(case))["nodes"]) == ["n0", "n1", "n2"]


def test_downloads_of_other_models_and_nodes_do_not_count() -> None:
    case = cluster({"a": 100, "b": 101}, downloads={"a": [done() | {"model": "other/model"}], "gone": done()})
    assert answer(json.dumps(case))["nodes"] == ["b"]
    case["downloads"]["a"].append(done() | {"model": "org/model"})
    assert answer(json.dumps(case))["nodes"] == ["a"]


def test_missing_backends_mean_all() -> None:
    case = cluster({"a": 100})
    case["nodes"][0]["backends"] = None
    assert answer(json.dumps(case))["ok"]
