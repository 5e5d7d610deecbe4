"""One way in and out of every JSON route: what a view declares is checked, answered and written in /openapi.json."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, TypeVar, get_origin

from flask import Response, request
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from werkzeug.exceptions import RequestEntityTooLarge, UnsupportedMediaType

from exo_celery.errors import InvalidRequestError
from exo_celery.invalid import invalid

View = Callable[..., Any]
M = TypeVar("M", bound=BaseModel)
SHOWN_CHARACTERS: Final = 60
# A key is a name that a client made up for one request: printable ASCII.
IDEMPOTENCY_KEY: Final = re.compile(r"[!-~]{1,255}")


@dataclass(frozen=True)
class Operation:
    """What a route takes and gives; `errors` are its statuses besides 400 (with input), 403 and 500."""

    answer: Any
    status: int = 200
    body: type[BaseModel] | None = None
    form: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    errors: tuple[int, ...] = ()
    media_type: str = "application/json"
    streams: bool = False


def operation(
    answer: Any,
    *,
    status: int = 200,
    body: type[BaseModel] | None = None,
    form: type[BaseModel] | None = None,
    query: type[BaseModel] | None = None,
    errors: tuple[int, ...] = (),
    media_type: str = "application/json",
    streams: bool = False,
) -> Callable[[View], View]:
    """Declare a view: it gets `body`, `form`, `query` checked, and returns what JSON can hold or a response."""

    def decorate(view: View) -> View:
        @wraps(view)
        def answering(**given: Any) -> Response:
            if body:
                given["body"] = read_body(body)
            if form:
                given["form"] = read_form(form)
            if query:
                given["query"] = read_query(query)
            result = view(**given)
            return result if isinstance(result, Response) else json_response(result, status)

        declared = Operation(answer, status, body, form, query, errors, media_type, streams)
        answering.operation = declared  # type: ignore[attr-defined]
        return answering

    return decorate


def json_response(value: Any, status: int = 200) -> Response:
    """Answer records, lists and dicts as JSON."""
    return Response(to_json(value), status, mimetype="application/json")


def check_kind(kind: str, words: str) -> None:
    """Let a body of this media type pass, or raise UnsupportedMediaType."""
    if request.mimetype != kind:
        came = request.mimetype[:SHOWN_CHARACTERS] or "nothing"
        raise UnsupportedMediaType(f"the body must be {words} Content-Type: {kind}; it came as {came!r}")


def read_body(model: type[M]) -> M:
    """Read the request's JSON body strictly.

    Raises:
        InvalidRequestError: malformed, of a wrong type, or with a field nobody knows; `param` names it.
        UnsupportedMediaType: it does not say that it is JSON.
        RequestEntityTooLarge: it has more bytes than are taken.
    """
    check_kind("application/json", "JSON with")
    raw = request.get_data()
    # Of a body in chunks, whose length nobody knows before, werkzeug gives the first so many bytes.
    if request.content_length is None and len(raw) >= (request.max_content_length or len(raw) + 1):
        raise RequestEntityTooLarge
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise invalid(error, raw) from error


def read_form(model: type[M]) -> M:
    """Read a multipart form, files included; each field stands in it once.

    Raises:
        InvalidRequestError: as for a JSON body.
        UnsupportedMediaType: it is no such form.
    """
    check_kind("multipart/form-data", "a form with")
    values = request.form.to_dict() | request.files.to_dict()
    try:
        return model.model_validate(values, strict=False)
    except ValidationError as error:
        raise invalid(error, values) from error


def read_query(model: type[M]) -> M:
    """Read the query string; a field of several values may be repeated or separated by commas.

    Raises:
        InvalidRequestError: as for a body.
    """
    values: dict[str, Any] = {}
    for name, texts in request.args.lists():
        field = model.model_fields.get(name)
        many = field is not None and get_origin(field.annotation) is tuple
        values[name] = [part for text in texts for part in text.split(",")] if many else texts[-1]
    try:
        return model.model_validate(values, strict=False)
    except ValidationError as error:
        raise invalid(error, values) from error


def idempotency_key() -> str:
    """Return the name that the client gave its request, or ''."""
    given = request.headers.get("Idempotency-Key", "")
    if given and not IDEMPOTENCY_KEY.fullmatch(given):
        raise InvalidRequestError(
            f"Idempotency-Key {given[:60]!r} is not one: send 1 to 255 printable ASCII characters without spaces"
        )
    return given
