"""The lines of a batch: requests in, results out. PURE."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json, to_json

from exo_celery.errors import ExoError, InvalidRequestError
from exo_celery.invalid import finding
from exo_celery.openai.answers import Chat, Shape, Text
from exo_celery.openai.refusal import JobCancelledError, as_error, error_body
from exo_celery.openai.requests import ChatRequest, CompletionRequest
from exo_celery.queues import BATCH
from exo_celery.records.base import Request
from exo_celery.records.batch import Batch, Endpoint, LineResult
from exo_celery.records.job import Job, JobRequest, JobState

MAX_LINE_BYTES: Final = 8 * 2**20  # as large as a request by itself may be
BOM: Final = b"\xef\xbb\xbf"
CustomId = Annotated[str, Field(min_length=1, max_length=512)]


class NamedModel(BaseModel):
    """Of a request: the model, by which lines are counted and shared out. The rest is read when the line is run."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    model: str = Field(min_length=1, max_length=200)


class Envelope(Request):
    """What every line must have, or nothing of its file is run."""

    custom_id: CustomId
    method: Literal["POST"]
    url: Endpoint
    body: NamedModel


class ChatBody(BaseModel):
    """The request of a line for `/v1/chat/completions`."""

    body: ChatRequest


class CompletionBody(BaseModel):
    """The request of a line for `/v1/completions`."""

    body: CompletionRequest


KINDS: Final[dict[str, type[ChatBody] | type[CompletionBody]]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
}
SHAPES: Final[dict[str, type[Shape]]] = {"/v1/chat/completions": Chat, "/v1/completions": Text}
# What OpenAI calls the refusal of a line, by where it lies.
CODES: Final = {"url": "invalid_url", "method": "invalid_method", "custom_id": "invalid_custom_id"}
UNRUN: Final = {
    "batch_expired": "the batch's completion window was over before this line was run",
    "batch_cancelled": "the batch was cancelled before this line was run",
}


@dataclass(frozen=True)
class Line:
    """A line of a file: its number from 1 on, and the bytes `[offset, end)` that it takes."""

    number: int
    offset: int
    end: int
    raw: bytes

    @property
    def text(self) -> bytes:
        """The line without its end, and without the mark that some editors put before the first."""
        return (self.raw if self.offset else self.raw.removeprefix(BOM)).strip()


def split(pieces: Iterable[bytes], number: int = 0, offset: int = 0) -> Iterator[Line]:
    """Yield the lines of a content that comes in pieces and starts after line `number`, at byte `offset`.

    Never holds much more than a piece and the longest line that is taken; of a longer one only its start is kept.
    """
    rest, dropped = b"", 0
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for raw in whole:
            number += 1
            end = offset + len(raw) + dropped + 1
            yield Line(number, offset, end, raw)
            offset, dropped = end, 0
        if len(rest) > MAX_LINE_BYTES + 1:
            dropped += len(rest) - (MAX_LINE_BYTES + 1)
            rest = rest[: MAX_LINE_BYTES + 1]
    if rest:
        yield Line(number + 1, offset, offset + len(rest) + dropped, rest)


def read(line: Line, endpoint: str) -> Envelope:
    """Read what a line is called, where it goes and which model it asks.

    Raises:
        InvalidRequestError: too long, malformed, of another endpoint, or without a name or a model.
    """
    if len(line.raw) > MAX_LINE_BYTES:
        raise refused("line_too_long", f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        envelope = Envelope.model_validate_json(line.text)
    except ValidationError as error:
        raise not_valid(error, line.text) from error
    if envelope.url != endpoint:
        raise refused("invalid_url", f"url: must be {endpoint}, as the batch's endpoint is (got {envelope.url})", "url")
    return envelope


def not_valid(error: ValidationError, raw: bytes) -> InvalidRequestError:
    """Return what is wrong with a line, with the code that OpenAI has for it."""
    detail = error.errors(include_url=False)[0]
    if detail["type"] == "json_invalid":
        return refused("invalid_json_line", f"the line is not valid JSON: {detail['ctx']['error']}")
    wrong = finding(detail, raw, whole="the line")
    where = detail["loc"][0] if len(detail["loc"]) == 1 else None
    if detail["type"] == "missing":
        wrong.code = "missing_required_parameter"
    elif where in CODES:
        wrong.code = CODES[str(where)]
    return wrong


def refused(code: str, message: str, param: str | None = None) -> InvalidRequestError:
    """Return an error with this code."""
    error = InvalidRequestError(message, param=param)
    error.code = code
    return error


def job_request(line: Line, endpoint: str) -> JobRequest:
    """Return the job that answers a line, at the priority of a batch.

    Raises:
        InvalidRequestError: the endpoint refuses the request, as it would by itself.
    """
    try:
        body = KINDS[endpoint].model_validate_json(line.text).body
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        raise finding(detail | {"loc": detail["loc"][1:]}, from_json(line.text)["body"]) from error
    if body.stream:
        raise InvalidRequestError("stream: a batch does not stream, leave it out", param="stream")
    return body.job().model_copy(update={"priority": BATCH})


def refusal(batch: Batch, number: int, custom_id: str, error: ExoError) -> LineResult:
    """Return the result of a line whose request was not taken, or whose job did not end well."""
    answer = {"status_code": error.status, "body": error_body(error)}
    return LineResult(good=False, text=written(batch, number, custom_id, answer, None))


def result(batch: Batch, number: int, custom_id: str, job: Job, unrun: str) -> LineResult:
    """Return what became of a line whose job has ended; `unrun` is the code for one that the batch itself cancelled."""
    if job.state is JobState.SUCCEEDED:
        body = SHAPES[batch.endpoint](job, include_usage=False).whole(job)
        text = written(batch, number, custom_id, {"status_code": 200, "body": body}, None)
        return LineResult(good=True, text=text, usage=job.usage.model_dump())
    if job.state is JobState.CANCELLED and unrun:
        return LineResult(good=False, text=unrun_line(batch, number, custom_id, unrun))
    cancelled = JobCancelledError("the line's job was cancelled")
    error = cancelled if job.state is JobState.CANCELLED else as_error(job.error or {})
    return refusal(batch, number, custom_id, error)


def unrun_line(batch: Batch, number: int, custom_id: str, code: str) -> str:
    """Return the line of the error file for a request that was never run to its end."""
    return written(batch, number, custom_id, None, {"code": code, "message": UNRUN[code]})


def written(
    batch: Batch, number: int, custom_id: str, response: dict[str, Any] | None, error: dict[str, Any] | None
) -> str:
    """Write one line of a result file; its ids follow from batch and number, so that it reads the same each time."""
    digest = hashlib.sha256(batch.job_id(number).encode()).hexdigest()[:32]
    told = None if response is None else {"request_id": f"req_{digest}"} | response
    line = {"id": f"batch_req_{digest}", "custom_id": custom_id, "response": told, "error": error}
    return to_json(line).decode()
