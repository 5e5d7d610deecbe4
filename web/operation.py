"""One way in and out of every JSON route: what a view declares is checked, answered and written in /openapi.json."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, get_origin

from flask import Response, request
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from werkzeug.exceptions import UnsupportedMediaType

from exo_celery.openai.refusal import invalid

View = Callable[..., Any]
M = TypeVar("M", bound=BaseModel)


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


def read_body(model: type[M]) -> M:
    """Read the request's JSON body strictly.

    Raises:
        InvalidRequestError: malformed, of a wrong type, or with a field nobody knows; `param` names it.
        UnsupportedMediaType: it does not say that it is JSON.
    """
    if request.mimetype != "application/json":
        raise UnsupportedMediaType(
            f"the body must be JSON with Content-Type: application/json; it came as {request.mimetype or 'nothing'!r}"
        )
    raw = request.get_data()
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise invalid(error.errors()[0], raw) from error


def read_form(model: type[M]) -> M:
    """Read a multipart form, files included; each field stands in it once.

    Raises:
        InvalidRequestError: as for a JSON body.
        UnsupportedMediaType: it is no such form.
    """
    if request.mimetype != "multipart/form-data":
        raise UnsupportedMediaType(
            f"the body must be a form (Content-Type: multipart/form-data); it came as {request.mimetype or 'nothing'!r}"
        )
    texts = request.form.to_dict()
    try:
        return model.model_validate(texts | request.files.to_dict(), strict=False)
    except ValidationError as error:
        raise invalid(error.errors()[0], to_json(texts)) from error


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
        raise invalid(error.errors()[0], to_json(values)) from error
