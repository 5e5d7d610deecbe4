"""/v1: OpenAI's API, for existing clients as they are. Each request is a job that lives as long as its client."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

from flask import Blueprint, Response
from pydantic_core import to_json

from exo_celery import cluster
from exo_celery.errors import ExoError, ModelNotFoundError
from exo_celery.openai.answers import Chat, ChatCompletion, Completion, Shape, Text, V1Model, V1Models
from exo_celery.openai.refusal import error_body
from exo_celery.openai.requests import ChatRequest, CompletionRequest
from exo_celery.records.job import TokenEvent, Usage
from web import sse
from web.context import the_cluster
from web.errors import OUTAGES, unavailable
from web.operation import json_response, operation
from web.waiting import Waiting, check_model

blueprint: Final = Blueprint("openai", __name__, url_prefix="/v1")

DONE: Final = sse.frame("[DONE]")


@blueprint.post("/chat/completions")
@operation(ChatCompletion, body=ChatRequest, errors=(404, 410, 503), streams=True)
def chat_completions(body: ChatRequest) -> Response:
    """Answer a chat, whole or as a stream."""
    return answer(body, Chat)


@blueprint.post("/completions")
@operation(Completion, body=CompletionRequest, errors=(404, 410, 503), streams=True)
def completions(body: CompletionRequest) -> Response:
    """Complete a text, whole or as a stream."""
    return answer(body, Text)


@blueprint.get("/models")
@operation(V1Models, errors=(503,))
def models() -> V1Models:
    """List the models that can be served: complete on some node, or placed."""
    return V1Models(data=[V1Model.of(card) for card in cluster.servable_models(the_cluster())])


@blueprint.get("/models/<path:model>")
@operation(V1Model, errors=(404, 503))
def model(model: str) -> V1Model:
    """Show one model that can be served."""
    cards = cluster.servable_models(the_cluster())
    for card in cards:
        if card.id == model:
            return V1Model.of(card)
    served = ", ".join(card.id for card in cards) or "none yet"
    raise ModelNotFoundError(f"model {model[:200]!r} cannot be served here; can be served: {served}", param="model")


def answer(body: ChatRequest | CompletionRequest, shape: type[Shape]) -> Response:
    """Run the request as a job and answer in the given shape."""
    check_model(the_cluster(), body.model)
    waiting = Waiting(the_cluster(), body.job())
    shaped = shape(waiting.job, include_usage=body.include_usage)
    with ExitStack() as leaving:
        leaving.callback(waiting.close)
        if not body.stream:
            return json_response(shaped.whole(waiting.finished()))
        response = sse.stream(frames(shaped, waiting.held()))
        response.call_on_close(leaving.pop_all().close)
        return response


def frames(shape: Shape, events: Iterator[TokenEvent | None]) -> Iterator[str]:
    """Write the job's events as chunks. An error ends the stream without [DONE], which would read as an answer."""
    try:
        yield from chunks(shape.opening())
        for event in events:
            if event is None:
                yield sse.KEEP_ALIVE
            elif event.kind == "delta":
                yield from chunks([shape.chunk(shape.growth(event))])
            elif event.kind == "end":
                usage = Usage.model_validate(event.data["usage"])
                yield from chunks(shape.closing(event.data["finish_reason"], usage))
                yield DONE
    except ExoError as error:
        yield sse.frame(to_json(error_body(error)).decode())
    except OUTAGES as error:
        yield sse.frame(to_json(error_body(unavailable(error))).decode())


def chunks(bodies: list[dict[str, Any]]) -> Iterator[str]:
    """Write chunks as frames."""
    for body in bodies:
        yield sse.frame(to_json(body).decode())
