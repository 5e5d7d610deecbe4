"""What a serving worker does: claim a job, run it on the engine, write down each word and the end, fenced throughout.

All threads share one connection to the runner, one scribe and one thread that renews their leases. When the runner
is gone, the jobs go back into the queue and the process ends: a ring is formed anew with a serving worker of its own.
"""

import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from celery import Celery

from exo_celery import queues, submission
from exo_celery.errors import ExoError, RunnerError
from exo_celery.node.scribe import Line, Scribe, Stopped, Told
from exo_celery.records.batch import batch_of
from exo_celery.records.instance import InstanceStatus, RankStatus
from exo_celery.records.job import Job, JobState
from exo_celery.runner.client import GONE, EngineClient
from exo_celery.runner.protocol import Finished, Refused, Started
from exo_celery.settings import Settings
from exo_celery.store import instances, jobs, tokens
from exo_celery.store.client import TRANSIENT, Redis, connect
from exo_celery.store.jobs import Outcome
from exo_celery.store.tokens import Piece

log = logging.getLogger(__name__)
T = TypeVar("T")
RENEW_SECONDS: Final = 1.0  # also how soon a cancel reaches a job that is not saying anything
CLAIM_PATIENCE_SECONDS: Final = 60
FINISH_PATIENCE_SECONDS: Final = 120
PAUSE_SECONDS: Final = 0.25
GONE_SECONDS: Final = 5  # a worker without a runner ends sooner than that
LOOK_SECONDS: Final = 0.1
GOING: Final = frozenset({InstanceStatus.DRAINING, InstanceStatus.GONE})


class Serving:
    """The jobs that this process is running."""

    def __init__(self, settings: Settings, app: Celery) -> None:
        if settings.serve_instance is None or settings.serve_socket is None:
            raise ExoError("EXO_SERVE_INSTANCE and EXO_SERVE_SOCKET are set by the node worker that starts this one")
        self.app = app
        self.ns = settings.namespace
        self.redis: Redis = connect(settings)
        self.instance = settings.serve_instance
        self.model = settings.serve_model or ""
        self.engine = EngineClient(settings.serve_socket)
        self.scribe = Scribe(self.append)
        self.ring = [rank.node for rank in instances.get(self.redis, self.ns, self.instance).ring]
        self.slots = settings.serve_slots
        self.held: dict[str, int] = {}
        self.lock = threading.Lock()
        self.stopping = threading.Event()

    def start(self) -> None:
        """Wait for the ring; then renew leases, take jobs, and end with the runner."""
        while not self.is_ready():
            if self.engine.wait_gone(LOOK_SECONDS):
                raise RunnerError("the runner ended before its ring was ready")
        self.scribe.start()
        threading.Thread(target=self.renew_leases, name="leases", daemon=True).start()
        threading.Thread(target=self.end_with_runner, name="runner-watch", daemon=True).start()

    def is_ready(self) -> bool:
        """Tell whether the first rank, and so the whole ring, has run its first step."""
        instance = patiently(lambda: instances.get(self.redis, self.ns, self.instance), CLAIM_PATIENCE_SECONDS)
        first = instance.ranks.get(0)
        if first is None or first.epoch != instance.epoch or first.status is not RankStatus.READY:
            return False
        self.slots = first.slots
        return True

    def stop(self) -> None:
        """Give all running jobs back to the queue."""
        self.stopping.set()
        self.engine.close()

    def generate(self, job_id: str) -> None:
        """Run one job to its end, if it is still to be run.

        Without a runner nothing is claimed: jobs that were just given back would use up their attempts here within a
        second. Their messages are consumed, so the reaper sends them again; holding the slot keeps the others queued.
        """
        if self.engine.wait_gone(0):
            self.stopping.wait(GONE_SECONDS)
            return
        token = uuid.uuid4().hex
        job = patiently(
            lambda: jobs.claim(self.redis, self.ns, job_id, self.instance, self.ring, token), CLAIM_PATIENCE_SECONDS
        )
        if job is None:
            self.pass_on(job_id)
            return
        with self.lock:
            self.held[job.id] = job.attempt
        try:
            self.run(job)
        finally:
            with self.lock:
                self.held.pop(job.id, None)

    def pass_on(self, job_id: str) -> None:
        """Leave a job to others if it was refused because this instance is to go; the slot, held, takes no more."""
        instance = patiently(lambda: instances.find(self.redis, self.ns, self.instance), CLAIM_PATIENCE_SECONDS)
        if instance and instance.status not in GOING:
            return
        for job in patiently(lambda: jobs.many(self.redis, self.ns, [job_id]), CLAIM_PATIENCE_SECONDS):
            if published := jobs.republish(self.redis, self.ns, job):
                submission.publish(self.app, job.id, job.model, job.priority, published)
        self.stopping.wait(GONE_SECONDS)

    def run(self, job: Job) -> None:
        """Send the job to the engine and take down how it ends; the scribe writes what it says."""
        line = Line(job.id, job.attempt)
        try:
            with self.engine.asking(engine_id(job), engine_request(job), partial(self.scribe.hear, line)):
                while isinstance(told := line.told.get(), Started):
                    pass
            self.take_down(job, told)
        except RunnerError as error:
            self.give_back(job, str(error))
        except ExoError as error:
            self.finish(job, Outcome(JobState.FAILED, error=error_of(error.message, error.code, error.param)))

    def take_down(self, job: Job, told: Told) -> None:
        """Write how the attempt ended; nothing where it was to stop.

        Raises:
            RunnerError: it did not end, the runner is gone.
            RedisError: its text could not be written: the lease lapses.
        """
        match told:
            case Finished(finish_reason="cancelled") | Stopped():
                return
            case Finished():
                self.finish(job, succeeded(told))
            case Refused(code=code, message=message, param=param):
                self.finish(job, Outcome(JobState.FAILED, error=error_of(message, code, param)))
            case Exception():
                raise told
            case None:
                raise RunnerError(GONE)

    def append(self, pieces: Sequence[Piece]) -> list[bool]:
        """Write pieces into their jobs' streams; False for each whose attempt is to stop."""
        return patiently(lambda: tokens.append(self.redis, self.ns, pieces), CLAIM_PATIENCE_SECONDS)

    def finish(self, job: Job, outcome: Outcome) -> None:
        """Write the job's end; refused when the attempt is no longer the current one."""
        done = patiently(
            lambda: jobs.finish(self.redis, self.ns, job.id, job.attempt, outcome), FINISH_PATIENCE_SECONDS
        )
        if done and (job.then or job.webhook):
            queues.hint(self.app, "exo.tell_ends", queue=queues.CLUSTER)
        if done and (batch := batch_of(job.id)):
            queues.hint(self.app, "exo.pump_batch", batch, queue=queues.CLUSTER)
        if not done:
            log.info("%s attempt %d is no longer the current one: its end was refused", job.id, job.attempt)

    def give_back(self, job: Job, reason: str) -> None:
        """Queue the job again: its run ended through no fault of its own, or because this worker is told to end."""
        planned = self.stopping.is_set()
        published = patiently(
            lambda: jobs.requeue(self.redis, self.ns, job.id, job.attempt, reason, planned=planned),
            CLAIM_PATIENCE_SECONDS,
        )
        if published is not None:
            submission.publish(self.app, job.id, job.model, job.priority, published)

    def renew_leases(self) -> None:
        """Renew the leases of all running jobs; one that is lost is cancelled in the engine."""
        while not self.stopping.wait(RENEW_SECONDS):
            with self.lock:
                held = list(self.held.items())
            if not held:
                continue
            try:
                lost = jobs.renew(self.redis, self.ns, held)
            except TRANSIENT as error:
                log.warning("leases were not renewed, trying again: %s", error)
                continue
            for job_id, attempt in lost:
                self.engine.cancel(f"{job_id}.{attempt}")

    def end_with_runner(self) -> None:
        """Once the runner is gone, give the jobs time to go back into the queue, then end this process."""
        self.engine.wait_gone()
        end = time.monotonic() + CLAIM_PATIENCE_SECONDS
        while self.held and time.monotonic() < end:
            time.sleep(PAUSE_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)


def engine_id(job: Job) -> str:
    """Return the name of this attempt in the engine."""
    return f"{job.id}.{job.attempt}"


def engine_request(job: Job) -> dict[str, Any]:
    """Return the job's request as the engine takes it."""
    asked = job.request.model_dump(mode="json", exclude={"model", "deadline_seconds", "webhook"}, exclude_none=True)
    return asked | {"seed": job.seed, "priority": job.priority}


def succeeded(told: Finished) -> Outcome:
    """Return an attempt's good end as the job's record keeps it."""
    said = Outcome(JobState.SUCCEEDED, told.text, told.finish_reason, told.usage)
    return replace(said, tool_calls=told.tool_calls, logprobs=told.logprobs)


def error_of(message: str, code: str, param: str | None) -> dict[str, Any]:
    """Return an error in OpenAI's shape, as the job's record keeps it."""
    return {"message": message, "type": "invalid_request_error", "param": param, "code": code}


def patiently(act: Callable[[], T], seconds: float) -> T:
    """Do something idempotent in Redis, again and again through an outage of so many seconds."""
    end = time.monotonic() + seconds
    while True:
        try:
            return act()
        except TRANSIENT:
            if time.monotonic() > end:
                raise
            time.sleep(PAUSE_SECONDS)
