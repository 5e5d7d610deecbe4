"""A real cluster for tests: `exo-celery up` as a child process, and what a person would do with it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx

T = TypeVar("T")
DEMO = "HuggingFaceTB/SmolLM2-135M-Instruct"
COMMAND = str(Path(sys.executable).with_name("exo-celery"))
START_SECONDS = 180  # the demo model may have to be made first
PARIS = {"model": DEMO, "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 16}


def eventually(read: Callable[[], T], good: Callable[[T], bool], seconds: float) -> T:
    """Read until the value is good; fail with the last one read."""
    end = time.monotonic() + seconds
    while True:
        value = read()
        if good(value):
            return value
        assert time.monotonic() < end, f"after {seconds} s it still reads: {value}"
        time.sleep(0.2)


class Live:
    """A running `exo-celery up`."""

    def __init__(self, data_dir: Path, *options: str, **environ: str) -> None:
        self.data_dir = data_dir
        env = {name: text for name, text in os.environ.items() if not name.startswith(("EXO_", "CELERY_"))}
        argv = [COMMAND, "up", "--data-dir", str(data_dir), "--port", "0", *options]
        self.process = subprocess.Popen(argv, env=env | environ, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready "), f"up said {line!r}"
        self.url = line.split()[1]
        self.http = httpx.Client(base_url=self.url, timeout=60)

    @property
    def facts(self) -> Any:
        """What `up.json` says now."""
        return json.loads((self.data_dir / "up.json").read_text())

    def stop(self) -> int:
        """Tell it to end, and wait."""
        self.http.close()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def get(self, path: str) -> Any:
        """GET and read JSON."""
        answer = self.http.get(path)
        answer.raise_for_status()
        return answer.json()

    def download(self, node: str, model: str = DEMO) -> Any:
        """Return one model on one node as REST tells it."""
        found = self.get("/api/downloads")["downloads"]
        return next((one for one in found if (one["node"], one["model"]) == (node, model)), None)

    def place(self, **request: Any) -> str:
        """Place the demo model and return the instance's id."""
        answer = self.http.post("/api/instances", json={"model": DEMO, **request})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def instance(self, instance_id: str) -> Any:
        """Return an instance."""
        return self.get(f"/api/instances/{instance_id}")

    def ready(self, instance_id: str, epoch: int = 0, seconds: float = 90) -> Any:
        """Wait until an instance is ready in this epoch or a later one."""
        good = lambda one: one["status"] == "ready" and one["epoch"] >= epoch  # noqa: E731
        return eventually(lambda: self.instance(instance_id), good, seconds)

    def submit(self, **request: Any) -> str:
        """Submit a job and return its id."""
        answer = self.http.post("/api/jobs", json=PARIS | request)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def job(self, job_id: str, *states: str, seconds: float = 90) -> Any:
        """Wait until a job is in one of the states."""
        return eventually(lambda: self.get(f"/api/jobs/{job_id}"), lambda job: job["state"] in states, seconds)

    def ask(self, **request: Any) -> Any:
        """Submit a job and wait for its end."""
        return self.job(self.submit(**request), "succeeded", "failed", "cancelled")
