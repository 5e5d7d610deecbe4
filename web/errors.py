"""The one error shape (OpenAI's) and the one way into it, with a request id on every answer."""

import logging
import math
import uuid
from typing import Final

from flask import Flask, Response, g, request
from gunicorn.http.errors import NoMoreData, ParseException
from pydantic_core import to_json
from werkzeug.exceptions import HTTPException

from exo_celery.errors import ExoError, InvalidRequestError, UnavailableError
from exo_celery.openai.refusal import error_body
from exo_celery.store.client import TRANSIENT

log = logging.getLogger(__name__)
OUTAGES: Final = TRANSIENT  # what the store raises while Redis is away
BROKEN_BODIES: Final = (NoMoreData, ParseException)  # what gunicorn raises while a body in chunks is read
OUTAGE_SECONDS: Final = 5
SHOWN_PATH: Final = 200

HTTP_CODES: Final = {
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
    415: "unsupported_media_type",
    500: "internal_error",
}
# What werkzeug says of these is meant for people with a browser.
HTTP_MESSAGES: Final = {
    404: "there is no {method} {path} here; /openapi.json lists what there is",
    405: "{path} does not answer {method}; the Allow header lists what it answers",
    413: "the body is larger than this server takes ({limit} bytes); send less",
    500: "the server failed at this request; its log tells why under request id {request_id}",
}


def install(app: Flask) -> None:
    """Answer every error in the one shape and mark every response with its request id."""
    app.before_request(number_request)
    app.after_request(show_request_id)
    app.register_error_handler(ExoError, answer_error)
    for outage in OUTAGES:
        app.register_error_handler(outage, answer_outage)
    for broken in BROKEN_BODIES:
        app.register_error_handler(broken, answer_broken_body)
    app.register_error_handler(HTTPException, answer_http_error)


def number_request() -> None:
    """Give the request its id."""
    g.request_id = f"req_{uuid.uuid4().hex}"


def show_request_id(response: Response) -> Response:
    """Put the request's id on its response."""
    response.headers["x-request-id"] = g.request_id
    return response


def answer_error(error: ExoError) -> Response:
    """Answer an error of ours with its own status."""
    response = Response(to_json(error_body(error)), error.status, mimetype="application/json")
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if retry_after := error.numbers.get("retry_after_seconds"):
        response.headers["Retry-After"] = str(math.ceil(retry_after))
    return response


def answer_outage(error: Exception) -> Response:
    """Answer that Redis cannot be reached now."""
    return answer_error(unavailable(error))


def unavailable(error: Exception) -> UnavailableError:
    """Return an outage of Redis as an error for callers; what it said may name hosts, so it goes to the log."""
    log.warning("Redis did not answer: %s", error)
    return UnavailableError("Redis does not answer now; ask again", retry_after_seconds=OUTAGE_SECONDS)


def answer_broken_body(error: Exception) -> Response:
    """Answer that the request's body could not be read to its end."""
    return answer_error(
        InvalidRequestError("the body broke off, or its chunks are none of HTTP's: send it again, whole")
    )


def answer_http_error(error: HTTPException) -> Response:
    """Answer what Flask refuses, or what nobody expected, in the same shape; Flask has logged the latter."""
    status = error.code or 500
    # A description may hold what the caller sent: only our own words are filled in.
    message = HTTP_MESSAGES.get(status, "").format(
        method=request.method, path=request.path[:SHOWN_PATH], limit=request.max_content_length, request_id=g.request_id
    )
    kind = "server_error" if status >= 500 else "invalid_request_error"
    facts = {
        "message": message or error.description,
        "type": kind,
        "param": None,
        "code": HTTP_CODES.get(status, "bad_request"),
    }
    response = Response(to_json({"error": facts}), status, mimetype="application/json")
    for name, value in error.get_headers(request.environ):
        if name == "Allow":
            response.headers[name] = value
    return response
