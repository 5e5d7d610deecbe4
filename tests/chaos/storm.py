"""A storm: jobs from several clients while parts of a whole cluster are killed. Every job must end exactly once.

    python tests/chaos/storm.py --jobs 1000 --lines 2000 --clients 20 --faults 30 --seed 7

`--lines` are those of a batch that runs meanwhile. The seed fixes which parts are hit and when; the machine decides
what they were doing. It prints what it did and what came of it, and exits with 1 if a promise was broken.
"""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import httpx
import psutil
from redis import Redis

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
from lines import Lines
from live import DEMO, Live, eventually

from exo_celery.local import redis_server

NS = "exo"
ENDED = ("succeeded", "failed", "cancelled")
OUTAGE_SECONDS = 3.0
PAUSE_SECONDS = (2.0, 6.0)  # between two faults
SETTLE_SECONDS = 240.0  # to the last job's end after the last fault
LINE_SECONDS = 0.3  # more for each line of a batch
ENGINE_FAULTS = frozenset({"serving_worker", "runner", "node_worker", "redis_restart"})  # they interrupt what runs


@dataclass(frozen=True)
class Plan:
    """What a storm does."""

    jobs: int
    clients: int
    faults: int
    seed: int
    lines: int = 0


@dataclass
class Report:
    """What came of it; `broken` are the promises that were not kept."""

    states: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    attempts: int = 0
    settled_seconds: float = 0.0
    batch: str = ""
    broken: list[str] = field(default_factory=list)

    def expect(self, held: bool, promise: str) -> None:
        """Note a promise that was broken."""
        if not held:
            self.broken.append(promise)


class Storm:
    """One run: a server of its own with AOF, a cluster with two replicas, clients, and what hits them."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.plan = plan
        self.rng = random.Random(plan.seed)
        self.log = folder / "redis.log"
        self.server = redis_server.prepare(folder / "redis")
        self.process = redis_server.start(self.server, self.log)
        self.redis = Redis.from_url(self.server.url, decode_responses=True)
        self.live = Live(folder / "up", "--nodes", "2", EXO_REDIS_URL=self.server.url, EXO_REPORT_SECONDS="5")
        self.report = Report()
        self.ids: dict[int, str] = {}
        self.lock = threading.Lock()
        self.lines: Lines | None = None

    def run(self) -> Report:
        """Do everything and return what came of it."""
        for node in ("node-1", "node-2"):
            self.live.ready(self.live.place(required_nodes=[node], max_nodes=1), seconds=180)
        if self.plan.lines:
            self.lines = Lines(self.redis, NS, self.live.http, self.plan.lines)
        spread = self.plan.faults * sum(PAUSE_SECONDS) / 2
        clients = [threading.Thread(target=self.client, args=(number, spread)) for number in range(self.plan.clients)]
        for client in clients:
            client.start()
        kinds = self.kinds()
        for kind in kinds:
            time.sleep(self.rng.uniform(*PAUSE_SECONDS))
            self.report.faults.append(kind)
            self.hit(kind)
        for client in clients:
            client.join()
        self.settle()
        self.judge()
        return self.report

    def hit(self, kind: str) -> None:
        """Do something bad, and remember what ran just before and just after it."""
        if self.lines and kind in ENGINE_FAULTS:
            self.lines.interrupted |= self.lines.running()
        getattr(self, kind)()
        if self.lines and kind in ENGINE_FAULTS:
            self.lines.interrupted |= self.lines.running()

    def kinds(self) -> list[str]:
        """Return what is hit, in order: every kind comes before one comes again."""
        every = ["serving_worker", "redis_restart", "runner", "web", "connections", "node_worker", "beat"]
        found: list[str] = []
        while len(found) < self.plan.faults:
            self.rng.shuffle(every)
            found += every
        return found[: self.plan.faults]

    # Clients

    def client(self, number: int, spread: float) -> None:
        """Submit this client's share of the jobs, evenly over the storm."""
        mine = range(number, self.plan.jobs, self.plan.clients)
        begun = time.monotonic()
        with httpx.Client(base_url=self.live.url, timeout=10) as http:
            for job in mine:
                time.sleep(max(0.0, begun + spread * job / self.plan.jobs - time.monotonic()))
                self.submit(http, job)

    def submit(self, http: httpx.Client, job: int) -> None:
        """Submit a job as a careful program does: with a key, and again until it is answered."""
        body = {
            "model": DEMO,
            "prompt": f"Number {job} is followed by",
            "max_tokens": 1 + job % 8,
            "temperature": 0.7,
        }
        key = {"Idempotency-Key": f"storm-{self.plan.seed}-{job}"}
        until = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < until:
            try:
                answer = http.post("/api/jobs", json=body, headers=key)
                if answer.status_code == 202:
                    with self.lock:
                        self.ids[job] = answer.json()["id"]
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.3)

    # Faults

    def children(self, node: str, word: str) -> list[psutil.Process]:
        """Return the processes below a node worker whose command has a word."""
        found = []
        for child in self.worker(node).children(recursive=True):
            try:
                if any(word in part for part in child.cmdline()):
                    found.append(child)
            except psutil.Error:
                continue
        return found

    def worker(self, node: str) -> psutil.Process:
        return psutil.Process(self.live.facts["nodes"][node]["pid"])

    def some_node(self) -> str:
        return self.rng.choice(("node-1", "node-2"))

    def kill(self, *found: psutil.Process) -> None:
        """Kill processes as a crash does; one that just ended has saved us the trouble."""
        for process in found:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue

    def serving_worker(self) -> None:
        self.kill(*self.children(self.some_node(), "serve-"))

    def runner(self) -> None:
        self.kill(*self.children(self.some_node(), "exo_celery.runner.main"))

    def node_worker(self) -> None:
        self.kill(self.worker(self.some_node()))

    def web(self) -> None:
        parent = psutil.Process(self.live.facts["web"]["pid"])
        self.kill(*parent.children(), parent)

    def beat(self) -> None:
        self.kill(psutil.Process(self.live.facts["beat"]["pid"]))

    def connections(self) -> None:
        """Cut every connection to Redis at once."""
        self.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def redis_restart(self) -> None:
        """Kill Redis, and ask meanwhile whether the cluster is ready: it must not say yes."""
        self.process.kill()
        self.process.wait()
        time.sleep(OUTAGE_SECONDS)
        try:
            said = httpx.get(f"{self.live.url}/readyz", timeout=20).status_code
        except httpx.TransportError:
            said = 0
        self.report.expect(said != 200, "/readyz said 200 while Redis was away")
        self.process = redis_server.start(self.server, self.log)
        redis_server.wait_until_answers(self.server, self.process, self.log)

    # Afterwards

    def settle(self) -> None:
        """Wait until every job has ended."""
        begun = time.monotonic()
        ids = list(self.ids.values())
        left = ids
        while left and time.monotonic() < begun + SETTLE_SECONDS:
            time.sleep(0.5)
            with self.redis.pipeline(transaction=False) as pipe:
                for job_id in left:
                    pipe.hget(f"{NS}:job:{job_id}", "state")
                left = [job_id for job_id, state in zip(left, pipe.execute(), strict=True) if state not in ENDED]
        self.report.settled_seconds = time.monotonic() - begun
        self.report.expect(not left, f"{len(left)} of {len(ids)} jobs never ended: {left[:5]}")

    def judge(self) -> None:
        """Look at each job's record and stream, at the indexes, and whether everybody still works."""
        if self.lines:
            self.report.broken += self.lines.broken(SETTLE_SECONDS + LINE_SECONDS * self.plan.lines)
            self.report.batch = self.lines.summary()
        expect = self.report.expect
        expect(len(self.ids) == self.plan.jobs, f"only {len(self.ids)} of {self.plan.jobs} jobs were taken")
        expect(len(set(self.ids.values())) == len(self.ids), "two submissions became one job")
        for number, job_id in sorted(self.ids.items()):
            self.judge_job(number, job_id)
        listed = sum(self.redis.zcard(f"{NS}:jobs:{state}") for state in ("queued", "running", *ENDED))
        expect(listed == self.redis.zcard(f"{NS}:jobs:all"), "a job stands in two lists or in none")
        self.judge_workers()

    def judge_job(self, number: int, job_id: str) -> None:
        """Look at one job: one end in its stream, and the text of its last attempt in its record."""
        expect = self.report.expect
        job = self.redis.hgetall(f"{NS}:job:{job_id}")
        state = job.get("state", "lost")
        self.report.states[state] += 1
        self.report.attempts += int(job.get("attempt", 0))
        stream = self.redis.xrange(f"{NS}:tokens:{job_id}")
        ends = [fields for _, fields in stream if fields["kind"] == "end"]
        expect(len(ends) == 1, f"job {number} ({job_id}, {state}) has {len(ends)} ends")
        if state == "succeeded":
            said = json.loads(job["usage"])["completion_tokens"]
            expect(1 <= said <= 1 + number % 8, f"job {number} has {said} tokens of {1 + number % 8}")
            last = [
                fields["text"]
                for event, fields in stream
                if event.startswith(f"{job['attempt']}-") and "text" in fields
            ]
            expect("".join(last) == job.get("text", ""), f"job {number}: its stream and its text differ")
        else:
            code = json.loads(job.get("error") or "{}").get("code")
            expect(code == "attempts_exhausted", f"job {number} is {state}: {code}")

    def judge_workers(self) -> None:
        """Nobody is deaf: the web says ready, both replicas answer, each node worker takes from its own queue."""
        eventually(self.readyz, lambda status: status == 200, 60)
        for instance in self.live.get("/api/instances")["instances"]:
            self.live.ready(instance["id"], seconds=180)
        rings: set[str] = set()
        until = time.monotonic() + 60
        while len(rings) < 2 and time.monotonic() < until:
            jobs = [self.live.submit(max_tokens=4) for _ in range(6)]
            rings |= {self.live.job(job, *ENDED)["instance"] for job in jobs}
        self.report.expect(len(rings) == 2, f"only {rings} answer")
        reported = lambda node: float(self.redis.hget(f"{NS}:download:{node}:{DEMO}", "updated_at") or 0)  # noqa: E731
        for node in ("node-1", "node-2"):
            before = reported(node)
            eventually(lambda node=node: reported(node), lambda at, before=before: at > before, 40)

    def readyz(self) -> int:
        try:
            return self.live.http.get("/readyz").status_code
        except httpx.TransportError:
            return 0

    def close(self) -> None:
        """End everything."""
        if self.lines:
            self.lines.over.set()
        self.live.stop()
        self.redis.close()
        self.process.kill()
        self.process.wait()


def storm(folder: Path, plan: Plan) -> Report:
    """Run a storm in a folder."""
    running = Storm(folder, plan)
    try:
        return running.run()
    finally:
        running.close()


def main() -> int:
    """Run a storm as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("jobs", 1000), ("clients", 20), ("faults", 30), ("seed", 1), ("lines", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked: dict[str, Any] = vars(parser.parse_args())
    with tempfile.TemporaryDirectory(prefix="storm-") as folder:
        report = storm(Path(folder), Plan(**asked))
    click.echo(f"faults: {' '.join(report.faults)}")
    click.echo(
        f"jobs: {dict(report.states)}, {report.attempts} attempts, all ended {report.settled_seconds:.1f} s after"
    )
    if report.batch:
        click.echo(report.batch)
    for promise in report.broken:
        click.echo(f"BROKEN: {promise}")
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
