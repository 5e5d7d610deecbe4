"""The openai client against a whole cluster: plain, streaming, cut off by a lost node, batches."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from judged import SPEAKS, Judged
from live import DEMO, eventually
from scripted import ANSWERING, PLAIN, WEATHER

pytestmark = pytest.mark.timeout(300)
PARIS: dict[str, Any] = {
    "model": DEMO,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 16,
}


@pytest.fixture
def judge(live: Judged) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=90) as client:
        yield client


def test_a_chat(judge: openai.OpenAI) -> None:
    answer = judge.chat.completions.create(**PARIS)
    assert "Paris" in str(answer.choices[0].message.content)
    assert answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_says_what_the_whole_answer_says(judge: openai.OpenAI) -> None:
    whole = judge.chat.completions.create(**PARIS).choices[0]
    chunks = list(judge.chat.completions.create(**PARIS, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.message.content
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == whole.finish_reason
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens > 0


def test_a_completion(judge: openai.OpenAI) -> None:
    answer = judge.completions.create(model=DEMO, prompt="Paris is the capital of", max_tokens=8)
    assert answer.choices[0].text


def test_how_likely_tokens_were_and_how_to_change_it(judge: openai.OpenAI) -> None:
    asked = PARIS | {"max_tokens": 4, "logprobs": True, "top_logprobs": 2}
    choice = judge.chat.completions.create(**asked).choices[0]
    assert choice.logprobs
    assert choice.logprobs.content
    assert "".join(one.token for one in choice.logprobs.content) == choice.message.content
    assert all(one.top_logprobs[0].token == one.token and one.logprob <= 0 for one in choice.logprobs.content)
    streamed = [choice for chunk in judge.chat.completions.create(**asked, stream=True) for choice in chunk.choices]
    parts = [one for choice in streamed if choice.logprobs for one in choice.logprobs.content or []]
    assert [one.token for one in parts] == [one.token for one in choice.logprobs.content]
    text = judge.completions.create(model=DEMO, prompt="Paris is", max_tokens=3, logprobs=1).choices[0]
    assert text.logprobs
    assert text.logprobs.tokens
    assert "".join(text.logprobs.tokens) == text.text
    biased = judge.completions.create(model=DEMO, prompt="Paris is", max_tokens=3, logit_bias={"300": 100}, logprobs=0)
    assert biased.choices[0].logprobs
    assert len(set(biased.choices[0].logprobs.tokens or [])) == 1


def test_models(judge: openai.OpenAI) -> None:
    assert {model.id for model in judge.models.list()} == {DEMO, SPEAKS}
    assert judge.models.retrieve(DEMO).id == DEMO


def test_refusals_have_their_class(judge: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        judge.chat.completions.create(**PARIS | {"model": "org/none"})
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as wrong:
        judge.chat.completions.create(**PARIS | {"temperature": 9})
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        judge.chat.completions.create(**PARIS | {"messages": [{"role": "user", "content": "word " * 9000}]})
    assert long.value.code == "context_length_exceeded"


def test_a_batch_of_a_few_lines(judge: openai.OpenAI) -> None:
    lines = [
        {"custom_id": f"line-{n}", "method": "POST", "url": "/v1/chat/completions", "body": PARIS | {"max_tokens": 4}}
        for n in range(4)
    ]
    good, bad = ended(judge, lines)
    assert sorted(row["custom_id"] for row in good) == [f"line-{n}" for n in range(4)]
    assert {row["response"]["status_code"] for row in good} == {200}
    assert bad == []


def test_functions(judge: openai.OpenAI) -> None:
    asked: list[Any] = [{"role": "user", "content": "How is the weather in Paris?"}]
    weather: dict[str, Any] = {"model": SPEAKS, "tools": [WEATHER], "max_tokens": 100}
    choice = judge.chat.completions.create(messages=asked, **weather).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    assert choice.message.tool_calls
    [call] = choice.message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    result: dict[str, Any] = {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21"}
    answer = judge.chat.completions.create(messages=[*asked, choice.message, result], **weather).choices[0]
    assert (answer.finish_reason, answer.message.content) == ("stop", ANSWERING)
    silent = judge.chat.completions.create(messages=asked, tool_choice="none", **weather).choices[0]
    assert (silent.message.tool_calls, silent.message.content) == (None, PLAIN)
    with pytest.raises(openai.BadRequestError) as refused:
        judge.chat.completions.create(messages=asked, **weather | {"model": DEMO})
    assert refused.value.param == "tools"


def test_streamed_functions(judge: openai.OpenAI) -> None:
    asked: list[Any] = [{"role": "user", "content": "How is the weather in Paris?"}]
    with judge.chat.completions.stream(model=SPEAKS, messages=asked, tools=[WEATHER], max_tokens=100) as stream:
        kinds = [event.type for event in stream]
        choice = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.done" in kinds
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    assert choice.message.tool_calls
    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [{"city": "Paris"}]


def test_jobs_and_batches_call_functions_too(live: Judged, judge: openai.OpenAI) -> None:
    body = {"model": SPEAKS, "messages": [{"role": "user", "content": "The weather?"}], "tools": [WEATHER]}
    job = live.ask(**body, max_tokens=100)
    assert (job["finish_reason"], job["text"]) == ("tool_calls", "I look.")
    assert [call["function"]["name"] for call in job["tool_calls"]] == ["get_weather"]
    refused = live.ask(**body | {"model": DEMO})
    assert (refused["state"], refused["error"]["param"]) == ("failed", "tools")
    lines = [
        {"custom_id": model, "method": "POST", "url": "/v1/chat/completions", "body": body | {"model": model}}
        for model in (SPEAKS, DEMO)
    ]
    good, bad = ended(judge, lines)
    [message] = [row["response"]["body"]["choices"][0]["message"] for row in good]
    assert message["tool_calls"][0]["function"]["arguments"] == '{"city": "Paris"}'
    assert [row["response"]["body"]["error"]["param"] for row in bad] == ["tools"]


def ended(judge: openai.OpenAI, lines: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    """Run a batch and return what stands in its output file and in its error file."""
    data = "\n".join(json.dumps(line) for line in lines).encode()
    file = judge.files.create(file=("lines.jsonl", data), purpose="batch")
    batch = judge.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    over = eventually(
        lambda: judge.batches.retrieve(batch.id), lambda one: one.status in ("completed", "failed", "expired"), 120
    )
    assert over.status == "completed", over
    texts = [judge.files.content(id).text if id else "" for id in (over.output_file_id, over.error_file_id)]
    good, bad = ([json.loads(line) for line in text.splitlines()] for text in texts)
    return good, bad


def test_a_node_lost_in_the_middle_of_a_stream_is_an_error_never_a_silent_end(
    live: Judged, judge: openai.OpenAI
) -> None:
    story = {"messages": [{"role": "user", "content": "Tell me a very long story."}], "max_tokens": 400}
    stream = judge.chat.completions.create(**PARIS | story, stream=True)
    heard: list[str] = []
    epochs: list[int] = []

    def listen() -> None:
        for chunk in stream:
            heard.extend(choice.delta.content for choice in chunk.choices if choice.delta.content)
            if len(heard) == 3:
                epochs.append(live.lose_a_node())

    with pytest.raises(openai.APIError):
        listen()
    assert len(heard) >= 3
    live.found_again(epochs[0])
    assert "Paris" in str(judge.chat.completions.create(**PARIS).choices[0].message.content)
