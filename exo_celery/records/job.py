"""Jobs: durable generation requests."""

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from exo_celery.records.base import ModelId, Record, Request
from exo_celery.records.logprobs import TokenLogprobs
from exo_celery.records.tools import Tool, ToolCall


class JobState(StrEnum):
    """`queued → running → succeeded / failed / cancelled`; a lapsed lease leads back to queued."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
RETRYABLE = frozenset({JobState.FAILED, JobState.CANCELLED})
MAX_DEADLINE_SECONDS: Final = 30 * 86_400
MAX_TOOLS: Final = 128
MAX_TOP_LOGPROBS: Final = 20
MAX_LOGPROBS: Final = 100_000  # of an answer; each takes less than 100 bytes

Penalty = Annotated[float, Field(ge=-2, le=2)]
# Token ids are names in JSON.
LogitBias = Annotated[
    dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=1024),
]


class Message(Request):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = Field(None, strict=False)
    tool_call_id: str | None = None


def check_logprobs(logprobs: int | None, max_tokens: int) -> None:
    """Raise ValueError when an answer might tell of more tokens than one message of the engine holds."""
    if logprobs is not None and (most := MAX_LOGPROBS // (logprobs + 1)) < max_tokens:
        raise ValueError(f"with logprobs of {logprobs} other tokens max_tokens may be {most}: ask for fewer of either")


class JobRequest(Request):
    """What `POST /api/jobs` takes: messages or a prompt, never both.

    `tools` are functions that the model may call; with `parallel_tool_calls` false it calls one at most. `logprobs`
    asks how likely each token was, and so many others at its place.
    """

    model: ModelId
    messages: tuple[Message, ...] | None = Field(None, strict=False, min_length=1)
    prompt: str | None = Field(None, min_length=1)
    tools: tuple[Tool, ...] | None = Field(None, strict=False, max_length=MAX_TOOLS)
    parallel_tool_calls: bool | None = None
    max_tokens: int = Field(256, ge=1, le=1_000_000)
    temperature: float = Field(0.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    logit_bias: LogitBias | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    seed: int | None = Field(None, ge=0, lt=2**63)
    stop: tuple[str, ...] = Field((), strict=False, max_length=16)
    priority: Literal[0, 5, 9] = 5
    deadline_seconds: float | None = Field(None, gt=0, le=MAX_DEADLINE_SECONDS)
    webhook: str | None = Field(None, max_length=2000, pattern=r"^https?://[^\s/?#]+[^\s]*$")

    @model_validator(mode="after")
    def one_input(self) -> "JobRequest":
        """Refuse a request with no input, or with two, and one whose answer would be too large."""
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("give either messages or prompt")
        if self.tools and self.messages is None:
            raise ValueError("tools need messages: a plain prompt shows the model none")
        check_logprobs(self.logprobs, self.max_tokens)
        return self


class TokenEvent(Record):
    """One entry of a job's token stream; its id is `<attempt>-<n>`.

    `attempt` announces a new run (what came before is void), `delta` carries text, or `tool_calls` or `logprobs` in
    `data`, `end` the outcome in `data`.
    """

    id: str
    kind: Literal["attempt", "delta", "end"]
    text: str = ""
    data: dict[str, Any] = Field(default_factory=dict)


class Usage(Record):
    """Tokens of one finished attempt, and its speed."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    tokens_per_second: float = 0.0


class Continuation(Record):
    """A Celery signature of somebody else's app, to be sent with the job's id once the job has ended."""

    signature: dict[str, Any]
    queue: str = "celery"
    prefix: str = ""  # of all keys of their broker, if they set one


class Job(Record):
    """The record of a job. `text`, `tool_calls` and `logprobs` are its result; `reasons` say why attempts ended.

    `attempts_before` were used up when the job was last retried; `keep_seconds` is for how long it is kept after its
    end; `then_sent_at` and `webhook_sent_at` are 0 until it was told on.
    """

    id: str
    model: ModelId
    state: JobState = JobState.QUEUED
    request: JobRequest
    priority: int = 5
    attempt: int = 0
    attempts_before: int = 0
    owner: str = ""
    seed: int = 0
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: str = ""
    usage: Usage = Usage()
    error: dict[str, Any] | None = None
    reasons: tuple[str, ...] = ()
    note: str = ""
    instance: str = ""
    ring: tuple[str, ...] = ()
    then: Continuation | None = None
    webhook: str = ""
    then_sent_at: float = 0.0
    webhook_tries: int = 0
    webhook_sent_at: float = 0.0
    webhook_error: str = ""
    keep_seconds: int = 30 * 86_400
    deadline_at: float = 0.0
    lease_until: float = 0.0
    created_at: float = 0.0
    published_at: float = 0.0
    started_at: float = 0.0
    first_token_at: float = 0.0
    finished_at: float = 0.0
