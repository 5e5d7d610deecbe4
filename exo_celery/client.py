"""Submit jobs from any Python program, a Celery app of your own included.

    from exo_celery.client import Client

    exo = Client("redis://127.0.0.1:6379/0")
    exo.submit("org/name", prompt="…", then=file_answer.s("letter-17"))

    @app.task
    def file_answer(job_id, letter):      # your own task, on your own worker
        job = exo.job(job_id)             # job.state, job.text, job.usage, job.error

Needs queues and the store only; never touches the host's environment or its current Celery app. A continuation is
kept in the job's record and sent when the job has ended, however it ended, at least once: its task id is always
`<job id>.then`. A plain chain or chord over `exo.generate` is not durable: a message that is lost takes it along.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

from celery.canvas import Signature
from pydantic import ValidationError

from exo_celery import queues, submission
from exo_celery.errors import InvalidRequestError, UnavailableError
from exo_celery.invalid import invalid
from exo_celery.records.job import TERMINAL, Continuation, Job, JobRequest, JobState
from exo_celery.settings import Settings, load
from exo_celery.store import jobs
from exo_celery.store.client import connect
from exo_celery.store.jobs import Outcome
from exo_celery.submission import Terms

DEFAULT_QUEUE: Final = "celery"
LOOK_SECONDS: Final = 0.2
JSON_KINDS: Final = (str, int, float, bool, type(None))


class Client:
    """A cluster's front door for other programs: it may be shared by threads, and opened before a fork.

    `redis_url` and `namespace` are the cluster's; what is not given is read from the environment.
    """

    def __init__(self, redis_url: str | None = None, namespace: str | None = None) -> None:
        named = {"redis_url": redis_url, "namespace": namespace}
        self.settings: Settings = load().model_copy(update={name: text for name, text in named.items() if text})
        self.redis = connect(self.settings)
        self.sender = queues.sender(self.settings)

    @property
    def ns(self) -> str:
        """The namespace of all keys."""
        return self.settings.namespace

    def submit(
        self,
        model: str,
        *,
        messages: Sequence[dict[str, Any]] | None = None,
        prompt: str | None = None,
        then: Signature | dict[str, Any] | None = None,
        idempotency_key: str = "",
        owner: str = "",
        **options: Any,
    ) -> Job:
        """Submit a job; once this returns it survives whatever happens.

        `options` are the other fields of `POST /api/jobs`: max_tokens, temperature, deadline_seconds, …

        Raises:
            InvalidRequestError: a field is wrong, or `then` cannot be kept as JSON.
            IdempotencyError: the key was used for another request.
        """
        asked = {"model": model, "messages": messages, "prompt": prompt, **options}
        try:
            request = JobRequest.model_validate({name: value for name, value in asked.items() if value is not None})
        except ValidationError as error:
            raise invalid(error, asked) from error
        terms = Terms(owner, idempotency_key, continuation(then), self.settings.job_retention_days)
        return submission.submit(self.redis, self.sender, self.ns, request, terms)

    def job(self, job_id: str) -> Job:
        """Return a job, or raise NotFoundError."""
        return jobs.get(self.redis, self.ns, job_id)

    def cancel(self, job_id: str) -> Job:
        """Cancel a job, queued or running; one that has ended stays as it is."""
        jobs.finish(self.redis, self.ns, job_id, None, Outcome(JobState.CANCELLED))
        return self.job(job_id)

    def retry(self, job_id: str) -> Job:
        """Run a failed or cancelled job again, or raise ConflictError."""
        return submission.retry(self.redis, self.sender, self.ns, self.job(job_id))

    def wait(self, job_id: str, timeout_seconds: float) -> Job:
        """Wait for a job's end; not from within a task, whose worker it would block.

        Raises:
            UnavailableError: it has not ended in time.
        """
        end = time.monotonic() + timeout_seconds
        while (job := self.job(job_id)).state not in TERMINAL:
            if time.monotonic() > end:
                raise UnavailableError(f"{job_id} is still {job.state} after {timeout_seconds:g} s: {job.note}")
            time.sleep(LOOK_SECONDS)
        return job


def submit(model: str, **options: Any) -> Job:
    """Submit a job to the cluster that the environment names; options and errors as `Client.submit`."""
    return Client().submit(model, **options)


def continuation(then: Signature | dict[str, Any] | None) -> Continuation | None:
    """Return a signature as it is kept: the task's queue and key prefix come from its own app.

    Raises:
        InvalidRequestError: it is a chord or group, which need the result backend of its app, or is not JSON.
    """
    if then is None:
        return None
    app = then.app if isinstance(then, Signature) else None
    signature = plain(then)
    kind = signature.get("subtask_type")
    if not signature.get("task") or kind not in (None, "chain"):
        raise InvalidRequestError(
            f"then is a {kind or 'signature without a task'}: give the signature of a task or a chain; "
            "a group can be started by that task",
            param="then",
        )
    if app is None:
        return Continuation(signature=signature)
    prefix = (app.conf.broker_transport_options or {}).get("global_keyprefix", "")
    return Continuation(signature=signature, queue=app.conf.task_default_queue or DEFAULT_QUEUE, prefix=prefix)


def plain(value: Any) -> Any:
    """Return a signature as nothing but JSON.

    Raises:
        InvalidRequestError: something in it is not JSON.
    """
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, JSON_KINDS):
        return value
    raise InvalidRequestError(
        f"then holds a {type(value).__name__}, which is not JSON: give ids or plain values", param="then"
    )
