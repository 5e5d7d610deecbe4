"""What is refused, in OpenAI's error shape: requests that are not valid, and jobs that did not end well."""

import json
from collections.abc import Iterator
from typing import Any, Final

from pydantic_core import ErrorDetails, from_json

from exo_celery.errors import ExoError, InvalidRequestError

UNSUPPORTED: Final = "unsupported_parameter"  # also the type of a validation error that says so


def invalid(detail: ErrorDetails, raw: bytes) -> InvalidRequestError:
    """Return the first validation error as ours: which field, what was wrong, what came instead."""
    if detail["type"] == "json_invalid":
        return InvalidRequestError(f"the body is not valid JSON: {detail['msg']}")
    param = field_path(detail, from_json(raw))
    message = detail["msg"].removeprefix("Value error, ")
    if param and detail["type"] not in ("missing", "extra_forbidden"):
        message += f" (got {json.dumps(detail['input'], default=str)[:60]})"
    error = InvalidRequestError(f"{param}: {message}" if param else message, param=param)
    if detail["type"] == UNSUPPORTED:
        error.code = UNSUPPORTED
    return error


def field_path(detail: ErrorDetails, body: Any) -> str | None:
    """Return where an error lies as callers write it (`messages[0].content`), or None for the whole body.

    Pydantic's location also names branches of unions, which the caller never wrote: it is followed through the body.
    """
    path = ""
    missing = detail["type"] == "missing"
    for part in detail["loc"]:
        if isinstance(part, int) and isinstance(body, list):
            path += f"[{part}]"
            body = body[part] if part < len(body) else None
        elif isinstance(part, str) and isinstance(body, dict) and (part in body or missing):
            path += f".{part}" if path else part
            body = body.get(part)
    return path or None


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
