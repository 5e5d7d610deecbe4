"""Functions that a model may call: shown by its template, found in what a ring says, refused where unknown."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper, load
from ring_group import demo_model, ring, run
from scripted import ANSWERING, LAYERS, PLAIN, TEMPLATE, WEATHER, scripted_model

from exo_celery.errors import InvalidRequestError, TemplateError
from exo_celery.runner.client import EngineClient
from exo_celery.runner.protocol import Delta, Finished, GenerateRequest, Refused
from exo_celery.runner.template import render

ASK: dict[str, Any] = {"role": "user", "content": "How is the weather in Paris?"}
CALL: dict[str, Any] = {
    "id": "abc123def",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
}
CALLED = [
    ASK,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "abc123def", "content": "sunny, 21"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scripted_model(tmp_path_factory.mktemp("models") / "org--speaks")


@pytest.fixture(scope="module")
def client(model: Path) -> Iterator[EngineClient]:
    with ring(model, (0, 2, LAYERS)) as (_, made):
        yield made


def test_a_call_comes_as_a_call_and_not_as_text(client: EngineClient) -> None:
    events = list(client.generate("job-1.1", {"messages": [ASK], "tools": [WEATHER], "max_tokens": 100}))
    deltas = [event for event in events if isinstance(event, Delta)]
    last = events[-1]
    assert isinstance(last, Finished)
    assert (last.finish_reason, last.text) == ("tool_calls", "I look.")
    [call] = last.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Paris"}')
    assert "".join(delta.text for delta in deltas) == "I look."
    assert [call for delta in deltas for call in delta.tool_calls] == list(last.tool_calls)
    assert sum(len(delta.token_ids) for delta in deltas) == last.usage.completion_tokens
    again = run(client, "job-1.2", messages=[ASK], tools=[WEATHER], max_tokens=100, parallel_tool_calls=False)[1]
    assert isinstance(again, Finished)
    assert [one.function for one in again.tool_calls] == [call.function]
    assert again.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("messages", "tools", "said"), [(CALLED, [WEATHER], ANSWERING), ([ASK], [], PLAIN)], ids=["a result", "no tools"]
)
def test_other_answers_are_text(client: EngineClient, messages: list[Any], tools: list[Any], said: str) -> None:
    last = run(client, "a", messages=messages, tools=tools, max_tokens=100)[1]
    assert isinstance(last, Finished)
    assert (last.text, last.tool_calls, last.finish_reason) == (said, (), "stop")


def test_a_call_that_is_cut_stays_text(client: EngineClient) -> None:
    last = run(client, "a", messages=[ASK], tools=[WEATHER], max_tokens=8)[1]
    assert isinstance(last, Finished)
    assert (last.finish_reason, last.tool_calls) == ("length", ())
    assert last.text.startswith("I look.<tool_call>")


def test_a_ring_that_refused_functions_goes_on(client: EngineClient) -> None:
    nameless = CALL | {"function": {"name": "get_weather", "arguments": "Paris"}}
    last = run(client, "a", messages=[{"role": "assistant", "tool_calls": [nameless]}], max_tokens=4)[1]
    assert isinstance(last, Refused)
    assert (last.code, last.param) == ("invalid_request", "messages")
    assert isinstance(run(client, "b", messages=[ASK], max_tokens=100)[1], Finished)


def tokenizer(folder: Path, template: str) -> TokenizerWrapper:
    return load(folder, {"chat_template": template})


def rendered(known: TokenizerWrapper, **request: Any) -> str:
    return render(known, GenerateRequest(**request))


def test_a_template_sees_functions_calls_and_results(model: Path) -> None:
    text = rendered(tokenizer(model, TEMPLATE), messages=CALLED, tools=[WEATHER])
    assert "Tell how the weather is." in text
    assert '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>' in text
    assert "tool: sunny, 21" in text


@pytest.mark.parametrize(
    "request_", [{"tools": [WEATHER], "messages": [ASK]}, {"messages": CALLED}], ids=["tools", "messages"]
)
def test_a_model_that_was_taught_no_functions_says_so(request_: dict[str, Any]) -> None:
    param = "tools" if "tools" in request_ else "messages"
    with pytest.raises(TemplateError, match="knows no tools") as refused:
        rendered(load(demo_model()), **request_)
    assert refused.value.param == param


def test_a_template_that_shows_no_functions_is_found_out(model: Path) -> None:
    """mlx-lm knows how its calls would look, but the model would never hear of a function."""
    deaf = tokenizer(model, TEMPLATE.replace("tools", "nothing"))
    assert deaf.has_tool_calling
    assert "sunny" in rendered(deaf, messages=CALLED)
    with pytest.raises(TemplateError, match="knows no tools"):
        rendered(deaf, messages=[ASK], tools=[WEATHER])


def test_arguments_must_be_an_object(model: Path) -> None:
    wrong = [ASK, {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": "[1]"}}]}]
    with pytest.raises(InvalidRequestError, match=r"function\.arguments: must be a JSON object"):
        rendered(tokenizer(model, TEMPLATE), messages=wrong)
