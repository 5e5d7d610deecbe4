"""The 97 recorded clusters: what the reference answers, or our better rules."""

import json
from pathlib import Path
from typing import Any

import pytest

from exo_celery.placement.snapshot import answer

CASES = [
    json.loads(line) for line in (Path(__file__).parents[2] / "cases" / "placement.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["input"]["case"])
def test_recorded_case(case: dict[str, Any]) -> None:
    found = answer(json.dumps(case["input"]))
    wanted = case["exo"] if case["ours"] == "same" else case["ours"]
    assert found["ok"] == wanted["ok"]
    assert found["exact"]
    if not wanted["ok"]:
        assert found["error"]["code"] != "invalid_request"
        assert found["error"]["message"] == found["why"]
        return
    assert sorted(found["nodes"]) == sorted(wanted["nodes"])
    if case["ours"] == "same":
        assert found["layer_counts"] == wanted["layer_counts"]
        assert found["sharding"] == wanted["sharding"]
        assert found["download_score"] == pytest.approx(wanted["download_score"])


def test_all_cases_are_there() -> None:
    assert len(CASES) == 97
