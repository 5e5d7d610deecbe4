"""What clients of OpenAI's API read: whole answers and the chunks of a stream."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from exo_celery.openai.logprobs import ChatLogprobs, TextLogprobs
from exo_celery.records.base import Record
from exo_celery.records.job import Job, TokenEvent, Usage
from exo_celery.records.logprobs import TokenLogprobs
from exo_celery.records.model import ModelCard
from exo_celery.records.tools import ToolCall


class V1Usage(Record):
    """Tokens of an answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> "V1Usage":
        """Leave out our own figures."""
        return cls.model_validate(usage.model_dump())


class V1Model(Record):
    """A model that can be served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str

    @classmethod
    def of(cls, card: ModelCard) -> "V1Model":
        """Show a card as OpenAI shows a model; its owner is the first part of its id."""
        return cls(id=card.id, created=int(card.created_at), owned_by=card.id.partition("/")[0])


class V1Models(Record):
    """The models that can be served."""

    object: Literal["list"] = "list"
    data: list[V1Model]


class AnswerMessage(Record):
    """The turn that the model took; `tool_calls` are only there if it made some."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: tuple[ToolCall, ...] = Field((), exclude_if=lambda calls: not calls)


class ChatChoice(Record):
    """The one choice of a chat."""

    index: int = 0
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str


class ChatCompletion(Record):
    """A whole chat answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: V1Usage


class TextChoice(Record):
    """The one choice of a completion."""

    index: int = 0
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str


class Completion(Record):
    """A whole completion."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: V1Usage


class Shape:
    """The answer to one job: whole, or chunk by chunk with the same id, time and model on each."""

    prefix: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, job: Job, *, include_usage: bool) -> None:
        self.head = {"id": f"{self.prefix}-{job.id}", "created": int(job.created_at), "model": job.model}
        self.include_usage = include_usage
        # In this stream.
        self.called = 0  # functions
        self.offset = 0  # characters of tokens

    def whole(self, job: Job) -> Record:
        """Return the whole answer of a finished job."""
        raise NotImplementedError

    def choice(self, text: str | None, finish_reason: str | None = None) -> dict[str, Any]:
        """Return a chunk's one choice; None where there is no text."""
        raise NotImplementedError

    def chunk(self, *choices: dict[str, Any], usage: V1Usage | None = None) -> dict[str, Any]:
        """Return one chunk; where usage was asked for, every chunk has the field."""
        told = {"usage": usage} if self.include_usage else {}
        return self.head | {"object": self.chunk_object, "choices": choices} | told

    def growth(self, event: TokenEvent) -> dict[str, Any]:
        """Return the choice of a chunk that carries what the job says next."""
        raise NotImplementedError

    def opening(self) -> list[dict[str, Any]]:
        """Return the chunks before the first text."""
        return []

    def closing(self, finish_reason: str, usage: Usage) -> list[dict[str, Any]]:
        """Return the chunks after the last text."""
        last = [self.chunk(self.choice(None, finish_reason))]
        return last + ([self.chunk(usage=V1Usage.of(usage))] if self.include_usage else [])


class Chat(Shape):
    """Answers of `/v1/chat/completions`."""

    prefix = "chatcmpl"
    chunk_object = "chat.completion.chunk"

    def whole(self, job: Job) -> ChatCompletion:
        """Return the model's turn."""
        # Who only calls functions says nothing.
        said = job.text if job.text or not job.tool_calls else None
        message = AnswerMessage(content=said, tool_calls=job.tool_calls)
        likely = ChatLogprobs.of(job.logprobs)
        choices = [ChatChoice(message=message, logprobs=likely, finish_reason=job.finish_reason)]
        return ChatCompletion(**self.head, choices=choices, usage=V1Usage.of(job.usage))

    def choice(self, text: str | None, finish_reason: str | None = None) -> dict[str, Any]:
        """Return what the turn grows by."""
        delta = {} if text is None else {"content": text}
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}

    def growth(self, event: TokenEvent) -> dict[str, Any]:
        """Return the choice of a chunk that carries text, or calls of functions, each whole with its place."""
        choice = self.choice(event.text or None) | {"logprobs": ChatLogprobs.of(tokens_of(event))}
        if calls := event.data.get("tool_calls"):
            choice["delta"]["tool_calls"] = [{"index": index} | call for index, call in enumerate(calls, self.called)]
            self.called += len(calls)
        return choice

    def opening(self) -> list[dict[str, Any]]:
        """Return the one chunk that says who speaks."""
        choice = self.choice(None) | {"delta": {"role": "assistant", "content": ""}}
        return [self.chunk(choice)]


class Text(Shape):
    """Answers of `/v1/completions`: a chunk looks like a whole answer with a piece of the text."""

    prefix = "cmpl"
    chunk_object = "text_completion"

    def whole(self, job: Job) -> Completion:
        """Return the text that goes on after the prompt."""
        likely = TextLogprobs.of(job.logprobs)
        choices = [TextChoice(text=job.text, logprobs=likely, finish_reason=job.finish_reason)]
        return Completion(**self.head, choices=choices, usage=V1Usage.of(job.usage))

    def growth(self, event: TokenEvent) -> dict[str, Any]:
        """Return the choice of a chunk that carries the next piece of the text, or how likely its tokens were."""
        tokens = tokens_of(event)
        likely = TextLogprobs.of(tokens, self.offset)
        self.offset += sum(len(one.token) for one in tokens)
        return self.choice(event.text) | {"logprobs": likely}

    def choice(self, text: str | None, finish_reason: str | None = None) -> dict[str, Any]:
        """Return the next piece of the text."""
        return {"index": 0, "text": text or "", "logprobs": None, "finish_reason": finish_reason}


def tokens_of(event: TokenEvent) -> list[TokenLogprobs]:
    """Return how likely the tokens of a delta were, where it tells."""
    return [TokenLogprobs.model_validate(one) for one in event.data.get("logprobs", ())]
