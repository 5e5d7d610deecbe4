"""The openai client against a whole cluster: plain, streaming, cut off by a lost node, batches."""

import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import psutil
import pytest
from live import DEMO, Live, eventually

pytestmark = pytest.mark.timeout(300)
PARIS: dict[str, Any] = {
    "model": DEMO,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 16,
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    cluster = Live(tmp_path_factory.mktemp("up"), "--nodes", "2")
    cluster.ready(cluster.place(min_nodes=2))
    yield cluster
    assert cluster.stop() == 0


@pytest.fixture
def judge(live: Live) -> Iterator[openai.OpenAI]:
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


def test_models(judge: openai.OpenAI) -> None:
    assert [model.id for model in judge.models.list()] == [DEMO]
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
    data = "\n".join(json.dumps(line) for line in lines).encode()
    file = judge.files.create(file=("lines.jsonl", data), purpose="batch")
    batch = judge.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    ended = eventually(
        lambda: judge.batches.retrieve(batch.id), lambda one: one.status in ("completed", "failed", "expired"), 120
    )
    assert ended.status == "completed"
    assert ended.output_file_id
    output = [json.loads(line) for line in judge.files.content(ended.output_file_id).text.splitlines()]
    assert sorted(row["custom_id"] for row in output) == [f"line-{n}" for n in range(4)]
    assert {row["response"]["status_code"] for row in output} == {200}


def test_a_node_lost_in_the_middle_of_a_stream_is_an_error_never_a_silent_end(live: Live, judge: openai.OpenAI) -> None:
    story = {"messages": [{"role": "user", "content": "Tell me a very long story."}], "max_tokens": 400}
    stream = judge.chat.completions.create(**PARIS | story, stream=True)
    heard: list[str] = []

    def listen() -> None:
        for chunk in stream:
            heard.extend(choice.delta.content for choice in chunk.choices if choice.delta.content)
            if len(heard) == 3:
                kill_a_runner(live)

    with pytest.raises(openai.APIError):
        listen()
    assert len(heard) >= 3
    [instance] = live.get("/api/instances")["instances"]
    live.ready(instance["id"], instance["epoch"], seconds=120)
    time.sleep(1)
    assert "Paris" in str(judge.chat.completions.create(**PARIS).choices[0].message.content)


def kill_a_runner(live: Live) -> None:
    """Kill the last rank's runner, once."""
    for node in ("node-2", "node-1"):
        children = psutil.Process(live.facts["nodes"][node]["pid"]).children(recursive=True)
        runners = [child for child in children if "exo_celery.runner.main" in child.cmdline()]
        if runners:
            runners[0].kill()
            return
