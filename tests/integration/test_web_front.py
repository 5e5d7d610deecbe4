"""The front over the wire: a real Redis, and the openai client as the judge."""

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import openai
import pytest
from stand.front import eventually, meanwhile, served
from stand.worker import MODEL, Worker

from exo_celery.records.instance import InstanceStatus
from exo_celery.records.job import JobState
from exo_celery.store import instances

NS = "test-web-front"
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Capital of France?"}]}
TOO_LONG = {"message": "9000 tokens", "type": "invalid_request_error", "param": "messages"}


@pytest.fixture
def judge(front: str, worker: Worker) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{front}/v1", api_key="none", max_retries=0, timeout=15) as client:
        yield client


def test_the_judge_gets_a_chat(judge: openai.OpenAI, worker: Worker) -> None:
    def work() -> None:
        job = worker.next_job()
        assert (job.priority, job.request.temperature) == (0, 0.5)
        worker.say(job, "Par", "is")
        worker.finish(job)

    with meanwhile(work):
        answer = judge.chat.completions.create(**CHAT, temperature=0.5)
    assert answer.choices[0].message.content == "Paris"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage
    assert answer.usage.total_tokens == 5


def test_the_judge_gets_a_stream_word_by_word(judge: openai.OpenAI, worker: Worker) -> None:
    heard, said = threading.Event(), []

    def work() -> None:
        job = worker.next_job()
        worker.say(job, "Par")
        assert heard.wait(10), "the first word did not arrive before the second was written"
        worker.say(job, "is", first=2)
        worker.finish(job)

    with meanwhile(work):
        stream = judge.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
        for chunk in stream:
            said += [choice.delta.content for choice in chunk.choices if choice.delta.content]
            if said:
                heard.set()
    assert said == ["Par", "is"]
    assert chunk.usage
    assert chunk.usage.completion_tokens == 2


def test_the_judge_gets_a_completion_and_the_models(judge: openai.OpenAI, worker: Worker) -> None:
    def work() -> None:
        worker.finish(worker.next_job(), "Paris.")

    with meanwhile(work):
        answer = judge.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=4)
    assert answer.choices[0].text == "Paris."
    assert [model.id for model in judge.models.list()] == [MODEL]
    assert judge.models.retrieve(MODEL).owned_by == "org"


@pytest.mark.parametrize("stream", [False, True])
def test_the_judge_is_told_that_a_prompt_is_too_long(judge: openai.OpenAI, worker: Worker, stream: bool) -> None:
    def work() -> None:
        worker.fail(worker.next_job(), TOO_LONG | {"code": "context_length_exceeded"})

    with meanwhile(work), pytest.raises(openai.BadRequestError) as refused:
        judge.chat.completions.create(**CHAT, stream=stream)
    assert refused.value.code == "context_length_exceeded"


def test_the_judge_does_not_take_a_lost_ring_for_an_answer(judge: openai.OpenAI, worker: Worker) -> None:
    def work() -> None:
        job = worker.next_job()
        worker.say(job, "Par")
        worker.fail(job, {"message": "all attempts failed", "type": "server_error", "code": "attempts_exhausted"})

    with meanwhile(work), pytest.raises(openai.APIError, match="all attempts failed"):
        for _ in judge.chat.completions.create(**CHAT, stream=True):
            pass


def test_the_judge_knows_errors_by_their_class(judge: openai.OpenAI, worker: Worker) -> None:
    with pytest.raises(openai.NotFoundError, match=MODEL):
        judge.chat.completions.create(model="no/such", messages=CHAT["messages"])
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        judge.chat.completions.create(**CHAT, max_tokens=0)
    loading = worker.instance().evolve(status=InstanceStatus.LOADING, version=1)
    instances.save(worker.redis, worker.ns, loading)
    with pytest.raises(openai.InternalServerError) as later:
        judge.chat.completions.create(**CHAT)
    assert later.value.code == "model_loading"
    assert later.value.response.headers["Retry-After"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_takes_its_job_along(http: httpx.Client, worker: Worker, stream: bool) -> None:
    request = http.build_request("POST", "/v1/chat/completions", json=CHAT | {"stream": stream})
    host, port = httpx.URL(http.base_url).host, httpx.URL(http.base_url).port
    with socket.create_connection((host, port)) as connection:
        head = f"POST {request.url.path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        body = request.read()
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        job = worker.next_job()
        if stream:
            worker.say(job, "Par")
            assert b"200 OK" in connection.recv(1000)
    # Nothing more is written: the front finds out by itself, within one turn of its wait for events.
    assert eventually(lambda: worker.state(job) is JobState.CANCELLED)


def test_a_job_of_the_jobs_api_outlives_its_client_and_its_stream_resumes(http: httpx.Client, worker: Worker) -> None:
    submitted = http.post("/api/jobs", json={"model": MODEL, "prompt": "Once"})
    assert submitted.status_code == 202
    url = f"/api/jobs/{submitted.json()['id']}"
    job = worker.next_job()
    worker.say(job, "upon ", "a ")
    with http.stream("GET", f"{url}/stream") as stream:
        lines = stream.iter_lines()
        seen = [next(line for line in lines if line.startswith("id: ")) for _ in range(2)]
    worker.say(job, "time", first=3)
    worker.finish(job, "upon a time")
    resumed = http.get(f"{url}/stream", headers={"Last-Event-ID": seen[-1].removeprefix("id: ")}).text
    words = [json.loads(data)["text"] for data in re.findall(r"event: delta\ndata: (.*)", resumed)]
    assert words == ["a ", "time"]
    assert "event: end" in resumed
    shown = http.get(url).json()
    assert (shown["state"], shown["text"], shown["attempt"], shown["ring"]) == (
        "succeeded",
        "upon a time",
        1,
        ["node-1"],
    )
    assert [one["id"] for one in http.get("/api/jobs?state=succeeded").json()["jobs"]] == [job.id]


def test_cancelling_a_job_ends_its_stream(http: httpx.Client, worker: Worker) -> None:
    url = f"/api/jobs/{http.post('/api/jobs', json={'model': MODEL, 'prompt': 'Once'}).json()['id']}"
    assert http.delete(url).json()["state"] == "cancelled"
    assert '"state":"cancelled"' in http.get(f"{url}/stream").text


def test_what_is_refused_reaches_no_queue(http: httpx.Client, worker: Worker) -> None:
    for body in ({"model": MODEL, "prompt": ""}, {"model": "no/such", "prompt": "x"}, {"prompt": "x"}):
        assert http.post("/api/jobs", json=body).status_code in (400, 404)
    assert http.get("/api/jobs").json() == {"jobs": [], "next": None}


def test_open_streams_starve_nobody(http: httpx.Client, worker: Worker) -> None:
    url = f"/api/jobs/{http.post('/api/jobs', json={'model': MODEL, 'prompt': 'Once'}).json()['id']}/stream"
    worker.say(worker.next_job(), "upon")
    with ExitStack() as open_streams:
        for _ in range(40):
            client = open_streams.enter_context(httpx.Client(base_url=http.base_url, timeout=15))
            stream = open_streams.enter_context(client.stream("GET", url))
            assert next(stream.iter_lines()).startswith("id: ")
        began = time.monotonic()
        assert http.get("/api/nodes").json()["nodes"][0]["alive"]
        assert time.monotonic() - began < 2


def test_a_rebound_name_and_a_proxy_are_refused_over_the_wire(http: httpx.Client) -> None:
    for headers in ({"Host": "evil.example"}, {"X-Forwarded-For": "10.0.0.1"}, {"Forwarded": "for=10.0.0.1"}):
        answer = http.get("/api/nodes", headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "access_denied")
    written = http.post("/api/jobs", json={"model": MODEL, "prompt": "x"}, headers={"Origin": "http://evil.example"})
    assert written.status_code == 403


def test_without_redis_the_front_lives_and_says_so(namespace: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        away = f"redis://127.0.0.1:{unused.getsockname()[1]}/0"
        with served(EXO_REDIS_URL=away, EXO_NAMESPACE=namespace) as address:
            assert httpx.get(f"{address}/healthz", timeout=15).status_code == 200
            ready = httpx.get(f"{address}/readyz", timeout=15)
            assert (ready.status_code, ready.json()["ready"]) == (503, False)
            answer = httpx.get(f"{address}/api/nodes", timeout=15)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
            assert away not in answer.text
