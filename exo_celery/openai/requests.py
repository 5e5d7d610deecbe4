"""What clients of OpenAI's API send. A parameter that would change the answer is obeyed or refused, never ignored."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from exo_celery.queues import INTERACTIVE
from exo_celery.records.base import UNSUPPORTED, Request
from exo_celery.records.job import MAX_TOOLS, MAX_TOP_LOGPROBS, JobRequest, LogitBias, Message, Penalty, check_logprobs
from exo_celery.records.tools import Tool, ToolCall

CHAT_MAX_TOKENS: Final = 1024  # no model that rambles holds a slot for long
COMPLETION_MAX_TOKENS: Final = 16  # the API's own default
COMPLETION_TOP_LOGPROBS: Final = 5  # the API's own limit
# How tokens are chosen.
CHOOSING: Final = (
    "temperature",
    "top_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
)


@dataclass(frozen=True, eq=False)  # equal ones (0 and False) would share one place in typing's cache of annotations
class Only:
    """Accept null and these values, which change nothing; refuse the others as not supported."""

    values: tuple[Any, ...] = ()

    def check(self, value: Any) -> Any:
        """Return a value that changes nothing."""
        kind = isinstance(value, bool)  # in Python True is 1, in JSON it is not
        if value is None or any(value == one and isinstance(one, bool) == kind for one in self.values):
            return value
        neutral = " or ".join([f"send {json.dumps(value)}" for value in self.values[:1]] + ["leave it out"])
        raise PydanticCustomError(UNSUPPORTED, "is not supported by this server: {neutral}", {"neutral": neutral})

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check after the field's own type."""
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Show the values that are accepted."""
        return {"enum": [*self.values, None]}


def joined(content: Any) -> Any:
    """Return a list of text parts as one text, a line each; leave everything else to the field's type."""
    if not isinstance(content, list):
        return content
    parts = [part.get("text") if isinstance(part, dict) else None for part in content]
    kinds = {part.get("type") if isinstance(part, dict) else None for part in content}
    if kinds - {"text"} or not all(isinstance(part, str) for part in parts):
        raise PydanticCustomError(UNSUPPORTED, "is not supported by this server: send text parts only")
    return "\n".join(part for part in parts if isinstance(part, str))


def one_of_list(value: Any) -> Any:
    """Return the only text of a list; several prompts, and tokens in the place of text, are refused."""
    if not isinstance(value, list):
        return value
    if len(value) != 1 or not isinstance(value[0], str):
        raise PydanticCustomError(
            UNSUPPORTED, "is not supported by this server as a list: send one prompt a request, as text"
        )
    return value[0]


def without_index(calls: Any) -> Any:
    """Return calls without the place that each had in a stream, which some clients send back."""
    if not isinstance(calls, list):
        return calls
    return [
        {name: fact for name, fact in call.items() if name != "index"} if isinstance(call, dict) else call
        for call in calls
    ]


def listed(value: Any) -> Any:
    """Return one stop text as a list of one, null as none."""
    return [] if value is None else [value] if isinstance(value, str) else value


Text = Annotated[str | None, BeforeValidator(joined)]
Calls = Annotated[Annotated[tuple[ToolCall, ...], Field(strict=False)] | None, BeforeValidator(without_index)]
Stop = Annotated[tuple[str, ...], BeforeValidator(listed), Field(strict=False, max_length=16)]


class ChatMessage(Request):
    """One turn. The last fields are what clients echo from an earlier answer."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text = None
    name: str | None = None
    tool_calls: Calls = None
    tool_call_id: str | None = None
    refusal: Annotated[Any, Only()] = None
    audio: Annotated[Any, Only()] = None
    function_call: Annotated[Any, Only()] = None
    annotations: Annotated[Any, Only(([],))] = None

    @model_validator(mode="after")
    def something_said(self) -> "ChatMessage":
        """Refuse a turn that says nothing."""
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError(f"a message of role {self.role} needs content")
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("a message of role tool needs tool_call_id, which says whose result it is")
        return self

    def message(self) -> Message:
        """Return the turn as a job holds it; models know no developer, only a system."""
        role = "system" if self.role == "developer" else self.role
        return Message(
            role=role,
            content=self.content,
            name=self.name,
            tool_calls=self.tool_calls,
            tool_call_id=self.tool_call_id,
        )


class StreamOptions(Request):
    """What else a stream is to carry."""

    include_usage: bool = False
    include_obfuscation: Annotated[Any, Only((False,))] = None


class Sampling(Request):
    """What chat and completions share."""

    model: str = Field(min_length=1, max_length=200)
    max_tokens: int | None = Field(None, ge=1, le=1_000_000)
    temperature: float | None = Field(None, ge=0, le=2, description="0 unless given: the same answer each time")
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=0, lt=2**63)
    stop: Stop = ()
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    n: Annotated[Any, Only((1,))] = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    logit_bias: LogitBias | None = None

    @model_validator(mode="after")
    def options_of_a_stream(self) -> "Sampling":
        """Refuse stream options without a stream."""
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options need stream: true")
        return self

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampled(self, max_tokens: int, **given: Any) -> JobRequest:
        """Return the job that answers this request, at the priority of somebody who waits."""
        chosen = {name: getattr(self, name) for name in CHOOSING}
        return JobRequest.model_validate(
            {name: value for name, value in chosen.items() if value is not None}
            | {"model": self.model, "max_tokens": max_tokens, "stop": self.stop, "priority": INTERACTIVE}
            | given
        )


class ChatRequest(Sampling):
    """`POST /v1/chat/completions`."""

    messages: tuple[ChatMessage, ...] = Field(strict=False, min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, le=1_000_000)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    response_format: Annotated[Any, Only(({"type": "text"},))] = None
    tools: Annotated[tuple[Tool, ...] | None, Field(strict=False, max_length=MAX_TOOLS)] = None
    # That a model calls a function can be forbidden, not forced.
    tool_choice: Annotated[Any, Only(("auto", "none"))] = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[Any, Only(([],))] = None
    function_call: Annotated[Any, Only(("none", "auto"))] = None
    modalities: Annotated[Any, Only((["text"],))] = None
    audio: Annotated[Any, Only()] = None
    prediction: Annotated[Any, Only()] = None
    reasoning_effort: Annotated[Any, Only(("none",))] = None
    verbosity: Annotated[Any, Only(("medium",))] = None
    web_search_options: Annotated[Any, Only()] = None
    # Say something of the caller, not of the answer.
    store: bool | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    @model_validator(mode="after")
    def sense(self) -> "ChatRequest":
        """Refuse two limits that differ, and alternatives to tokens that nobody asked for."""
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise ValueError("max_tokens and max_completion_tokens differ: send max_completion_tokens alone")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs need logprobs: true")
        check_logprobs(self.likely, self.most_tokens)
        return self

    @property
    def most_tokens(self) -> int:
        """The limit, under either name."""
        return self.max_completion_tokens or self.max_tokens or CHAT_MAX_TOKENS

    @property
    def likely(self) -> int | None:
        """How many likely tokens to tell at the place of each; None: tell nothing."""
        return self.top_logprobs or 0 if self.logprobs else None

    def job(self) -> JobRequest:
        """Return the job that answers this chat."""
        turns = tuple(turn.message() for turn in self.messages)
        asked: dict[str, Any] = {"logprobs": self.likely}
        # A model that is shown no tools calls none.
        if self.tools and self.tool_choice != "none":
            asked |= {"tools": self.tools, "parallel_tool_calls": self.parallel_tool_calls}
        return self.sampled(self.most_tokens, messages=turns, **asked)


class CompletionRequest(Sampling):
    """`POST /v1/completions`."""

    prompt: Annotated[str, BeforeValidator(one_of_list), Field(min_length=1)]
    best_of: Annotated[Any, Only((1,))] = None
    echo: Annotated[Any, Only((False,))] = None
    logprobs: int | None = Field(None, ge=0, le=COMPLETION_TOP_LOGPROBS)
    suffix: Annotated[Any, Only(("",))] = None

    @model_validator(mode="after")
    def sense(self) -> "CompletionRequest":
        """Refuse an answer that would be too large."""
        check_logprobs(self.logprobs, self.max_tokens or COMPLETION_MAX_TOKENS)
        return self

    def job(self) -> JobRequest:
        """Return the job that answers this completion."""
        limit = self.max_tokens or COMPLETION_MAX_TOKENS
        return self.sampled(limit, prompt=self.prompt, logprobs=self.logprobs)
