"""Messages to text by the model's chat template.

Chat templates are foreign code. transformers renders them in Jinja's immutable sandbox; we limit their time.
"""

import json
import logging
from typing import Any, Final

import jinja2
from mlx_lm.tokenizer_utils import TokenizerWrapper
from pydantic import ValidationError

from exo_celery.errors import InvalidRequestError, TemplateError
from exo_celery.invalid import invalid
from exo_celery.records.tools import ToolCall
from exo_celery.runner.patience import OutOfTimeError, time_limit
from exo_celery.runner.protocol import GenerateRequest

log = logging.getLogger(__name__)

TEMPLATE_SECONDS: Final = 5.0
# What foreign template code can raise on messages it was not made for, besides its own refusals.
FAILURES: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def render(tokenizer: TokenizerWrapper, request: GenerateRequest) -> str:
    """Return a request's messages, and the tools it offers, as the model was taught to read them.

    Raises:
        TemplateError: the chat template refused the messages, knows no tools, or there is none.
        InvalidRequestError: the content of a message is not text.
    """
    if not tokenizer.has_chat_template:
        raise TemplateError("this model has no chat template: send a prompt instead of messages", param="messages")
    turns = [normalized(message) for message in request.messages or ()]
    calls = any(turn.get("tool_calls") or turn["role"] == "tool" for turn in turns)
    # Without a parser of mlx-lm's nobody could tell the model's calls from its text.
    if (calls or request.tools) and not tokenizer.has_tool_calling:
        raise no_tools("tools" if request.tools else "messages")
    if not request.tools:
        return apply(tokenizer, turns)
    rendered = apply(tokenizer, turns, tools=list(request.tools))
    if rendered == apply(tokenizer, turns):
        raise no_tools("tools")
    return rendered


def apply(tokenizer: TokenizerWrapper, turns: list[dict[str, Any]], **shown: Any) -> str:
    """Run the template; errors as of `render`."""
    try:
        with time_limit(TEMPLATE_SECONDS):
            return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **shown))
    except OutOfTimeError as error:
        message = f"the model's chat template took longer than {TEMPLATE_SECONDS:.0f} s: send a plain prompt"
        raise TemplateError(message, param="messages") from error
    except jinja2.TemplateError as error:
        raise TemplateError(f"the model's chat template refused the messages: {error}", param="messages") from error
    except FAILURES as error:
        log.info("a chat template failed: %r", error)
        message = "the model's chat template fails on these messages: change their roles or order, or send a prompt"
        raise TemplateError(message, param="messages") from error


def no_tools(param: str) -> TemplateError:
    """Return the refusal of functions by a model that was not taught to call any."""
    return TemplateError(
        f"{param}: the chat template of this model knows no tools, so it cannot call functions: "
        "leave them out, or ask a model whose template knows tools",
        param=param,
    )


def normalized(message: dict[str, Any]) -> dict[str, Any]:
    """Return a chat message as templates expect it: plain text, arguments as objects, no role that only OpenAI knows.

    Raises:
        InvalidRequestError: the content holds parts other than text.
    """
    content = message.get("content")
    if isinstance(content, list):
        if any(part.get("type") != "text" for part in content):
            raise InvalidRequestError("this model reads text only: send parts of type text", param="messages")
        content = "".join(str(part.get("text", "")) for part in content)
    role = "system" if message.get("role") == "developer" else message.get("role")
    kept = {key: value for key, value in message.items() if value is not None}
    calls = {"tool_calls": [opened(call) for call in kept["tool_calls"]]} if kept.get("tool_calls") else {}
    return kept | {"role": role, "content": content or ""} | calls


def opened(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call with its arguments as an object.

    Raises:
        InvalidRequestError: it is not a call, or they are no JSON object.
    """
    try:
        known = ToolCall.model_validate(call)
    except ValidationError as error:
        raise InvalidRequestError(f"tool_calls: {invalid(error, call).message}", param="messages") from error
    function = {"name": known.function.name, "arguments": json.loads(known.function.arguments)}
    return {"id": known.id, "type": known.type, "function": function}
