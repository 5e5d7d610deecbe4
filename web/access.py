"""What the caller of the current request may ask: the guard says who it is, the views ask here.

Without a key the caller is this machine's user, who may ask everything and sees everybody's jobs.
"""

from collections.abc import Callable
from typing import Final

from flask import g

from exo_celery import access as keys
from exo_celery import cluster
from exo_celery.errors import AccessError, NotFoundError
from exo_celery.records.access import AccessKey
from exo_celery.records.job import Job, JobRequest
from web.context import the_cluster

KEY: Final = "exo_access_key"


def set_caller(key: AccessKey | None) -> None:
    """Remember the key that the request came with."""
    setattr(g, KEY, key)


def caller() -> AccessKey | None:
    """Return the key that the request came with; None is this machine's user."""
    found: AccessKey | None = g.get(KEY)
    return found


def still_allowed() -> Callable[[], bool]:
    """Return a question that a long answer asks from time to time: is the key that it was begun with still good?"""
    key, c = caller(), the_cluster()
    return lambda: key is None or keys.is_good(c, key.id)


def owner() -> str:
    """Return whose the jobs of this request are."""
    key = caller()
    return key.id if key else ""


def owner_to_list() -> str:
    """Return whose jobs a list shows; '' shows everybody's."""
    key = caller()
    return key.id if key and not key.is_admin else ""


def check_model(model: str) -> None:
    """Let a request for a model pass.

    Raises:
        AccessError: the caller's key is for other models.
    """
    key = caller()
    if key and key.models and model not in key.models:
        raise AccessError(f"key {key.name!r} is for {', '.join(key.models)}, not for {model!r:.100}", param="model")


def submit(request: JobRequest, idempotency_key: str = "") -> Job:
    """Take a job of the caller's; errors as of `check_model` and `cluster.submit`."""
    check_model(request.model)
    return cluster.submit(the_cluster(), request, owner(), idempotency_key)


def is_visible(job: Job) -> bool:
    """Tell whether the caller may see a job."""
    return owner_to_list() in ("", job.owner)


def own_job(job_id: str) -> Job:
    """Return a job that the caller may see.

    Raises:
        NotFoundError: it does not exist, or is somebody else's, of which nobody else need know.
    """
    job = cluster.job(the_cluster(), job_id)
    if not is_visible(job):
        raise NotFoundError(f"job {job_id!r} does not exist among yours; GET /api/jobs lists them")
    return job
