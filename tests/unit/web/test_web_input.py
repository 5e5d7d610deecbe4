"""Bad input: refused in OpenAI's shape, naming the field, before anything reaches a queue."""

import json
from typing import Any

import pytest
from flask.testing import FlaskClient

from web import MAX_BODY_BYTES

JOB: dict[str, Any] = {"model": "org/known", "prompt": "hello"}
CHAT: dict[str, Any] = {"model": "org/known", "messages": [{"role": "user", "content": "hello"}]}


NOT_JSON = {"name": "clock", "arguments": "{'zone': 1}"}


def post(client: FlaskClient, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    raw = body if isinstance(body, bytes) else json.dumps(body)
    answer = client.post(path, data=raw, content_type="application/json")
    error = answer.json["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert "Traceback" not in answer.text
    assert answer.headers["x-request-id"]
    return answer.status_code, error


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "7"}, "max_tokens"),
        ({"max_tokens": False}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "0"}, "temperature"),
        ({"surprise": 1}, "surprise"),
        ({"model": "no-slash"}, "model"),
        ({"model": "../../etc"}, "model"),
        ({"model": None}, "model"),
        ({"stop": [1]}, "stop[0]"),
        ({"logprobs": 4, "max_tokens": 20_001}, None),
        ({"seed": -1}, "seed"),
        ({"messages": [], "prompt": None}, "messages"),
        ({"messages": [{"role": "user", "content": 5}], "prompt": None}, "messages[0].content"),
        ({"messages": [{"content": "x"}], "prompt": None}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x"}]}, None),
    ],
)
def test_a_job_names_the_field(client: FlaskClient, fake: Any, change: dict[str, Any], param: str | None) -> None:
    status, error = post(client, "/api/jobs", JOB | change)
    assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert param is None or error["message"].startswith(f"{param}: ")
    assert fake.submitted == []


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"surprise": 1}, "surprise"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, None),
        ({"max_tokens": 5, "max_completion_tokens": 6}, None),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"top_logprobs": 3}, None),
        ({"logprobs": True, "top_logprobs": 20, "max_tokens": 100_000}, None),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"word": 1}}, "logit_bias.word"),
        ({"logit_bias": {"7": 101}}, "logit_bias.7"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "custom", "function": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "two words"}}]}, "tools[0].function.name"),
        ({"messages": [{"role": "tool", "content": "12:00"}]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, "messages[0].tool_calls[0].function"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": NOT_JSON}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_chat_names_the_field(client: FlaskClient, fake: Any, change: dict[str, Any], param: str | None) -> None:
    status, error = post(client, "/v1/chat/completions", CHAT | change)
    assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert fake.submitted == []


@pytest.mark.parametrize(
    "change",
    [
        {"n": 2},
        {"n": True},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "clock"}}},
        {"tools": [{"type": "function", "function": {"name": "clock", "strict": True}}]},
        {"functions": [{"name": "clock"}]},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_object"}},
        {"reasoning_effort": "high"},
        {"modalities": ["text", "audio"]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    ],
)
def test_a_parameter_that_changes_the_answer_is_refused(client: FlaskClient, fake: Any, change: dict[str, Any]) -> None:
    status, error = post(client, "/v1/chat/completions", CHAT | change)
    field = next(iter(change))
    assert (status, error["code"]) == (400, "unsupported_parameter")
    assert error["param"].startswith(field)
    assert fake.submitted == []


@pytest.mark.parametrize(
    "change", [{"prompt": ["a", "b"]}, {"prompt": [1, 2]}, {"best_of": 2}, {"echo": True}, {"suffix": "x"}]
)
def test_completions_refuse_what_they_cannot(client: FlaskClient, fake: Any, change: dict[str, Any]) -> None:
    status, error = post(client, "/v1/completions", JOB | change)
    assert (status, error["code"], error["param"]) == (400, "unsupported_parameter", next(iter(change)))
    assert fake.submitted == []


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b'"text"', b"\xff\xfe", b'{"model": NaN}', b"[" * 100_000, b'{"prompt": "\\ud800"}']
)
@pytest.mark.parametrize("path", ["/api/jobs", "/v1/chat/completions", "/api/instances"])
def test_malformed_json(client: FlaskClient, fake: Any, path: str, raw: bytes) -> None:
    status, error = post(client, path, raw)
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert fake.submitted == []


def test_a_body_must_say_that_it_is_json(client: FlaskClient) -> None:
    answer = client.post("/api/jobs", data=json.dumps(JOB), content_type="text/plain")
    assert (answer.status_code, answer.json["error"]["code"]) == (415, "unsupported_media_type")
    assert "application/json" in answer.json["error"]["message"]
    braces = client.post("/api/jobs", data=b"{}", content_type="a/{path}")
    assert (braces.status_code, "a/{path}" in braces.json["error"]["message"]) == (415, True)


def test_a_body_too_large(client: FlaskClient) -> None:
    status, error = post(client, "/api/jobs", b" " * (MAX_BODY_BYTES + 1))
    assert (status, error["code"]) == (413, "request_too_large")
    assert str(MAX_BODY_BYTES) in error["message"]


def test_unknown_routes_and_methods(client: FlaskClient) -> None:
    missing = client.get("/api/nothing/{here}")
    assert (missing.status_code, missing.json["error"]["code"]) == (404, "not_found")
    wrong = client.put("/api/jobs")
    assert (wrong.status_code, wrong.json["error"]["code"]) == (405, "method_not_allowed")
    assert "POST" in wrong.headers["Allow"]


def test_an_unexpected_failure_tells_nothing(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(c: Any) -> Any:
        raise RuntimeError("secret inside")

    monkeypatch.setattr("exo_celery.cluster.nodes", broken)
    answer = client.get("/api/nodes")
    assert (answer.status_code, answer.json["error"]["code"]) == (500, "internal_error")
    assert "secret inside" not in answer.text
    assert answer.headers["x-request-id"] in answer.json["error"]["message"]
    assert "secret inside" in caplog.text


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("state=maybe", "state"),
        ("page=2", "page"),
    ],
)
def test_a_query_names_the_field(client: FlaskClient, query: str, param: str) -> None:
    answer = client.get(f"/api/jobs?{query}")
    assert (answer.status_code, answer.json["error"]["param"]) == (400, param)


def test_an_event_id_that_is_none(client: FlaskClient) -> None:
    answer = client.get("/api/jobs/j1/stream", headers={"Last-Event-ID": "$"})
    assert (answer.status_code, answer.json["error"]["code"]) == (400, "invalid_request")
