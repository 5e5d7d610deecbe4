import json
from typing import Any

import pytest
from flask.testing import FlaskClient

from exo_celery.records.job import TokenEvent
from exo_celery.settings import Settings
from web import create_app, waiting

MODEL = "org/known"
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Capital of France?"}]}
REFUSED = {"message": "9000 tokens, 8192 fit", "type": "invalid_request_error", "param": None}
FAILED = {"state": "failed", "finish_reason": "", "usage": {}, "error": REFUSED | {"code": "context_length_exceeded"}}


def frames(text: str) -> list[str]:
    return [part.removeprefix("data: ") for part in text.split("\n\n") if part.startswith("data: ")]


def test_a_chat(client: FlaskClient, fake: Any) -> None:
    answer = client.post("/v1/chat/completions", json=CHAT | {"temperature": 0, "max_tokens": 5, "stop": "\n"})
    assert answer.status_code == 200
    assert answer.json == {
        "id": "chatcmpl-j1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Paris", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }
    (request,) = fake.submitted
    assert (request.priority, request.max_tokens, request.stop) == (0, 5, ("\n",))
    assert fake.cancelled == []


def test_a_streamed_chat(client: FlaskClient, fake: Any) -> None:
    text = client.post("/v1/chat/completions", json=CHAT | {"stream": True}).text
    *chunks, done = frames(text)
    assert done == "[DONE]"
    parsed = [json.loads(chunk) for chunk in chunks]
    assert {(one["id"], one["created"], one["model"], one["object"]) for one in parsed} == {
        ("chatcmpl-j1", 1700000000, MODEL, "chat.completion.chunk")
    }
    assert [one["choices"][0]["delta"] for one in parsed] == [
        {"role": "assistant", "content": ""},
        {"content": "Par"},
        {"content": "is"},
        {},
    ]
    assert [one["choices"][0]["finish_reason"] for one in parsed] == [None, None, None, "stop"]
    assert all("usage" not in one for one in parsed)
    assert ": keep-alive\n\n" in text
    assert fake.cancelled == []


def test_how_tokens_are_chosen_reaches_the_job(client: FlaskClient, fake: Any) -> None:
    chosen = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "frequency_penalty": 0.5, "presence_penalty": -1}
    chosen |= {"repetition_penalty": 1.1, "logit_bias": {"50256": -100}}
    assert client.post("/v1/chat/completions", json=CHAT | chosen).status_code == 200
    assert client.post("/v1/completions", json={"model": MODEL, "prompt": "The"} | chosen).status_code == 200
    assert [{name: getattr(asked, name) for name in chosen} for asked in fake.submitted] == [chosen, chosen]


def test_usage_in_a_stream(client: FlaskClient) -> None:
    body = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last, _ = frames(client.post("/v1/chat/completions", json=body).text)
    assert all(json.loads(chunk)["usage"] is None for chunk in chunks)
    assert json.loads(last)["choices"] == []
    assert json.loads(last)["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def test_completions(client: FlaskClient, fake: Any) -> None:
    whole = client.post("/v1/completions", json={"model": MODEL, "prompt": ["The capital"]}).json
    assert (whole["object"], whole["choices"][0]["text"]) == ("text_completion", "Paris")
    text = client.post("/v1/completions", json={"model": MODEL, "prompt": "The", "stream": True}).text
    *chunks, done = frames(text)
    assert done == "[DONE]"
    assert [json.loads(chunk)["choices"][0]["text"] for chunk in chunks] == ["Par", "is", ""]
    assert {json.loads(chunk)["object"] for chunk in chunks} == {"text_completion"}
    assert [request.prompt for request in fake.submitted] == ["The capital", "The"]
    assert fake.submitted[0].max_tokens == 16


def test_text_parts_and_developers(client: FlaskClient, fake: Any) -> None:
    parts = [{"type": "text", "text": "Capital"}, {"type": "text", "text": "of France?"}]
    turns = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    assert client.post("/v1/chat/completions", json=CHAT | {"messages": turns}).status_code == 200
    sent = [(turn.role, turn.content) for turn in fake.submitted[0].messages]
    assert sent == [("system", "Be brief."), ("user", "Capital\nof France?")]


def test_neutral_values_and_an_echoed_turn_are_accepted(client: FlaskClient) -> None:
    neutral = {"n": 1, "logprobs": False, "frequency_penalty": 0.0, "tools": [], "response_format": {"type": "text"}}
    also = {"user": "u", "metadata": {}, "store": False, "temperature": None, "stop": None, "logit_bias": None}
    echoed = {"role": "assistant", "content": "Paris", "refusal": None, "annotations": [], "tool_calls": None}
    turns = [*CHAT["messages"], echoed, {"role": "user", "content": "Sure?"}]
    answer = client.post("/v1/chat/completions", json=CHAT | neutral | also | {"messages": turns})
    assert answer.status_code == 200, answer.text


CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
CALLS: list[Any] = [
    {"id": f"call{n}", "type": "function", "function": {"name": "clock", "arguments": "{}"}} for n in (1, 2)
]


def test_functions_and_their_results_reach_the_job(client: FlaskClient, fake: Any) -> None:
    asked = {"role": "assistant", "content": None, "tool_calls": [{"index": 0} | CALLS[0]]}  # as some clients echo it
    result = {"role": "tool", "tool_call_id": "call1", "content": "12:00"}
    body = CHAT | {"messages": [*CHAT["messages"], asked, result], "tools": [CLOCK]}
    assert client.post("/v1/chat/completions", json=body | {"parallel_tool_calls": False}).status_code == 200
    assert client.post("/v1/chat/completions", json=body | {"tool_choice": "none"}).status_code == 200
    shown, hidden = fake.submitted
    assert [tool.function.name for tool in shown.tools] == ["clock"]
    assert (shown.parallel_tool_calls, shown.messages[1].tool_calls[0].id) == (False, "call1")
    assert (shown.messages[2].role, shown.messages[2].tool_call_id) == ("tool", "call1")
    assert hidden.tools is None


def test_an_answer_that_calls_functions(client: FlaskClient, fake: Any) -> None:
    fake.ended = {"text": "", "tool_calls": CALLS, "finish_reason": "tool_calls"}
    choice = client.post("/v1/chat/completions", json=CHAT | {"tools": [CLOCK]}).json["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": None, "tool_calls": CALLS}
    fake.ended["text"] = "I look at the clock."
    message = client.post("/v1/chat/completions", json=CHAT | {"tools": [CLOCK]}).json["choices"][0]["message"]
    assert (message["content"], message["tool_calls"]) == ("I look at the clock.", CALLS)
    assert client.get("/jobs/j1").text.count("<code>clock({})</code>") == 2


def test_streamed_calls_have_their_place(client: FlaskClient, fake: Any) -> None:
    end = fake.events[-1].data | {"finish_reason": "tool_calls"}
    fake.events = [
        TokenEvent(id="1-1", kind="attempt"),
        TokenEvent(id="1-2", kind="delta", text="I look.", data={"tool_calls": CALLS[:1]}),
        TokenEvent(id="1-3", kind="delta", data={"tool_calls": CALLS[1:]}),
        TokenEvent(id="1-4", kind="end", data=end),
    ]
    *chunks, _ = frames(client.post("/v1/chat/completions", json=CHAT | {"stream": True, "tools": [CLOCK]}).text)
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"content": "I look.", "tool_calls": [{"index": 0} | CALLS[0]]},
        {"tool_calls": [{"index": 1} | CALLS[1]]},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "tool_calls"]
    told = client.get("/api/jobs/j1/stream").text
    assert json.loads(told.split("data: ")[3].partition("\n")[0])["tool_calls"] == CALLS[1:]


LIKELY: list[Any] = [
    {"token_id": 5, "token": "Par", "logprob": -0.5, "top": [{"token_id": 5, "token": "Par", "logprob": -0.5}]},
    {"token_id": 6, "token": "\ufffd", "logprob": -1.5, "top": []},
]
SHOWN: list[Any] = [
    {
        "token": "Par",
        "logprob": -0.5,
        "bytes": [80, 97, 114],
        "top_logprobs": [{"token": "Par", "logprob": -0.5, "bytes": [80, 97, 114]}],
    },
    {"token": "\ufffd", "logprob": -1.5, "bytes": None, "top_logprobs": []},
]


def test_how_likely_the_tokens_of_a_chat_were(client: FlaskClient, fake: Any) -> None:
    fake.ended = {"logprobs": LIKELY}
    fake.events[1:4] = [
        TokenEvent(id=f"1-{n}", kind="delta", text=text, data={"logprobs": [one]})
        for n, (text, one) in enumerate(zip(["Paris", ""], LIKELY, strict=True), 2)
    ]
    whole = client.post("/v1/chat/completions", json=CHAT | {"logprobs": True, "top_logprobs": 1}).json
    assert whole["choices"][0]["logprobs"] == {"content": SHOWN, "refusal": None}
    *chunks, _ = frames(client.post("/v1/chat/completions", json=CHAT | {"logprobs": True, "stream": True}).text)
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert [choice["logprobs"] and choice["logprobs"]["content"] for choice in choices] == [
        None,
        [SHOWN[0]],
        [SHOWN[1]],
        None,
    ]
    assert [request.logprobs for request in fake.submitted] == [1, 0]


def test_how_likely_the_tokens_of_a_completion_were(client: FlaskClient, fake: Any) -> None:
    fake.ended = {"logprobs": LIKELY}
    fake.events[1:4] = [
        TokenEvent(id=f"1-{n}", kind="delta", text="x", data={"logprobs": [one]}) for n, one in enumerate(LIKELY, 2)
    ]
    body = {"model": MODEL, "prompt": "The", "logprobs": 1}
    expected = {
        "tokens": ["Par", "\ufffd"],
        "token_logprobs": [-0.5, -1.5],
        "top_logprobs": [{"Par": -0.5}, {}],
        "text_offset": [0, 3],
    }
    assert client.post("/v1/completions", json=body).json["choices"][0]["logprobs"] == expected
    *chunks, _ = frames(client.post("/v1/completions", json=body | {"stream": True}).text)
    told = [json.loads(chunk)["choices"][0]["logprobs"] for chunk in chunks]
    assert [one["text_offset"] for one in told if one] == [[0], [3]]
    assert [name for one in told if one for name in one["tokens"]] == expected["tokens"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_refusal_has_its_status_also_when_streaming(client: FlaskClient, fake: Any, path: str, stream: bool) -> None:
    fake.events = [None, TokenEvent(id="1-1", kind="attempt"), TokenEvent(id="1-2", kind="end", data=FAILED)]
    asked = CHAT if "chat" in path else {"model": MODEL, "prompt": "long"}
    answer = client.post(path, json=asked | {"stream": stream})
    assert (answer.status_code, answer.json["error"]["code"]) == (400, "context_length_exceeded")
    assert fake.cancelled == []


def test_a_failure_in_mid_stream_is_an_error_event_and_no_end(client: FlaskClient, fake: Any) -> None:
    fake.events[-1] = TokenEvent(
        id="1-4", kind="end", data=FAILED | {"error": {"message": "all 3 attempts failed", "code": "x"}}
    )
    *_, last = frames(client.post("/v1/chat/completions", json=CHAT | {"stream": True}).text)
    assert json.loads(last)["error"]["message"] == "all 3 attempts failed"


def test_a_new_attempt_after_text_ends_the_stream_and_the_job(client: FlaskClient, fake: Any) -> None:
    fake.events[-1:] = [TokenEvent(id="2-1", kind="attempt"), TokenEvent(id="2-2", kind="delta", text="Par")]
    answer = client.post("/v1/chat/completions", json=CHAT | {"stream": True})
    *_, last = frames(answer.text)
    answer.close()
    assert json.loads(last)["error"]["code"] == "runner_failed"
    assert fake.cancelled == ["j1"]


def test_a_new_attempt_does_not_disturb_a_whole_answer(client: FlaskClient, fake: Any) -> None:
    fake.events[2:2] = [TokenEvent(id="2-1", kind="attempt")]
    assert client.post("/v1/chat/completions", json=CHAT).status_code == 200


def test_a_client_that_leaves_takes_its_job_along(client: FlaskClient, fake: Any) -> None:
    answer = client.post("/v1/chat/completions", json=CHAT | {"stream": True}, buffered=False)
    next(answer.iter_encoded())
    answer.close()
    assert fake.cancelled == ["j1"]


def test_a_job_that_somebody_cancelled(client: FlaskClient, fake: Any) -> None:
    fake.events = [TokenEvent(id="0-1", kind="end", data=FAILED | {"state": "cancelled", "error": None})]
    answer = client.post("/v1/chat/completions", json=CHAT)
    assert (answer.status_code, answer.json["error"]["code"]) == (410, "job_cancelled")


def test_a_long_wait_gets_its_status_line_and_keep_alives(
    client: FlaskClient, fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "HOLD_SECONDS", 0.0)
    fake.events = [None, None, TokenEvent(id="1-2", kind="end", data=FAILED)]
    answer = client.post("/v1/chat/completions", json=CHAT | {"stream": True})
    assert answer.status_code == 200
    assert answer.text.count(": keep-alive") == 2
    assert json.loads(frames(answer.text)[-1])["error"]["code"] == "context_length_exceeded"


def test_an_unknown_model(client: FlaskClient, fake: Any) -> None:
    for model in ("no/such", "gpt-4o"):
        answer = client.post("/v1/chat/completions", json=CHAT | {"model": model})
        error = answer.json["error"]
        assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert fake.submitted == []


def test_a_model_that_is_not_up_yet(client: FlaskClient, fake: Any) -> None:
    fake.state = "loading"
    answer = client.post("/v1/chat/completions", json=CHAT)
    assert (answer.status_code, answer.json["error"]["code"]) == (503, "model_loading")
    assert int(answer.headers["Retry-After"]) >= 1
    assert answer.json["loading"]["model"] == MODEL
    assert fake.submitted == []


def test_a_model_that_nobody_may_place(fake: Any) -> None:
    fake.state = "absent"
    client = create_app(Settings(auto_place=False)).test_client()
    answer = client.post("/v1/chat/completions", json=CHAT)
    assert (answer.status_code, answer.json["error"]["code"]) == (404, "model_not_found")
    assert "EXO_AUTO_PLACE" in answer.json["error"]["message"]


@pytest.mark.parametrize("model", ["org/known", "org%2Fknown"])
def test_models(client: FlaskClient, model: str) -> None:
    listed = client.get("/v1/models").json
    assert listed == {
        "object": "list",
        "data": [{"id": MODEL, "object": "model", "created": 12, "owned_by": "org"}],
    }
    assert client.get(f"/v1/models/{model}").json == listed["data"][0]
    missing = client.get("/v1/models/no/such")
    assert (missing.status_code, missing.json["error"]["code"]) == (404, "model_not_found")


def test_a_model_that_nobody_has_placed_is_placed(client: FlaskClient, fake: Any) -> None:
    fake.state = "absent"
    answer = client.post("/v1/chat/completions", json=CHAT)
    assert (answer.status_code, answer.json["error"]["code"]) == (503, "model_loading")
    assert fake.worked_for == [MODEL]
    fake.failed = "three rings failed in a row"
    answer = client.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 404
    assert "three rings failed" in answer.json["error"]["message"]


def test_who_waits_is_told_for_what(client: FlaskClient, fake: Any) -> None:
    fake.state, fake.said = "loading", "waits for the memory of inst-7"
    answer = client.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 503
    assert "(waits for the memory of inst-7)" in answer.json["error"]["message"]
    assert answer.json["loading"]["note"] == fake.said


def test_a_model_that_fits_nowhere(client: FlaskClient, fake: Any) -> None:
    fake.state, fake.fits = "absent", False
    answer = client.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 404
    assert "1 is alive" in answer.json["error"]["message"]
