"""What one can see of a live cluster from outside says the same everywhere, at once, and no prompt or answer."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from live import DEMO, START_SECONDS, Live, eventually
from playwright.sync_api import Browser, expect
from redis import Redis

from exo_celery import queues
from exo_celery.local.redis_server import free_port
from exo_celery.records.download import Download
from exo_celery.settings import load
from exo_celery.store import keys
from web.reading import percent

pytestmark = pytest.mark.timeout(START_SECONDS + 120)
LIMIT = 1_000_000  # bytes a second: the rest of node-2's model takes most of a minute
INSPECT_SECONDS = 2
THREADS = 16
TURNS = 6  # a task waits ten seconds for its turn, then it ends
CELERY = [sys.executable, "-m", "celery", "-A", "exo_celery"]
SECRET = "the quokka of Rottnest 4711"
INSPECTED = ("active", "reserved", "scheduled", "active_queues", "registered", "stats", "node", "shards", "downloads")
SHOWN = ("status", "downloaded_bytes", "total_bytes", "completed_files", "speed_bps", "error", "source", "updated_at")


class Outside:
    """A live cluster of two nodes, seen through everything that shows it."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.url = live.facts["redis_url"]
        self.redis = Redis.from_url(self.url, decode_responses=True)
        self.app = queues.sender(load({"EXO_REDIS_URL": self.url}))

    @staticmethod
    def worker(node: str) -> str:
        return f"{node}@{socket.gethostname()}"

    def celery(self, *words: str, code: int = 0) -> str:
        """Run the `celery` command as a person would."""
        told = subprocess.run([*CELERY, *words], env=self.env, capture_output=True, text=True)
        assert told.returncode == code, told.stdout + told.stderr
        return told.stdout

    @property
    def env(self) -> dict[str, str]:
        return os.environ | {"EXO_REDIS_URL": self.url, "COLUMNS": "200"}

    def inspect(self, command: str, *nodes: str) -> dict[str, Any]:
        """Send one command to these nodes' workers and return the answers by node; all come in time."""
        to = [self.worker(node) for node in nodes]
        started = time.monotonic()
        answers = self.app.control.broadcast(
            command, destination=to, reply=True, timeout=INSPECT_SECONDS, limit=len(to)
        )
        assert time.monotonic() - started <= INSPECT_SECONDS
        by_worker = {name: answer for one in answers for name, answer in one.items()}
        return {node: by_worker[self.worker(node)] for node in nodes}

    def hashed(self, node: str) -> Download:
        """Read a hash as `redis-cli hgetall` shows it."""
        fields = self.redis.hgetall(f"exo:download:{node}:{DEMO}")
        return Download(node=node, model=DEMO, **{name: text for name, text in fields.items() if text})

    def inspected(self, node: str) -> Download:
        (one,) = self.inspect("downloads", node)[node]["downloads"]
        return Download(**one)

    def rest(self, node: str) -> Download:
        return Download(**self.live.download(node))

    def downloading(self) -> None:
        """Have node-2 get the rest of its model, slowly."""
        self.live.http.post("/api/downloads", json={"node": "node-2", "model": DEMO}).raise_for_status()
        eventually(lambda: self.hashed("node-2"), lambda one: one.status == "ongoing" and one.speed_bps > 0, 30)

    @contextmanager
    def busy(self, node: str) -> Iterator[None]:
        """Keep all threads of a node's worker busy: they wait for their turn to place, which we have."""
        with self.redis.lock(keys.turn("exo", "placing"), timeout=100):
            for _ in range(THREADS * TURNS):
                queues.send(self.app, "exo.place_model", "inst-nobody", queue=queues.node_queue(node))
            eventually(lambda: self.busy_threads(node), lambda busy: busy == THREADS, 30)
            yield
            assert self.busy_threads(node) == THREADS
            with self.app.connection_for_write() as connection:
                connection.default_channel.queue_purge(queues.node_queue(node))

    def busy_threads(self, node: str) -> int:
        return len(self.inspect("active", node)[node])


def told(one: Download) -> dict[str, Any]:
    return {name: getattr(one, name) for name in SHOWN}


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    live = Live(tmp_path_factory.mktemp("inspect"), "--nodes", "2", EXO_DOWNLOAD_LIMIT=str(LIMIT))
    outside = Outside(live)
    yield outside
    outside.redis.close()
    outside.app.close()
    live.stop()


def test_at_rest_all_say_the_same(outside: Outside) -> None:
    nodes = ("node-1", "node-2")
    eventually(lambda: outside.hashed("node-1").status, lambda status: status == "completed", 30)
    told_by_cli = json.loads(outside.celery("inspect", "downloads", "-j", "-t", "2"))
    for node in nodes:
        (by_cli,) = told_by_cli[outside.worker(node)]["downloads"]
        ways = [Download(**by_cli), outside.hashed(node), outside.inspected(node), outside.rest(node)]
        assert [told(one) for one in ways] == [told(ways[0])] * 4
    assert [percent(outside.rest(node)) for node in nodes] == [100, 51]


def test_while_a_download_runs_all_say_the_same(outside: Outside) -> None:
    outside.downloading()

    def at_one_moment() -> list[dict[str, Any]]:
        before = told(outside.hashed("node-2"))
        return [before, told(outside.inspected("node-2")), told(outside.rest("node-2")), told(outside.hashed("node-2"))]

    before, inspected, rest, after = eventually(at_one_moment, lambda seen: seen[0] == seen[-1], 30)
    assert inspected == rest == before == after
    assert before["status"] == "ongoing"
    assert 0 < before["speed_bps"] < 2 * LIMIT


def test_inspect_answers_in_time_while_all_threads_are_busy(outside: Outside) -> None:
    outside.downloading()
    with outside.busy("node-2"):
        for _ in range(5):
            ways = [outside.hashed, outside.inspected, outside.rest, outside.hashed]
            seen = [way("node-2") for way in ways]
            assert {one.status for one in seen} == {"ongoing"}
            assert sorted(seen, key=lambda one: one.downloaded_bytes) == seen
        words = ("inspect", "downloads", "-j", "-t", str(INSPECT_SECONDS), "-d", outside.worker("node-2"))
        before, by_cli, after = outside.hashed("node-2"), json.loads(outside.celery(*words)), outside.hashed("node-2")
        (one,) = by_cli[outside.worker("node-2")]["downloads"]
        assert before.downloaded_bytes <= one["downloaded_bytes"] <= after.downloaded_bytes


def test_the_page_says_the_same_and_grows_without_a_reload(outside: Outside, browser: Browser) -> None:
    outside.downloading()
    page = browser.new_page(base_url=outside.live.url)
    cell = page.locator(f'[data-node="node-2"][data-model="{DEMO}"]')
    before = percent(outside.hashed("node-2"))
    page.goto("/models")
    shown = int(cell.locator("b").inner_text().removesuffix(" %"))
    assert before <= shown <= percent(outside.hashed("node-2"))
    expect(cell).to_have_attribute("data-state", "ongoing")
    expect(cell.locator("b")).not_to_have_text(f"{shown} %", timeout=20_000)
    cell.get_by_role("button", name="Cancel").click()
    expect(cell).to_have_attribute("data-state", "partial", timeout=20_000)
    expect(cell.locator("b")).to_have_text(f"{percent(outside.hashed('node-2'))} %")
    expect(page.locator('[data-node="node-1"] b')).to_have_text("100 %")
    page.close()
    assert outside.inspected("node-2").status == outside.rest("node-2").status == "pending"


def test_a_node_says_what_it_is(outside: Outside) -> None:
    by_worker = json.loads(outside.celery("inspect", "node", "-j", "-t", "2", "-d", outside.worker("node-2")))
    assert list(by_worker) == [outside.worker("node-2")]
    said = by_worker[outside.worker("node-2")]
    assert said["id"] == "node-2"
    assert said["backends"]
    assert 0 < said["ram_available_bytes"] <= said["ram_total_bytes"]


def test_nobody_of_that_name_is_an_exit_code(outside: Outside) -> None:
    outside.celery("inspect", "downloads", "-t", "1", "-d", "nobody@nowhere", code=69)


def test_a_refresh_finds_what_was_put_on_a_disk(outside: Outside) -> None:
    strange = Path(outside.live.facts["nodes"]["node-2"]["models_dir"]) / "org--strange"
    strange.mkdir()
    (strange / "config.json").write_text("{}")
    (strange / "model.safetensors").write_bytes(b"too short")
    assert "node-2 is looking at its disks" in outside.celery("control", "refresh_downloads")
    held = "exo:download:node-2:org/strange"
    eventually(lambda: outside.redis.exists(held), bool, 20)


def test_the_lists_of_the_command_line(outside: Outside) -> None:
    for name in ("nodes", "models", "downloads", "instances"):
        listed = json.loads(outside.celery("exo", name, "--json"))
        assert listed.keys() == {name}
        assert [one.get("id") for one in listed[name]] == [
            one.get("id") for one in outside.live.get(f"/api/{name}")[name]
        ]
    assert "node-2" in outside.celery("exo", "nodes")


@contextmanager
def flower(outside: Outside) -> Iterator[httpx.Client]:
    """Run Flower beside the cluster."""
    port = free_port()
    argv = [*CELERY, "flower", "--address=127.0.0.1", f"--port={port}"]
    env = outside.env | {"FLOWER_UNAUTHENTICATED_API": "true"}
    process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, follow_redirects=True) as http:
        try:
            eventually(lambda: answers(http), bool, 60)
            yield http
        finally:
            process.terminate()
            process.wait()


def answers(http: httpx.Client) -> bool:
    try:
        return http.get("/healthcheck").status_code == 200
    except httpx.TransportError:
        return False


def test_no_prompt_and_no_answer_shows_while_a_job_runs(outside: Outside) -> None:
    live = outside.live
    instance = live.ready(live.place())
    serving = f"serve-{instance['id']}"
    with flower(outside) as http:
        eventually(lambda: http.get("/api/tasks").json(), bool, 60)  # it hears of ticks, so it will hear of the job
        ask = {"messages": [{"role": "user", "content": f"Tell a long story of {SECRET}."}], "max_tokens": 80}
        job = live.submit(**ask)
        live.job(job, "running")
        active = eventually(lambda: outside.inspect("active", serving)[serving], bool, 10)
        assert active[0]["name"] == "exo.generate"
        said = outside.inspect("shards", serving)[serving]
        assert said == {"serving": instance["id"], "model": DEMO, "running_jobs": 1, "ring": ["node-1"]}
        seen = {command: json.dumps(outside.inspect(command, "node-1", serving)) for command in INSPECTED}
        seen |= {words: outside.celery(*words.split()) for words in ("status", "inspect active", "exo jobs")}
        answer = live.job(job, "succeeded")["text"]
        (task,) = eventually(lambda: finished(http), bool, 30)
        pages = ("/api/tasks", "/api/workers?refresh=1", f"/task/{task}", "/tasks", "/workers", "/")
        seen |= {page: http.get(page).raise_for_status().text for page in pages}
    assert "exo.generate" in seen[f"/task/{task}"]
    assert serving in seen["/workers"] + seen["/api/workers?refresh=1"]
    assert len(answer) > 30
    for where, text in seen.items():
        assert SECRET not in text, where
        assert answer[:30] not in text, where
        assert json.dumps(answer[:30])[1:-1] not in text, where


def finished(http: httpx.Client) -> list[str]:
    """Return the ids of the generations that Flower has seen end."""
    seen = http.get("/api/tasks", params={"taskname": "exo.generate"}).json()
    return [task for task, facts in seen.items() if facts["state"] == "SUCCESS"]
