"""The main job on real parts, and what it survives: runners, node workers and Redis killed, and disks that change.

One cluster serves the whole module, in order; each test leaves it working.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from live import COMMAND, DEMO, Live, eventually
from redis import Redis

from exo_celery.local import redis_server
from exo_celery.local.redis_server import RedisServer
from exo_celery.local.task_log import TaskLog
from exo_celery.settings import Settings

pytestmark = pytest.mark.timeout(300)
TICK_SECONDS = 3
RING = ["node-1", "node-2"]


class OwnRedis:
    """A Redis with AOF that the test may kill and start again on the same port and data."""

    def __init__(self, folder: Path) -> None:
        self.server: RedisServer = redis_server.prepare(folder)
        self.log = folder / "log"
        self.process = redis_server.start(self.server, self.log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def start(self) -> None:
        self.process = redis_server.start(self.server, self.log)


@pytest.fixture(scope="module")
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnRedis]:
    server = OwnRedis(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, own_redis: OwnRedis) -> Iterator[Live]:
    tick = {"EXO_REPORT_SECONDS": str(TICK_SECONDS), "EXO_REDIS_URL": own_redis.server.url}
    cluster = Live(tmp_path_factory.mktemp("up"), **tick)
    yield cluster
    assert cluster.stop() == 0


@pytest.fixture(scope="module")
def placed(live: Live) -> str:
    """The demo model on a ring of two."""
    instance = live.place(min_nodes=2)
    live.ready(instance)
    return instance


def folder(live: Live, node: str, model: str = DEMO) -> Path:
    return Path(live.facts["nodes"][node]["models_dir"]) / model.replace("/", "--")


def worker(live: Live, node: str) -> psutil.Process:
    return psutil.Process(live.facts["nodes"][node]["pid"])


def runners(live: Live, node: str) -> list[psutil.Process]:
    children = worker(live, node).children(recursive=True)
    return [child for child in children if "exo_celery.runner.main" in command(child)]


def serving(live: Live, node: str) -> psutil.Process:
    children = worker(live, node).children()
    return next(child for child in children if any(part.startswith("serve-") for part in command(child)))


def command(process: psutil.Process) -> list[str]:
    """Return a process's command line; none for one that has just ended."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def restart(live: Live, node: str, how: signal.Signals) -> None:
    """End a node worker and wait until `up` has another one alive."""
    old = worker(live, node)
    boot = node_record(live, node)["boot_id"]
    old.send_signal(how)
    eventually(lambda: node_record(live, node), lambda now: now["alive"] and now["boot_id"] != boot, 60)


def node_record(live: Live, node: str) -> Any:
    return next(one for one in live.get("/api/nodes")["nodes"] if one["id"] == node)


def test_the_boot_report_tells_complete_half_and_none(live: Live) -> None:
    one, two, three = (live.download(f"node-{n}") for n in (1, 2, 3))
    assert one["status"] == "completed"
    assert one["downloaded_bytes"] == one["total_bytes"] > 90e6
    assert two["status"] == "pending"
    assert 0 < two["downloaded_bytes"] < two["total_bytes"]
    assert two["downloaded_bytes"] == sum(
        file.stat().st_size for file in folder(live, "node-2").iterdir() if not file.name.startswith(".")
    )
    assert (three["status"], three["downloaded_bytes"]) == ("pending", 0)


def test_the_ring_is_the_two_that_hold_most_and_the_answer_is_paris(live: Live, placed: str) -> None:
    instance = live.instance(placed)
    assert [rank["node"] for rank in instance["ring"]] == RING
    assert [(rank["start_layer"], rank["end_layer"]) for rank in instance["ring"]] == [(0, 15), (15, 30)]
    assert live.download("node-2")["status"] == "completed"
    assert live.download("node-3")["downloaded_bytes"] == 0
    job = live.ask()
    assert (job["state"], job["ring"]) == ("succeeded", RING)
    assert "Paris" in job["text"]


def test_a_killed_runner_is_replaced(live: Live, placed: str) -> None:
    epoch = live.instance(placed)["epoch"]
    runners(live, "node-2")[0].kill()
    live.ready(placed, epoch + 1)
    assert "Paris" in live.ask()["text"]


def test_a_killed_node_worker_takes_its_children_along_and_comes_back(live: Live, placed: str) -> None:
    epoch = live.instance(placed)["epoch"]
    children = worker(live, "node-1").children(recursive=True)
    assert len(children) >= 2  # a runner and a serving worker
    restart(live, "node-1", signal.SIGKILL)
    eventually(lambda: [child for child in children if child.is_running()], lambda left: not left, 30)
    live.ready(placed, epoch + 1)
    assert "Paris" in live.ask()["text"]


def test_a_job_outlives_its_serving_worker(live: Live, placed: str) -> None:
    job = live.submit(max_tokens=80, messages=[{"role": "user", "content": "Tell me a very long story."}])
    live.job(job, "running")
    serving(live, "node-1").kill()
    ended = live.job(job, "succeeded", "failed", seconds=120)
    assert (ended["state"], ended["attempt"]) == ("succeeded", 2)
    assert "attempt 1" in ended["reasons"][0]


def test_ten_seconds_without_redis_fail_nobody_over(live: Live, placed: str, own_redis: OwnRedis) -> None:
    before = live.instance(placed)
    pids = {node: facts["pid"] for node, facts in live.facts["nodes"].items()}
    own_redis.kill()
    time.sleep(10)
    own_redis.start()
    eventually(lambda: live.http.get("/readyz").status_code, lambda status: status == 200, 30)
    assert "Paris" in live.ask()["text"]
    time.sleep(2 * TICK_SECONDS)
    after = live.instance(placed)
    assert (after["epoch"], after["status"]) == (before["epoch"], "ready")
    assert {node: facts["pid"] for node, facts in live.facts["nodes"].items()} == pids
    assert all(psutil.pid_exists(pid) for pid in pids.values())


def test_disks_tell_the_truth_at_boot_and_at_the_tick(live: Live) -> None:
    mine = folder(live, "node-3")
    shutil.copytree(folder(live, "node-1"), mine)
    restart(live, "node-3", signal.SIGTERM)
    eventually(lambda: live.download("node-3"), lambda one: one["status"] == "completed", 30)
    weights = mine / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    whole = live.download("node-1")["total_bytes"]
    half = eventually(lambda: live.download("node-3"), lambda one: one["status"] != "completed", 30)
    assert half["status"] == "pending"
    assert (
        half["downloaded_bytes"]
        == whole - live_size(folder(live, "node-1")) // 2 - live_size(folder(live, "node-1")) % 2
    )
    shutil.rmtree(mine)
    gone = eventually(lambda: live.download("node-3"), lambda one: one["downloaded_bytes"] == 0, 30)
    assert gone["status"] == "pending"


def live_size(model: Path) -> int:
    return (model / "model.safetensors").stat().st_size


def test_without_beat_no_tick_comes(live: Live, own_redis: OwnRedis) -> None:
    redis = Redis.from_url(own_redis.server.url, decode_responses=True)
    updated = lambda: float(redis.hget(f"exo:download:node-1:{DEMO}", "updated_at") or 0)  # noqa: E731
    first = updated()
    eventually(updated, lambda at: at > first, 5 * TICK_SECONDS)
    beat = psutil.Process(live.facts["beat"]["pid"])
    beat.suspend()
    try:
        time.sleep(TICK_SECONDS)  # what beat had sent already
        still = updated()
        time.sleep(3 * TICK_SECONDS)
        assert updated() == still
    finally:
        beat.resume()
    eventually(updated, lambda at: at > still, 5 * TICK_SECONDS)
    redis.close()


def test_two_beats_make_one_report_per_tick_and_node(live: Live, own_redis: OwnRedis, tmp_path: Path) -> None:
    told = {"EXO_REDIS_URL": own_redis.server.url, "EXO_REPORT_SECONDS": str(TICK_SECONDS)}
    beat = [sys.executable, "-m", "celery", "-A", "exo_celery", "beat", "-s", str(tmp_path / "schedule")]
    second = subprocess.Popen(beat, env=os.environ | told, stderr=subprocess.DEVNULL)
    try:
        time.sleep(3 * TICK_SECONDS)  # until it ticks too
        with TaskLog(Settings(redis_url=own_redis.server.url)) as log:
            time.sleep(5 * TICK_SECONDS)
            rows = {(row["task"], row["queue"]): row["times"] for row in log.rows()}
    finally:
        second.terminate()
        second.wait()
    assert rows["exo.tick_downloads", "cluster"] > 7  # both beats ask
    for node in (1, 2, 3):
        assert 3 <= rows["exo.report_downloads", f"node.node-{node}"] <= 6


def test_a_cancelled_job_stays_cancelled(live: Live, placed: str) -> None:
    job = live.submit(max_tokens=2000, messages=[{"role": "user", "content": "Count to ten thousand."}])
    live.job(job, "running")
    assert live.http.delete(f"/api/jobs/{job}").json()["state"] == "cancelled"
    assert live.ask()["state"] == "succeeded"
    assert live.get(f"/api/jobs/{job}")["state"] == "cancelled"


def test_a_prompt_longer_than_the_context_is_refused_at_once(live: Live, placed: str) -> None:
    long = "word " * 9000
    job = live.ask(messages=[{"role": "user", "content": long}])
    assert (job["state"], job["error"]["code"]) == ("failed", "context_length_exceeded")
    body = {"model": DEMO, "messages": [{"role": "user", "content": long}]}
    answer = live.http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_what_fits_nowhere_is_refused_in_numbers(live: Live) -> None:
    answer = live.http.post("/api/instances", json={"model": DEMO, "min_nodes": 4})
    assert answer.status_code == 409
    assert "4" in answer.json()["error"]["message"]
    assert "3" in answer.json()["error"]["message"]


def test_a_deleted_instance_leaves_no_process_and_its_jobs_wait(live: Live, placed: str) -> None:
    assert live.http.delete(f"/api/instances/{placed}").status_code == 202
    left = lambda: runners(live, "node-1") + runners(live, "node-2")  # noqa: E731
    eventually(left, lambda found: not found, 30)
    job = live.ask()  # work places its model by itself
    assert "Paris" in job["text"]


def test_a_second_worker_under_a_living_nodes_id_is_refused(live: Live, tmp_path: Path, own_redis: OwnRedis) -> None:
    env = os.environ | {"EXO_REDIS_URL": own_redis.server.url, "EXO_NODE_ID": "node-1", "EXO_DATA_DIR": str(tmp_path)}
    twin = subprocess.run([COMMAND, "node"], env=env, capture_output=True, text=True, timeout=60)
    assert twin.returncode == 78
    assert "node-1" in twin.stderr
    assert "taken by a live worker" in twin.stderr
