"""`make demo`'s command, as a newcomer runs it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

DEMO = str(Path(sys.executable).with_name("exo-celery"))


@pytest.mark.timeout(300)
def test_the_demo_does_the_main_job_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    env = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"}
    ended = subprocess.run(
        [DEMO, "demo", "--data-dir", str(folder)], capture_output=True, text=True, env=env, timeout=280, check=False
    )
    told = ended.stdout
    assert ended.returncode == 0, told + ended.stderr
    for node, state in (("node-1", "completed"), ("node-2", "pending"), ("node-3", "pending")):
        assert re.search(rf"{node}\W+{state}", told)
    assert "every 5 s here" in told
    assert re.search(r"0 +│ node-1 │ 0 +│ 15 .*\n.* 1 +│ node-2 │ 15 +│ 30", told)  # the two with the most bytes
    assert "Paris" in told
    assert re.search(r"\d\.\d tokens/s", told)
    loads = [re.search(rf"{node}, layers \d+ to \d+: loading", told) for node in ("node-1", "node-2")]
    downloaded = told.index("instance: downloading")
    assert downloaded < told.index("instance: loading")
    assert all(load and downloaded < load.start() for load in loads)
    for node in ("node-1", "node-2", "node-3"):
        assert re.search(rf"exo\.report_downloads\W+node\.{node}\W+{node}@", told)
    for node in ("node-1", "node-2"):
        assert re.search(rf"exo\.load_shard\W+node\.{node}\W+{node}@", told)
    assert re.search(r"exo\.place_model\W+cluster\W+node-\d@", told)
    assert re.search(r"exo\.generate\W+model\.HuggingFaceTB/SmolLM2-135M-Instruct\W+serve-", told)
    left = [one for one in psutil.process_iter(["environ"]) if str(folder) in str(one.info["environ"])]
    assert not left


def test_a_step_that_fails_ends_with_1_the_reason_and_the_logs(tmp_path: Path) -> None:
    env = os.environ | {"EXO_REDIS_URL": "redis://127.0.0.1:1/0"}
    folder = tmp_path / "demo"
    ended = subprocess.run(
        [DEMO, "demo", "--data-dir", str(folder)], capture_output=True, text=True, env=env, timeout=100, check=False
    )
    assert ended.returncode == 1
    assert "The demo failed: exo-celery up ended with exit code 69" in ended.stdout
    assert "Redis does not answer" in ended.stdout
