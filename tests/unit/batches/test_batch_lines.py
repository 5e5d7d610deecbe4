"""Lines of a batch: split at any place, checked with their numbers, written the same way each time."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exo_celery.errors import InvalidRequestError
from exo_celery.openai import lines
from exo_celery.openai.lines import split
from exo_celery.pump import validation
from exo_celery.pump.validation import MAX_ERRORS, Findings, validate
from exo_celery.records.batch import Batch
from exo_celery.records.job import Job, JobRequest, JobState, Usage
from exo_celery.records.tools import CalledFunction, ToolCall

CHAT = "/v1/chat/completions"
MODEL = "org/known"
BATCH = Batch(id="batch_" + "a" * 32, endpoint=CHAT, input_file_id="file-1", completion_window="24h")


def line(custom_id: Any = "a", url: str = CHAT, method: str = "POST", **change: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]} | change
    return {"custom_id": custom_id, "method": method, "url": url, "body": body}


def text(*rows: Any) -> bytes:
    return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)


def checked(*rows: Any, endpoint: str = CHAT) -> Findings:
    return validate(split([text(*rows)]), endpoint, {MODEL})


def complaints(found: Findings) -> list[tuple[int | None, str]]:
    return [(error.line, error.code) for error in found.errors]


@given(st.binary(max_size=60).map(lambda b: b.replace(b"a", b"\n")), st.integers(1, 9))
def test_lines_are_the_same_however_the_content_is_cut(content: bytes, size: int) -> None:
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    found = list(split(pieces))
    assert [one.raw for one in found] == content.split(b"\n")[: len(found)]
    assert [one.number for one in found] == list(range(1, len(found) + 1))
    assert b"".join(content[one.offset : one.end] for one in found) == content


JUNK = st.binary(max_size=8) | st.sampled_from(
    [
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\x00",
        b"\r",
        b"\n",
        b'"',
        b"\\ud800",
        b"{",
        b"}",
        b"[" * 300,
        b"NaN",
        b"1e999",
        b"null",
    ]
)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 12), JUNK), max_size=4))
def test_a_damaged_file_is_refused_or_run_and_nothing_else(damage: list[tuple[int, int, bytes]]) -> None:
    content = text(line("a"), line("b", tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}]))
    for at, length, junk in damage:
        content = content[:at] + junk + content[at + length :]
    found = list(split([content]))
    checked = validate(found, CHAT, {MODEL})
    assert all(error.message and error.code for error in checked.errors)
    for one in found if not checked.errors else []:
        if one.text:
            custom_id = lines.read(one, CHAT).custom_id
            try:
                assert lines.job_request(one, CHAT).model == MODEL
            except InvalidRequestError as error:
                told = json.loads(lines.refusal(BATCH, one.number, custom_id, error).text)
                assert told["response"]["status_code"] == 400


def test_reading_goes_on_from_any_line() -> None:
    content = text(*(line(str(n)) for n in range(5)))
    third = list(split([content]))[2]
    rest = list(split([content[third.offset :]], third.number - 1, third.offset))
    assert rest == list(split([content]))[2:]


def test_a_long_line_is_refused_and_the_next_ones_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 300)
    content = text(line("1"), line("2", user="x" * 2000), line("3"))
    pieces = [content[at : at + 100] for at in range(0, len(content), 100)]
    found = list(split(pieces))
    assert max(len(one.raw) for one in found) < 500
    assert b"".join(content[one.offset : one.end] for one in found) == content
    assert complaints(validate(found, CHAT, {MODEL})) == [(2, "line_too_long")]


@pytest.mark.parametrize(
    "content",
    [
        text(line("1"), line("2")),
        text(line("1"), line("2")).removesuffix(b"\n"),
        text(line("1"), line("2")).replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + text(line("1"), line("2")) + b"\n\r\n  \n",
    ],
)
def test_what_editors_do_to_files_is_accepted(content: bytes) -> None:
    found = validate(split([content]), CHAT, {MODEL})
    assert (found.errors, found.lines) == ([], {MODEL: 2})


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"\xff\xfe", "invalid_json_line", None),
        (b"[" * 5000, "invalid_json_line", None),
        (b"[1]", "invalid_request", None),
        (line(""), "invalid_custom_id", "custom_id"),
        (line(7), "invalid_custom_id", "custom_id"),
        (line("b", url="/v1/completions"), "invalid_url", "url"),
        (line("b", method="GET"), "invalid_method", "method"),
        (line("b") | {"surprise": 1}, "invalid_request", "surprise"),
        (line("b") | {"body": []}, "invalid_request", "body"),
        (line("b", model=None), "invalid_request", "body.model"),
        (line("b", model="no/such"), "model_not_found", "body.model"),
        (line("a"), "duplicate_custom_id", "custom_id"),
        ({"custom_id": "b", "method": "POST", "url": CHAT}, "missing_required_parameter", "body"),
    ],
)
def test_a_bad_line_is_named_by_its_number(bad: Any, code: str, param: str | None) -> None:
    found = checked(line("a"), b"", bad, line("c"))
    assert complaints(found) == [(3, code)]
    assert found.errors[0].param == param
    assert found.errors[0].message


def test_all_bad_lines_are_told_up_to_a_limit() -> None:
    assert [error.line for error in checked(line("a"), b"{", line("b"), b"}").errors] == [2, 4]
    assert len(checked(*[b"{"] * (MAX_ERRORS + 5)).errors) == MAX_ERRORS


def test_a_file_without_requests_is_refused() -> None:
    assert complaints(checked(b"", b"  ")) == [(None, "empty_file")]


def test_more_lines_than_allowed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert validation.MAX_LINES == 50_000
    monkeypatch.setattr(validation, "MAX_LINES", 3)
    assert checked(*(line(str(n)) for n in range(3))).lines == {MODEL: 3}
    assert complaints(checked(*(line(str(n)) for n in range(9)))) == [(4, "too_many_requests")]


def request_of(row: Any, endpoint: str = CHAT) -> JobRequest:
    return lines.job_request(next(split([text(row)])), endpoint)


def test_a_line_becomes_the_job_that_the_endpoint_would_make() -> None:
    request = request_of(line("a", max_tokens=3, seed=5))
    assert (request.model, request.max_tokens, request.seed, request.priority) == (MODEL, 3, 5, 9)
    plain = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": MODEL, "prompt": "hi"}}
    assert request_of(plain, "/v1/completions").prompt == "hi"


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"stream": True}, "invalid_request", "stream"),
        ({"max_tokens": 0}, "invalid_request", "max_tokens"),
        ({"n": 2}, "unsupported_parameter", "n"),
        ({"surprise": 1}, "invalid_request", "surprise"),
        ({"messages": [{"role": "user"}]}, "invalid_request", "messages[0]"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "invalid_request", None),
    ],
)
def test_a_bad_request_fails_its_own_line_as_the_endpoint_would(
    change: dict[str, Any], code: str, param: str | None
) -> None:
    rows = [line("a"), line("b", **change), line("c")]
    assert checked(*rows).errors == []
    assert checked(*rows).lines == {MODEL: 3}
    with pytest.raises(InvalidRequestError) as refused:
        request_of(rows[1])
    assert (refused.value.code, refused.value.param) == (code, param)
    result = lines.refusal(BATCH, 2, "b", refused.value)
    told = json.loads(result.text)
    assert not result.good
    assert (told["custom_id"], told["error"], told["response"]["status_code"]) == ("b", None, 400)
    assert told["response"]["body"]["error"]["param"] == param


def job(**facts: Any) -> Job:
    return Job(id=BATCH.job_id(1), model=MODEL, request=request_of(line()), **facts)


def test_an_answered_line() -> None:
    usage = Usage(prompt_tokens=3, completion_tokens=2, total_tokens=5)
    done = job(state=JobState.SUCCEEDED, text="Paris", finish_reason="stop", usage=usage)
    result = lines.result(BATCH, 1, "a", done, "")
    told = json.loads(result.text)
    assert result.good
    assert told["id"].startswith("batch_req_")
    assert (told["custom_id"], told["error"], told["response"]["status_code"]) == ("a", None, 200)
    assert told["response"]["request_id"]
    assert told["response"]["body"]["choices"][0]["message"]["content"] == "Paris"
    assert told["response"]["body"]["usage"]["total_tokens"] == 5
    assert lines.result(BATCH, 1, "a", done, "") == result


def test_a_line_that_failed_carries_the_error_in_its_response() -> None:
    error = {"message": "too long", "type": "x", "param": "messages", "code": "context_length_exceeded"}
    told = json.loads(lines.result(BATCH, 1, "a", job(state=JobState.FAILED, error=error), "").text)
    assert (told["error"], told["response"]["status_code"]) == (None, 400)
    assert told["response"]["body"]["error"]["code"] == "context_length_exceeded"


def test_a_line_that_was_not_run_has_no_response() -> None:
    told = json.loads(lines.result(BATCH, 1, "a", job(state=JobState.CANCELLED), "batch_expired").text)
    assert (told["response"], told["error"]["code"]) == (None, "batch_expired")
    alone = json.loads(lines.result(BATCH, 1, "a", job(state=JobState.CANCELLED), "").text)
    assert alone["response"]["body"]["error"]["code"] == "job_cancelled"


def test_a_line_that_called_a_function() -> None:
    call = ToolCall(id="abc", function=CalledFunction(name="clock", arguments="{}"))
    done = job(state=JobState.SUCCEEDED, tool_calls=(call,), finish_reason="tool_calls")
    choice = json.loads(lines.result(BATCH, 1, "a", done, "").text)["response"]["body"]["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert choice["message"]["tool_calls"] == [
        {"id": "abc", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    ]
