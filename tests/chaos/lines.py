"""The batch in a storm: each line must have one result, and only what a kill interrupted may be computed again."""

import json
import threading
import time
from collections import Counter
from typing import Any

import httpx
from live import DEMO, eventually
from redis import Redis
from redis.exceptions import RedisError

LOOK_SECONDS = 0.1
Run = tuple[str, int]  # a job and the number of one of its attempts


class Lines:
    """A batch whose lines are watched while they run."""

    def __init__(self, redis: Redis, ns: str, http: httpx.Client, count: int) -> None:
        self.redis, self.ns, self.http, self.count = redis, ns, http, count
        self.interrupted: set[Run] = set()  # what was running when an engine was hit
        self.repeated: dict[Run, int] = {}  # the tokens of attempts that were followed by another one
        self.over = threading.Event()
        self.watcher = threading.Thread(target=self.watch)
        content = "".join(json.dumps(self.request(number)) + "\n" for number in range(count))
        file = http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("lines.jsonl", content)}).json()
        wanted = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        self.batch_id = http.post("/v1/batches", json=wanted).json()["id"]
        self.watcher.start()

    def request(self, number: int) -> dict[str, Any]:
        body = {"model": DEMO, "prompt": f"Line {number} is followed by", "max_tokens": 8, "temperature": 0}
        return {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions", "body": body}

    def running(self) -> set[Run]:
        """Return what runs now."""
        jobs = [job for job in self.redis.zrange(f"{self.ns}:jobs:running", 0, -1) if job.startswith(self.batch_id)]
        with self.redis.pipeline(transaction=False) as pipe:
            for job in jobs:
                pipe.hget(f"{self.ns}:job:{job}", "attempt")
            return {(job, int(attempt or 0)) for job, attempt in zip(jobs, pipe.execute(), strict=True)}

    def watch(self) -> None:
        """Note how far attempts had come that were followed by another one: a record lives no longer than its line."""
        while not self.over.wait(LOOK_SECONDS):
            try:
                for job, attempt in self.running():
                    if attempt > 1:
                        self.note(job, attempt)
            except RedisError:
                time.sleep(LOOK_SECONDS)

    def note(self, job: str, attempt: int) -> None:
        stream = self.redis.xrange(f"{self.ns}:tokens:{job}")
        said = Counter(int(event.partition("-")[0]) for event, fields in stream if fields["kind"] == "delta")
        self.repeated |= {(job, before): said[before] for before in range(1, attempt)}

    def results(self, seconds: float) -> list[str]:
        """Wait for the end of the batch and return the custom ids of its files."""
        ended = ("completed", "failed", "expired", "cancelled")
        batch = eventually(self.batch, lambda one: one.get("status") in ended, seconds)
        self.over.set()
        self.watcher.join()
        files = [batch[name] for name in ("output_file_id", "error_file_id") if batch[name]]
        texts = [self.http.get(f"/v1/files/{file}/content").text for file in files]
        return [json.loads(line)["custom_id"] for text in texts for line in text.splitlines()]

    def batch(self) -> Any:
        try:
            return self.http.get(f"/v1/batches/{self.batch_id}").json()
        except (httpx.TransportError, ValueError):
            return {}

    def broken(self, seconds: float) -> list[str]:
        """Wait for the end, and return the promises that were not kept."""
        found = self.results(seconds)
        wanted = [self.request(number)["custom_id"] for number in range(self.count)]
        unasked = set(self.repeated) - self.interrupted
        return [
            *(["a line is missing, or stands twice"] if sorted(found) != sorted(wanted) else []),
            *([f"computed again though nothing interrupted them: {sorted(unasked)}"] if unasked else []),
        ]

    def summary(self) -> str:
        """Say what was computed again."""
        tokens, runs = sum(self.repeated.values()), len(self.repeated)
        return f"lines: {self.count}, {runs} of {len(self.interrupted)} interrupted run again, {tokens} tokens twice"
