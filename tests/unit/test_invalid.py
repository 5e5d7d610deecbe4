"""What is wrong with a request is told in plain words, and never in pydantic's."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from exo_celery.client import Client
from exo_celery.errors import InvalidRequestError
from exo_celery.invalid import invalid
from exo_celery.openai.batches import BatchRequest
from exo_celery.openai.lines import Envelope
from exo_celery.openai.requests import ChatRequest, CompletionRequest
from exo_celery.records.instance import PlacementRequest
from exo_celery.records.job import JobRequest
from exo_celery.records.model import AddModel
from exo_celery.runner.client import checked

MODELS = [ChatRequest, CompletionRequest, JobRequest, BatchRequest, PlacementRequest, AddModel, Envelope]
# What only a programmer of this server could have an idea of.
FOREIGN = re.compile(
    r"Input should|Extra inputs|Field required|should have at|pydantic|Value error|NoneType|\bNone\b|\bTrue\b|\bFalse\b"
    r"|Tuple|Literal|\bdict\b|\bstr\b|\bint\b|valid (string|integer|number|boolean|list|tuple|dictionary)"
)
GOOD: dict[str, Any] = {"model": "org/known", "messages": [{"role": "user", "content": "hello"}]}


def refusal(model: type[BaseModel], body: Any) -> InvalidRequestError | None:
    raw = to_json(body)
    try:
        model.model_validate_json(raw)
    except ValidationError as error:
        return invalid(error, raw)
    return None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (GOOD | {"max_tokens": 0}, "max_tokens: must be at least 1 (got 0)"),
        (GOOD | {"max_tokens": "7"}, 'max_tokens: must be a whole number (got "7")'),
        (GOOD | {"temperature": 3}, "temperature: must be at most 2 (got 3)"),
        (GOOD | {"stream": "yes"}, 'stream: must be true or false (got "yes")'),
        (GOOD | {"surprise": 1}, "surprise: is not known here: leave it out"),
        ({"model": "org/known"}, "messages: is missing: send it"),
        (GOOD | {"messages": []}, "messages: must have 1 entries or more (got [])"),
        (GOOD | {"messages": {}}, "messages: must be a list (got {})"),
        (GOOD | {"messages": ["hello"]}, 'messages[0]: must be an object (got "hello")'),
        (GOOD | {"model": None}, "model: must be text (got null)"),
        (GOOD | {"n": 2}, "n: is not supported by this server: send 1 or leave it out (got 2)"),
        (
            GOOD | {"tool_choice": "required"},
            'tool_choice: is not supported by this server: send "auto" or leave it out',
        ),
        (
            GOOD | {"messages": [{"role": "wizard", "content": "x"}]},
            "messages[0].role: must be 'system', 'developer', 'user', 'assistant' or 'tool' (got \"wizard\")",
        ),
        ([], "the body: must be an object (got [])"),
        (GOOD | {"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens and max_completion_tokens differ: "),
    ],
)
def test_a_refusal_says_what_was_asked_and_what_came(body: Any, message: str) -> None:
    told = refusal(ChatRequest, body)
    assert told
    assert told.message.startswith(message)


def test_malformed_json_says_where() -> None:
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate_json(b'{"model": ')
    assert invalid(caught.value, b"").message == (
        "the body is not valid JSON: EOF while parsing a value at line 1 column 10"
    )


def test_a_long_value_is_shown_by_its_beginning() -> None:
    told = refusal(ChatRequest, GOOD | {"stop": [{"x": "y" * 500}]})
    assert told
    assert len(told.message) < 200
    assert told.param == "stop[0]"


NAMES = sorted({name for model in MODELS for name in model.model_fields} | {"function", "type", "x"})
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | st.just("org/m"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(MODELS), st.dictionaries(st.sampled_from(NAMES), JUNK, max_size=6) | JUNK)
def test_whatever_comes_no_foreign_word_goes_back(model: type[BaseModel], body: Any) -> None:
    told = refusal(model, body)
    if told is None:
        return
    ours = told.message.partition(" (got ")[0]
    assert not FOREIGN.search(ours), told.message
    assert told.param is None or told.message.startswith(told.param)


def test_python_programs_and_the_engine_read_the_same_words() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Client("redis://127.0.0.1:1/0").submit("org/known", prompt="x", max_tokens=0)
    assert (caught.value.message, caught.value.param) == ("max_tokens: must be at least 1 (got 0)", "max_tokens")
    with pytest.raises(InvalidRequestError) as caught:
        checked({"prompt": "x", "top_p": 2})
    assert (caught.value.message, caught.value.param) == ("top_p: must be at most 1 (got 2)", "top_p")
