"""Several machines: they join with the printed command, form a ring, lose a cable, come back as themselves."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import Host, Network, can_make_hosts
from live import COMMAND, DEMO, PARIS, START_SECONDS, eventually

from exo_celery.models.demo import demo_dir
from exo_celery.settings import load

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(not (can_make_hosts() or os.environ.get("CI")), reason="needs root and iproute2 on Linux"),
]
WEB = "http://127.0.0.1:8765"


class Machines:
    """A cluster on several hosts; the first runs `up` with one node, Redis, beat and the web."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.network = Network(count)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.first = self.network.hosts[0]
        argv = [COMMAND, "up", "--host", self.first.address, "--nodes", "1", "--port", "8765"]
        data_dir = folder / "first"
        self.processes["node-1"] = self.first.start([*argv, "--data-dir", str(data_dir)], folder / "first.log")
        self.command = eventually(self.printed_command, bool, START_SECONDS)

    def printed_command(self) -> str:
        """Return the join command that the first machine printed."""
        found = re.search(r"other machines join with: exo-celery (join .*)", (self.folder / "first.log").read_text())
        return found[1] if found else ""

    def join(self, host: Host, node: str, command: str | None = None) -> "subprocess.Popen[bytes]":
        """Run the printed command on another host, with folders of its own."""
        own = self.folder / node
        own.mkdir(exist_ok=True)
        argv = [COMMAND, *shlex.split(command or self.command), "--data-dir", str(own)]
        limits = {"EXO_NODE_ID": node, "EXO_MEMORY_LIMIT": "4G", "EXO_THREADS": "1", "HOME": str(own)}
        self.processes[node] = host.start(argv, self.folder / f"{node}.log", **limits)
        return self.processes[node]

    def invite(self) -> str:
        """Ask the first machine for a fresh command."""
        redis_url = shlex.split(self.command)[1]
        env = {"EXO_REDIS_URL": redis_url, "EXO_CLUSTER_SECRET_FILE": str(self.folder / "first" / "cluster_secret")}
        argv = ["ip", "netns", "exec", self.first.name, COMMAND, "invite"]
        told = subprocess.run(argv, env=os.environ | env, capture_output=True, text=True, check=True)
        return told.stdout.strip().removeprefix("exo-celery ")

    def get(self, path: str) -> Any:
        status, answer = self.first.fetch("GET", WEB + path)
        assert status == 200, answer
        return answer

    def node(self, node: str) -> Any:
        return next((one for one in self.get("/api/nodes")["nodes"] if one["id"] == node), None)

    def alive(self, node: str, wanted: bool, seconds: float) -> Any:
        return eventually(lambda: self.node(node), lambda one: one is not None and one["alive"] is wanted, seconds)

    def place(self, **request: Any) -> tuple[int, Any]:
        return self.first.fetch("POST", f"{WEB}/api/instances", {"model": DEMO, **request})

    def ready(self, instance: str, epoch: int = 0) -> Any:
        good = lambda one: one["status"] == "ready" and one["epoch"] >= epoch  # noqa: E731
        return eventually(lambda: self.get(f"/api/instances/{instance}"), good, 120)

    def ask(self) -> Any:
        _, job = self.first.fetch("POST", f"{WEB}/api/jobs", PARIS)
        ended = {"succeeded", "failed"}
        return eventually(lambda: self.get(f"/api/jobs/{job['id']}"), lambda one: one["state"] in ended, 90)

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait(60)
        self.network.remove()


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    cluster = Machines(tmp_path_factory.mktemp("machines"), 3)
    yield cluster
    cluster.stop()


def has_model(machines: Machines, node: str) -> None:
    """Give a node its own copy of the model, as somebody who carries a disk around."""
    name = DEMO.replace("/", "--")
    shutil.copytree(demo_dir(load().cache_dir) / name, machines.folder / node / "models" / name)


def test_a_second_machine_joins_with_the_printed_command_and_the_ring_spans_both(machines: Machines) -> None:
    second = machines.network.hosts[1]
    has_model(machines, "second")
    machines.join(second, "second")
    machines.alive("second", True, 60)
    assert machines.node("second")["addresses"][0] == second.address
    assert machines.node("node-1")["addresses"][0] == machines.first.address
    held = {one["node"]: one["status"] for one in machines.get("/api/downloads")["downloads"]}
    assert held == {"node-1": "completed", "second": "completed"}
    status, placed = machines.place(min_nodes=2)
    assert status == 202, placed
    instance = machines.ready(placed["id"])
    assert {rank["address"] for rank in instance["ring"]} == {machines.first.address, second.address}
    assert "Paris" in machines.ask()["text"]


def test_a_code_is_good_for_one_machine(machines: Machines) -> None:
    again = machines.join(machines.network.hosts[2], "stranger")
    assert again.wait(60) == 78
    assert "was used before" in (machines.folder / "stranger.log").read_text()
    del machines.processes["stranger"]


def test_another_secret_is_refused_with_the_cure(machines: Machines) -> None:
    wrong = machines.folder / "wrong-secret"
    wrong.write_text("not the secret")
    url = shlex.split(machines.command)[1]
    refused = machines.join(machines.network.hosts[2], "stranger", f"join {url} --secret-file {wrong}")
    assert refused.wait(60) == 78
    assert "exo-celery invite" in (machines.folder / "stranger.log").read_text()
    del machines.processes["stranger"]


@pytest.mark.parametrize(
    ("url", "code", "cure"),
    [
        ("redis://default:wrong@{address}:{port}/0", 78, "password"),
        ("redis://{address}:{port}/0", 78, "password"),
        ("redis://default:pw@{address}:1/0", 69, "Is it running"),
    ],
)
def test_what_is_wrong_with_redis_is_said_in_a_sentence(machines: Machines, url: str, code: int, cure: str) -> None:
    port = re.search(r":(\d+)/0", machines.command)
    assert port
    asked = url.format(address=machines.first.address, port=port[1])
    refused = machines.join(machines.network.hosts[2], "stranger", f"join {asked}")
    assert refused.wait(60) == code
    (line,) = [one for one in (machines.folder / "stranger.log").read_text().splitlines() if one.startswith("error:")][
        -1:
    ]
    assert cure in line
    del machines.processes["stranger"]


def test_a_pulled_cable_greys_the_node_and_its_instance_moves_to_a_third(machines: Machines) -> None:
    has_model(machines, "third")
    machines.join(machines.network.hosts[2], "third", machines.invite())
    machines.alive("third", True, 60)
    (instance,) = machines.get("/api/instances")["instances"]
    machines.network.hosts[1].pull_cable()
    pulled_at = time.monotonic()
    machines.alive("second", False, 25)
    assert time.monotonic() - pulled_at <= 25
    moved = machines.ready(instance["id"], instance["epoch"] + 1)
    assert {rank["node"] for rank in moved["ring"]} == {"node-1", "third"}
    assert "Paris" in machines.ask()["text"]


def test_the_node_comes_back_as_itself(machines: Machines) -> None:
    boot = machines.node("second")["boot_id"]
    machines.network.hosts[1].plug_in()
    back = machines.alive("second", True, 60)
    assert back["boot_id"] == boot
    assert machines.processes["second"].poll() is None
    held = {one["node"]: one["status"] for one in machines.get("/api/downloads")["downloads"]}
    assert held == {"node-1": "completed", "second": "completed", "third": "completed"}


def test_a_cut_between_two_nodes_keeps_them_out_of_one_ring(machines: Machines) -> None:
    second, third = machines.network.hosts[1:]
    reject(second, third, "add")
    try:
        eventually(lambda: machines.place(min_nodes=3), lambda answer: answer[0] == 409, 60)
        (told,) = eventually(lambda: machines.node("second")["unreached"], bool, 60)
        assert told.startswith(f"second does not reach third: third does not answer at {third.address} port ")
        assert "Open the port" in told
        assert told in (machines.folder / "second.log").read_text()
    finally:
        reject(second, third, "del")
    status, _ = eventually(lambda: machines.place(min_nodes=3), lambda answer: answer[0] == 202, 90)
    assert status == 202
    eventually(lambda: machines.node("second")["unreached"], lambda told: not told, 60)


def reject(one: Host, other: Host, action: str) -> None:
    """Make one host unable to reach another, or able again."""
    subprocess.run(["ip", "-n", one.name, "route", action, "unreachable", f"{other.address}/32"], check=True)
