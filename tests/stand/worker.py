"""What a serving worker does with a job, step by step, by the store's own transitions."""

import time
import uuid
from dataclasses import dataclass
from typing import Any

from redis import Redis

from exo_celery.records.instance import Instance, InstanceStatus, PlacementRequest, Rank
from exo_celery.records.job import Job, JobState, Usage
from exo_celery.records.model import ModelCard
from exo_celery.records.node import Node
from exo_celery.store import cards, instances, jobs, keys, nodes, tokens
from exo_celery.store.jobs import Outcome
from exo_celery.store.tokens import Piece

MODEL = "org/known"
NODE = Node(id="node-1", boot_id="boot", ram_total_bytes=10**9, ram_available_bytes=10**8, backends=("MlxCpu",))
USAGE = Usage(prompt_tokens=3, completion_tokens=2, total_tokens=5)


@dataclass(frozen=True)
class Worker:
    """A ready instance of one model, and the steps by which its serving worker writes a job."""

    redis: Redis
    ns: str

    def set_up(self) -> None:
        cards.save(self.redis, self.ns, ModelCard(id=MODEL, storage_bytes=1000, n_layers=4, hidden_size=8))
        nodes.heartbeat(self.redis, self.ns, NODE)
        instances.save(self.redis, self.ns, self.instance())

    def instance(self) -> Instance:
        return Instance(
            id="i1",
            model=MODEL,
            status=InstanceStatus.READY,
            epoch=1,
            request=PlacementRequest(model=MODEL),
            ring=(Rank(node="node-1", rank=0, start_layer=0, end_layer=4),),
            why="the only node",
        )

    def next_job(self) -> Job:
        """Claim the next queued job as soon as there is one."""
        until = time.monotonic() + 10
        while time.monotonic() < until:
            for job_id in self.redis.zrange(keys.jobs(self.ns, JobState.QUEUED), 0, 0):
                if job := jobs.claim(self.redis, self.ns, job_id, "i1", ["node-1"], uuid.uuid4().hex):
                    return job
            time.sleep(0.01)
        raise AssertionError("no job was submitted")

    def say(self, job: Job, *words: str, first: int = 1) -> None:
        for number, word in enumerate(words, first):
            assert tokens.append(self.redis, self.ns, [Piece(job.id, job.attempt, number, word)]) == [True]

    def finish(self, job: Job, text: str = "Paris") -> None:
        done = Outcome(JobState.SUCCEEDED, text=text, finish_reason="stop", usage=USAGE)
        assert jobs.finish(self.redis, self.ns, job.id, job.attempt, done)

    def fail(self, job: Job, error: dict[str, Any]) -> None:
        assert jobs.finish(self.redis, self.ns, job.id, job.attempt, Outcome(JobState.FAILED, error=error))

    def state(self, job: Job) -> JobState:
        return jobs.get(self.redis, self.ns, job.id).state
