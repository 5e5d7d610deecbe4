"""`exo-celery up`: the whole contract, on real processes."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from exo_celery.local.redis_server import free_port
from exo_celery.models.demo import MODEL
from exo_celery.store import keys

UP = str(Path(sys.executable).with_name("exo-celery"))
BACK_SECONDS = 2.0
NODES = ("node-1", "node-2", "node-3")


class Cluster:
    """A running `up`."""

    def __init__(self, process: "subprocess.Popen[bytes]", data_dir: Path, log: Path) -> None:
        self.process = process
        self.data_dir = data_dir
        self.log = log

    def told(self) -> Any:
        """Return what up.json says now; it is always whole."""
        return json.loads((self.data_dir / "up.json").read_text())

    def get(self, path: str) -> Any:
        """Return what a REST route answers."""
        with urllib.request.urlopen(f"{self.told()['web_url']}{path}", timeout=10) as response:
            return json.loads(response.read())

    def family(self) -> list[psutil.Process]:
        """Return the supervisor and all that descends from it."""
        top = psutil.Process(self.process.pid)
        return [top, *top.children(recursive=True)]


def wait_for(met: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    """Wait until a condition is met, and return what met it."""
    deadline = time.monotonic() + seconds
    while not (found := met()):
        assert time.monotonic() < deadline, f"not in {seconds} s: {what}"
        time.sleep(0.02)
    return found


@contextmanager
def running(folder: Path, *options: str, **environ: str) -> Iterator[Cluster]:
    """Run `up` until it is ready; in the end it is killed if it still runs."""
    log = folder / "up.log"
    with log.open("wb") as out:
        argv = [UP, "up", "--data-dir", str(folder / "data"), "--port", "0", *options]
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, env=os.environ | environ)
    try:
        cluster = Cluster(process, folder / "data", log)
        wait_for(lambda: process.poll() is not None or b"\nready " in b"\n" + log.read_bytes(), "ready", 100)
        assert process.poll() is None, log.read_text()
        yield cluster
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of three nodes with the demo model, for the tests that only look, or hurt it a little."""
    with running(tmp_path_factory.mktemp("up")) as found:
        yield found


def test_it_says_ready_once_with_the_address_of_the_web(cluster: Cluster) -> None:
    lines = [line for line in cluster.log.read_text().splitlines() if line.startswith("ready ")]
    assert lines == [f"ready {cluster.told()['web_url']}"]
    assert cluster.get("/readyz")["ready"]


def test_up_json_has_exactly_the_documented_shape(cluster: Cluster) -> None:
    told = cluster.told()
    assert stat.S_IMODE((cluster.data_dir / "up.json").stat().st_mode) == 0o600
    assert told.keys() == {"web_url", "redis_url", "redis", "beat", "web", "nodes"}
    assert tuple(told["nodes"]) == NODES
    for node, facts in told["nodes"].items():
        assert facts == {"pid": facts["pid"], "models_dir": str(cluster.data_dir / node / "models")}
        assert f"{node}@" in " ".join(psutil.Process(facts["pid"]).cmdline())
    assert re.fullmatch(r"redis://\w*:[^@]{20,}@127\.0\.0\.1:\d+/0", told["redis_url"])


def test_the_nodes_hold_all_half_and_nothing(cluster: Cluster) -> None:
    found = {one["node"]: one for one in cluster.get("/api/downloads")["downloads"] if one["model"] == MODEL}
    assert tuple(found) == NODES
    assert found["node-1"]["status"] == "completed"
    assert found["node-1"]["downloaded_bytes"] == found["node-1"]["total_bytes"] > 0
    assert found["node-2"]["status"] == "pending"
    assert 0.4 < found["node-2"]["downloaded_bytes"] / found["node-2"]["total_bytes"] < 0.6
    assert (found["node-3"]["status"], found["node-3"]["downloaded_bytes"]) == ("pending", 0)


def test_each_node_has_its_share_of_the_memory(cluster: Cluster) -> None:
    nodes = cluster.get("/api/nodes")["nodes"]
    shares = {node["ram_total_bytes"] for node in nodes}
    assert len(shares) == 1
    assert shares.pop() <= psutil.virtual_memory().total / 3


@pytest.mark.parametrize("command", [[UP], [UP.replace("exo-celery", "celery"), "-A", "exo_celery", "exo"]])
def test_both_command_lines_list_what_the_web_lists(cluster: Cluster, command: list[str]) -> None:
    env = os.environ | {"EXO_REDIS_URL": cluster.told()["redis_url"]}
    argv = [*command, "models", "--json"]
    listed = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True, env=env)
    assert json.loads(listed.stdout) == cluster.get("/api/models")


def pid_of(told: Any, name: str) -> int:
    """Return a child's pid."""
    return int((told["nodes"][name] if name in told["nodes"] else told[name])["pid"])


@pytest.mark.parametrize("name", ["web", "beat", "node-3", "redis"])
def test_a_child_that_is_killed_is_back_within_two_seconds(cluster: Cluster, name: str) -> None:
    before = pid_of(cluster.told(), name)
    os.kill(before, signal.SIGKILL)
    killed_at = time.monotonic()
    after = wait_for(lambda: (pid := pid_of(cluster.told(), name)) != before and pid, f"{name} is back")
    assert time.monotonic() - killed_at < BACK_SECONDS
    assert psutil.pid_exists(after)


def test_it_works_again_after_that(cluster: Cluster) -> None:
    def all_alive() -> bool:
        try:
            nodes = cluster.get("/api/nodes")["nodes"]
        except OSError:
            return False
        told = cluster.told()["nodes"]
        return all(node["alive"] and node["pid"] == told[node["id"]]["pid"] for node in nodes)

    wait_for(all_alive, "all nodes live under their new pids")


def test_a_second_one_on_the_same_folder_is_refused(cluster: Cluster) -> None:
    argv = [UP, "up", "--data-dir", str(cluster.data_dir), "--port", "0"]
    second = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == 1
    assert "another exo-celery up runs" in second.stderr


def test_a_port_that_is_taken_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    port = cluster.told()["web_url"].rsplit(":", 1)[1]
    argv = [UP, "up", "--data-dir", str(tmp_path), "--port", port, "--no-demo"]
    second = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == 1
    assert f"port {port}" in second.stderr


def test_no_server_where_it_should_be_is_69(tmp_path: Path) -> None:
    env = os.environ | {"EXO_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0"}
    argv = [UP, "up", "--data-dir", str(tmp_path), "--port", "0", "--no-demo"]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False, env=env)
    assert ended.returncode == 69
    assert "EXO_REDIS_URL" in ended.stderr


def test_a_node_id_that_lives_already_is_78_and_said(cluster: Cluster, tmp_path: Path) -> None:
    env = os.environ | {"EXO_REDIS_URL": cluster.told()["redis_url"]}
    env["EXO_CLUSTER_SECRET_FILE"] = str(cluster.data_dir / "cluster_secret")
    argv = [UP, "up", "--data-dir", str(tmp_path), "--port", "0", "--no-demo", "--nodes", "1"]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert ended.returncode == 78
    assert "node id 'node-1' is taken by a live worker" in ended.stderr


def wait_until_gone(family: list[psutil.Process]) -> None:
    """Wait until none of these processes runs."""
    _, left = psutil.wait_procs(family, timeout=20)
    assert not left


def test_a_signal_ends_everything(tmp_path: Path, redis_url: str, namespace: str) -> None:
    """Here on a server of somebody else's: it is used, and it stays."""
    with running(tmp_path, "--nodes", "1", "--no-demo", EXO_REDIS_URL=redis_url, EXO_NAMESPACE=namespace) as cluster:
        told = cluster.told()
        assert told["redis"] is None
        assert told["redis_url"] == redis_url
        assert list(told["nodes"]) == ["node-1"]
        family = cluster.family()
        cluster.process.send_signal(signal.SIGTERM)
        assert cluster.process.wait(30) == 0
        wait_until_gone(family)
        assert not (cluster.data_dir / "up.json").exists()
    with Redis.from_url(redis_url) as client:
        assert not client.exists(keys.alive(namespace, "node-1")), "a node that was told to end leaves at once"


def test_a_supervisor_that_is_killed_takes_all_with_it(tmp_path: Path) -> None:
    with running(tmp_path, "--nodes", "1", "--no-demo") as cluster:
        family = cluster.family()
        assert len(family) >= 5
        cluster.process.kill()
        wait_until_gone(family)
