"""Pumps that die at any command, two at a time: no line is lost, none stands twice, counts never go down."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from redis import Redis
from stand.worker import MODEL, Worker

from exo_celery import batches, queues
from exo_celery.batches import Wanted
from exo_celery.context import Context
from exo_celery.pump.step import step
from exo_celery.records.batch import Batch, BatchStatus
from exo_celery.records.job import JobState
from exo_celery.settings import Settings
from exo_celery.store import keys

LINES = 30
SLOTS = 8
DEATHS = 0.08  # per command: most steps die somewhere
ROUNDS = 2000


class Died(BaseException):
    """The process is gone: nothing catches that."""


class Mortal(Redis):
    """A client whose process is killed at some command, before it is sent or before the answer comes."""

    random = Random()
    lock = threading.Lock()

    def execute_command(self, *args: Any, **options: Any) -> Any:
        with self.lock:
            drawn = self.random.random()
        if drawn < DEATHS / 2:
            raise Died
        answer = super().execute_command(*args, **options)
        if drawn < DEATHS:
            raise Died
        return answer


def content() -> bytes:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Where?"}]}
    rows = [
        {"custom_id": f"c-{n}", "method": "POST", "url": "/v1/chat/completions", "body": body} for n in range(LINES)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


class Run:
    """One batch, two pumps at a time that die, and a worker that answers some of what is queued."""

    def __init__(self, redis: Redis, redis_url: str, ns: str, seed: int) -> None:
        settings = Settings(redis_url=redis_url, namespace=ns, serve_slots=SLOTS)
        self.cluster = Context(settings, redis, queues.sender(settings))
        self.worker, self.random = Worker(redis, ns), Random(seed)
        self.worker.set_up()
        Mortal.random = Random(seed)
        self.mortal = Context(settings, Mortal.from_url(redis_url, decode_responses=True), self.cluster.app)
        file = batches.save_file(self.cluster, "in.jsonl", [content()])
        self.batch = batches.create_batch(self.cluster, Wanted(file.id, "/v1/chat/completions", "24h", 86_400))
        self.deaths = 0

    def look(self) -> Batch:
        """Let two pumps run at once, and see that no count went down."""
        with ThreadPoolExecutor(2) as pumps:
            for running in [pumps.submit(self.pump) for _ in range(2)]:
                running.result()
        now = batches.batch(self.cluster, self.batch.id)
        assert now.completed >= self.batch.completed
        assert now.failed >= self.batch.failed
        self.batch = now
        return now

    def pump(self) -> None:
        try:
            step(self.mortal, self.batch.id)
        except Died:
            self.deaths += 1

    def work(self) -> None:
        """Answer some of the jobs that are queued; never are there more than the window."""
        queued = self.cluster.redis.zcard(keys.jobs(self.cluster.ns, JobState.QUEUED))
        assert queued <= SLOTS - 2
        for _ in range(self.random.randint(0, queued)):
            job = self.worker.next_job()
            assert job.attempt == 1
            if self.random.random() < 0.3:
                self.worker.fail(job, {"message": "no", "code": "template_error"})
            else:
                self.worker.finish(job)

    def end_early(self, ending: BatchStatus) -> None:
        """Half way, cancel the batch or let its time be over."""
        is_half = self.batch.completed + self.batch.failed >= LINES // 2
        if not is_half or self.batch.status is not BatchStatus.IN_PROGRESS:
            return
        if ending is BatchStatus.CANCELLED:
            batches.cancel_batch(self.cluster, self.batch.id)
        elif ending is BatchStatus.EXPIRED:
            self.cluster.redis.hset(keys.batch(self.cluster.ns, self.batch.id), "expires_at", "1")

    def custom_ids(self, file_id: str | None) -> list[str]:
        if file_id is None:
            return []
        text = b"".join(batches.file_content(self.cluster, batches.file(self.cluster, file_id)))
        return [json.loads(line)["custom_id"] for line in text.splitlines()]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("ending", [BatchStatus.COMPLETED, BatchStatus.CANCELLED, BatchStatus.EXPIRED])
def test_every_line_once(redis: Redis, redis_url: str, namespace: str, seed: int, ending: BatchStatus) -> None:
    run = Run(redis, redis_url, namespace, seed)
    for _ in range(ROUNDS):
        if run.look().over:
            break
        run.work()
        run.end_early(ending)
    run.mortal.redis.close()
    assert run.deaths > 0
    ended = run.batch
    good, bad = run.custom_ids(ended.output_file_id), run.custom_ids(ended.error_file_id)
    assert sorted(good + bad) == sorted(f"c-{n}" for n in range(LINES))
    assert (ended.status, ended.completed, ended.failed) == (ending, len(good), len(bad))
    assert ended.total == LINES
