"""Calls of functions in what a model says, however its text is cut, in the formats that mlx-lm knows."""

import importlib
import json
import random
from typing import Any

import pytest

from exo_celery.runner.calls import CallReader, Format, PlainReader, Said

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}},
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock", "parameters": {"properties": {}}}}
PARIS = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


def format_of(parser: str, **thoughts: str) -> Format:
    module = importlib.import_module(f"mlx_lm.tool_parsers.{parser}")
    return Format(module.tool_call_start, module.tool_call_end, module.parse_tool_call, **thoughts)


JSON = format_of("json_tools", think_start="<think>", think_end="</think>")


def read(pieces: list[str], form: Format = JSON, **options: Any) -> tuple[str, list[tuple[str, Any]]]:
    """Return the text and the calls that a reader tells apart."""
    reader = CallReader(form, [WEATHER, CLOCK], "job-1.1", **options)
    said: list[Said] = []
    for piece in pieces:
        said += reader.feed(piece)
        if reader.full:
            break
    said += reader.finish()
    text = "".join(part for part in said if isinstance(part, str))
    calls = [call for part in said if not isinstance(part, str) for call in part]
    assert len({call.id for call in calls}) == len(calls)
    assert all(call.id for call in calls)
    return text, [(call.function.name, json.loads(call.function.arguments)) for call in calls]


@pytest.mark.parametrize(
    ("said", "text", "calls"),
    [
        ("It is late.", "It is late.", []),
        (PARIS, "", [("weather", {"city": "Paris"})]),
        (f"Let me look.\n{PARIS}\n{NOW}\n", "Let me look.", [("weather", {"city": "Paris"}), ("clock", {})]),
        (f"{NOW}\nDone. ", "Done. ", [("clock", {})]),
        (PARIS.removesuffix("\n</tool_call>"), "", [("weather", {"city": "Paris"})]),  # it ended without the mark
        (f"<think>I could {NOW}</think>\n{PARIS}", f"<think>I could {NOW}</think>", [("weather", {"city": "Paris"})]),
        ("<tool_cal", "<tool_cal", []),
        ("a < b, <tool>", "a < b, <tool>", []),
    ],
)
def test_text_and_calls_are_told_apart_however_it_is_cut(said: str, text: str, calls: list[Any]) -> None:
    dice = random.Random(3)
    for _ in range(50):
        cuts = sorted(dice.sample(range(len(said) + 1), 4))
        pieces = [said[a:b] for a, b in zip([0, *cuts], [*cuts, len(said)], strict=True)]
        assert read(pieces) == (text, calls)
    assert read(list(said)) == (text, calls)


@pytest.mark.parametrize(
    "said",
    [
        '<tool_call>{"name": "weather", "arguments": {"city": </tool_call>',
        '<tool_call>{"name": "launch", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call>7</tool_call>",
        '<tool_call>{"name": "weather", "arg',  # the answer was cut
    ],
)
def test_what_is_no_call_of_an_offered_function_stays_text(said: str) -> None:
    assert read([said]) == (said, [])
    assert read(list(f"{said} and on")) == (f"{said} and on", [])


def test_an_answer_that_begins_in_a_thought() -> None:
    said = f"I could {NOW}</think>{PARIS}"
    assert read([said], thinking=True) == (f"I could {NOW}</think>", [("weather", {"city": "Paris"})])


def test_one_call_and_no_more_where_one_is_asked_for() -> None:
    assert read(list(f"{PARIS}\n{NOW}"), most=1) == ("", [("weather", {"city": "Paris"})])
    several = '[TOOL_CALLS][{"name": "clock", "arguments": {}}, {"name": "weather", "arguments": {"city": "Rome"}}]'
    assert read([several], format_of("mistral"), most=1) == ("", [("clock", {})])


@pytest.mark.parametrize(
    ("parser", "said"),
    [
        ("mistral", '[TOOL_CALLS]weather[ARGS]{"city": "Paris"}[TOOL_CALLS]clock[ARGS]{}'),
        ("pythonic", '<|tool_call_start|>[weather(city="Paris"), clock()]<|tool_call_end|>'),
        (
            "qwen3_coder",
            "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>\n"
            "<tool_call>\n<function=clock>\n</function>\n</tool_call>",
        ),
        (
            "glm47",
            "<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>"
            "<tool_call>clock</tool_call>",
        ),
        (
            "minimax_m2",
            '<minimax:tool_call><invoke name="weather"><parameter name="city">Paris</parameter></invoke>'
            '<invoke name="clock"></invoke></minimax:tool_call>',
        ),
        ("gemma4", '<|tool_call>call:weather{city:<|"|>Paris<|"|>}<tool_call|><|tool_call>call:clock{}<tool_call|>'),
    ],
)
def test_the_formats_of_other_models(parser: str, said: str) -> None:
    expected = ("", [("weather", {"city": "Paris"}), ("clock", {})])
    assert read([said], format_of(parser)) == expected
    assert read(list(said), format_of(parser)) == expected


def test_ids_follow_from_the_request_and_suit_every_template() -> None:
    def ids(name: str) -> list[str]:
        said = CallReader(JSON, [WEATHER, CLOCK], name).feed(PARIS + NOW)
        return [call.id for part in said if not isinstance(part, str) for call in part]

    assert ids("job-1.1") == ids("job-1.1")
    assert set(ids("job-1.1")).isdisjoint(ids("job-2.1"))
    assert all(len(one) == 9 and one.isalnum() for one in ids("job-1.1"))


def test_the_id_that_a_model_gave_is_kept() -> None:
    form = format_of("kimi_k2")
    call = "<|tool_call_begin|>functions.clock:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    [calls] = CallReader(form, [CLOCK], "job-1.1").feed(form.start + call + form.end)
    assert not isinstance(calls, str)
    assert [call.id for call in calls] == ["functions.clock:0"]


def test_where_nothing_may_be_called_text_is_text() -> None:
    reader = PlainReader()
    assert (reader.feed(PARIS), reader.feed(""), reader.finish()) == ([PARIS], [], [])
