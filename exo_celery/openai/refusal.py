"""What is refused, in OpenAI's error shape: errors as clients read them, and jobs that did not end well."""

from collections.abc import Iterator
from typing import Any

from exo_celery.errors import ExoError


def error_body(error: ExoError) -> dict[str, Any]:
    """Return an error as clients of OpenAI's API read it; our numbers come along under `details`."""
    facts: dict[str, Any] = {
        "message": error.message,
        "type": error.kind,
        "param": error.param,
        "code": error.code,
    }
    numbers = dict(error.numbers)
    loading = numbers.pop("loading", None)
    body: dict[str, Any] = {"error": facts | ({"details": numbers} if numbers else {})}
    return body | ({"loading": loading} if loading else {})


class JobCancelledError(ExoError):
    """Somebody cancelled the job while its client waited. Not a 409: clients would send it again by themselves."""

    code = "job_cancelled"
    status = 410
    kind = "invalid_request_error"


def as_error(facts: dict[str, Any]) -> ExoError:
    """Return a job's stored error with the status and type of the class that has its code."""
    error = ExoError(facts.get("message") or "the job failed", param=facts.get("param"))
    error.code = facts.get("code") or ExoError.code
    for cls in descendants(ExoError):
        if cls.code == error.code:
            error.status, error.kind = cls.status, cls.kind
    return error


def descendants(cls: type[ExoError]) -> Iterator[type[ExoError]]:
    """Yield all classes below one."""
    for child in cls.__subclasses__():
        yield child
        yield from descendants(child)
