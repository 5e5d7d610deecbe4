"""Measure how long a submission takes until its job is durable: `python benchmarks/submit.py [--rate 200] [--json F]`.

No instance runs, so jobs wait in the queue. Two ways: the Python client, and `POST /api/jobs` over a kept connection.
Submissions are due at a fixed rate and timed from when they were due, so that a slow one is not hidden by those that
wait behind it.
"""

import argparse
import http.client
import json
import math
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from exo_celery.client import Client
from exo_celery.local import redis_server
from exo_celery.local.layout import gunicorn
from exo_celery.records.model import ModelCard
from exo_celery.store import cards, job_lists
from exo_celery.store.job_lists import Filter

MODEL = "org/waits"
PROMPT = "What is the capital of France? " * 12
THREADS = 16


def paced(submit: Callable[[], object], rate: float, seconds: float) -> list[float]:
    """Submit at a rate; return the milliseconds from when each was due to its answer."""
    took: list[float] = []
    begun = math.inf

    def one(number: int) -> None:
        due = begun + number / rate
        time.sleep(max(0.0, due - time.monotonic()))
        submit()
        took.append((time.monotonic() - due) * 1000)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda _: submit(), range(4 * THREADS)))  # connections are made by the first submissions
        begun = time.monotonic() + 0.2
        list(pool.map(one, range(int(rate * seconds))))
    return took


def row(name: str, took: list[float]) -> dict[str, Any]:
    """Return the figures of one way."""
    cuts = statistics.quantiles(took, n=100)
    return {"way": name, "submissions": len(took), "p50_ms": cuts[49], "p95_ms": cuts[94], "max_ms": max(took)}


def over_rest(port: int) -> Callable[[], object]:
    """Return a submission over REST; each thread keeps its connection. A raw client: it shares the cores."""
    here = threading.local()
    body = json.dumps({"model": MODEL, "prompt": PROMPT})
    head = {"Content-Type": "application/json"}

    def submit() -> object:
        if not hasattr(here, "http"):
            here.http = http.client.HTTPConnection("127.0.0.1", port)
        here.http.request("POST", "/api/jobs", body, head)
        answer = here.http.getresponse()
        said = answer.read()
        assert answer.status == 202, said
        return said

    return submit


def measure(folder: Path, rate: float, seconds: float) -> list[dict[str, Any]]:
    """Measure both ways on a server of their own, then what a queued job costs and how fast a page is."""
    server = redis_server.prepare(folder)
    process = redis_server.start(server, folder / "log")
    redis_server.wait_until_answers(server, process, folder / "log")
    namespace = f"bench-{uuid.uuid4().hex[:6]}"
    client = Client(server.url, namespace)
    cards.save(client.redis, namespace, ModelCard(id=MODEL, storage_bytes=1, n_layers=1, hidden_size=1))
    port = redis_server.free_port()
    env = {"EXO_REDIS_URL": server.url, "EXO_NAMESPACE": namespace, "EXO_AUTO_PLACE": "0", "PATH": ""}
    web = subprocess.Popen(gunicorn(port), env=env, stderr=subprocess.DEVNULL)
    try:
        submit_rest = over_rest(port)
        wait_for_web(f"http://127.0.0.1:{port}/healthz")
        before = int(client.redis.info("memory")["used_memory"])
        rows = [row("client", paced(lambda: client.submit(MODEL, prompt=PROMPT), rate, seconds))]
        after = int(client.redis.info("memory")["used_memory"])
        rows[0]["bytes_per_job_beyond_text"] = round((after - before) / rows[0]["submissions"]) - len(PROMPT)
        rows.append(row("REST", paced(submit_rest, rate, seconds)))
        begun = time.monotonic()
        page, _ = job_lists.page(client.redis, namespace, Filter(), 100, None)
        rows.append({"way": f"a page of {len(page)}", "p50_ms": (time.monotonic() - begun) * 1000})
        return rows
    finally:
        web.terminate()
        web.wait()
        process.terminate()
        process.wait()


def wait_for_web(url: str) -> None:
    """Wait until the web answers."""
    for _ in range(200):
        try:
            httpx.get(url)
            return
        except httpx.TransportError:
            time.sleep(0.1)
    raise SystemExit("the web did not come up")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), asked.rate, asked.seconds)
    for one in rows:
        print(
            "  ".join(
                f"{name} {value:.1f}" if isinstance(value, float) else f"{name} {value}" for name, value in one.items()
            )
        )
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    sys.exit(main())
