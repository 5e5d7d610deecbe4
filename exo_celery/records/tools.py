"""Functions that a model may ask to have called, and its calls of them, in OpenAI's shape."""

import json
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from exo_celery.records.base import UNSUPPORTED, Request

FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class Function(Request):
    """A function of the caller's; `parameters` is the JSON Schema of its arguments."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @field_validator("strict")
    @classmethod
    def not_strict(cls, strict: bool | None) -> bool | None:
        """Refuse the promise that arguments keep to their schema: nothing holds a model to it."""
        if strict:
            raise PydanticCustomError(UNSUPPORTED, "cannot be promised by this server: send false or leave it out")
        return strict


class Tool(Request):
    """What a model may use; functions are all there is."""

    type: Literal["function"]
    function: Function


class CalledFunction(Request):
    """The function that is to be called; `arguments` is a JSON object, written as text."""

    name: str
    arguments: str

    @field_validator("arguments")
    @classmethod
    def an_object(cls, text: str) -> str:
        """Refuse arguments that no template could show."""
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            raise ValueError('must be a JSON object as text, such as "{}"')
        return text


class ToolCall(Request):
    """One call that a model asked for; a message of role `tool` brings its result under the same id."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
