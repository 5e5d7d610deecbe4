"""Batches as people run them: the openai client, a real small cluster, and a node worker killed in the middle.

One cluster serves the whole module, in order.
"""

import io
import json
import signal
from collections.abc import Iterator
from typing import Any

import openai
import psutil
import pytest
from live import DEMO, Live, eventually
from openai.types import Batch

pytestmark = pytest.mark.timeout(300)
CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    cluster = Live(tmp_path_factory.mktemp("up"), EXO_SERVE_SLOTS="6")
    cluster.ready(cluster.place())
    yield cluster
    assert cluster.stop() == 0


@pytest.fixture(scope="module")
def judge(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client


def request(custom_id: str, max_tokens: int = 4) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"What comes after {custom_id}?"}]
    body = {"model": DEMO, "messages": messages, "max_tokens": max_tokens}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def started(judge: openai.OpenAI, rows: list[dict[str, Any]], **facts: Any) -> Batch:
    text = "\r\n".join(json.dumps(row) for row in rows)
    file = judge.files.create(file=("in.jsonl", io.BytesIO(text.encode())), purpose="batch")
    return judge.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h", **facts)


def counts(batch: Batch) -> tuple[int, int, int]:
    assert batch.request_counts
    return batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed


def ended(judge: openai.OpenAI, batch: Batch, seconds: float = 120) -> Batch:
    """Wait for the end; counts must never go down on the way."""
    seen = [(0, 0, 0)]

    def look() -> Batch:
        now = judge.batches.retrieve(batch.id)
        assert all(new >= old for new, old in zip(counts(now), seen[-1], strict=True))
        seen.append(counts(now))
        return now

    return eventually(look, lambda now: now.status in ENDED, seconds)


def lines(judge: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(line) for line in judge.files.content(file_id).text.splitlines()]


def test_a_batch_from_upload_to_files(judge: openai.OpenAI) -> None:
    rows = [request(f"n-{n}") for n in range(20)]
    rows[7]["body"]["messages"][0]["content"] = "word " * 9000
    rows[9]["body"]["stream"] = True
    batch = started(judge, rows, metadata={"name": "first"})
    assert (batch.object, batch.endpoint, batch.metadata) == ("batch", CHAT, {"name": "first"})
    assert batch.status in ("validating", "in_progress")
    done = ended(judge, batch)
    assert (done.status, counts(done), done.errors) == ("completed", (20, 18, 2), None)
    assert done.usage
    assert done.usage.output_tokens > 18
    good, bad = lines(judge, done.output_file_id), lines(judge, done.error_file_id)
    assert [row["custom_id"] for row in good] == [f"n-{n}" for n in range(20) if n not in (7, 9)]
    for row in good:
        assert (row["error"], row["response"]["status_code"]) == (None, 200)
        assert row["response"]["body"]["object"] == "chat.completion"
        assert row["response"]["body"]["usage"]["completion_tokens"] <= 4
    assert [row["custom_id"] for row in bad] == ["n-7", "n-9"]
    assert [(row["error"], row["response"]["status_code"]) for row in bad] == [(None, 400)] * 2
    refusals = [row["response"]["body"]["error"] for row in bad]
    assert [(one["code"], one["param"]) for one in refusals] == [
        ("context_length_exceeded", "messages"),
        ("invalid_request", "stream"),
    ]


def test_an_answer_is_that_of_a_plain_request(judge: openai.OpenAI) -> None:
    row = request("same", max_tokens=8)
    plain = judge.chat.completions.create(**row["body"])
    done = ended(judge, started(judge, [row]))
    told = lines(judge, done.output_file_id)[0]["response"]["body"]
    assert told["choices"][0]["message"]["content"] == plain.choices[0].message.content


def test_a_file_with_bad_lines_fails_with_their_numbers(judge: openai.OpenAI) -> None:
    rows = [request("a"), request("b"), request("a"), request("c") | {"url": "/v1/completions"}]
    rows[1]["method"] = "GET"
    failed = ended(judge, started(judge, rows))
    assert (failed.status, counts(failed)) == ("failed", (0, 0, 0))
    assert failed.errors
    assert failed.errors.data
    found = [(error.line, error.code, error.param) for error in failed.errors.data]
    assert found == [
        (2, "invalid_method", "method"),
        (3, "duplicate_custom_id", "custom_id"),
        (4, "invalid_url", "url"),
    ]


def test_a_cancel_in_the_middle_keeps_what_was_answered(judge: openai.OpenAI) -> None:
    names = [f"n-{n}" for n in range(60)]
    batch = started(judge, [request(name, max_tokens=16) for name in names])
    eventually(lambda: counts(judge.batches.retrieve(batch.id))[1], lambda completed: completed >= 3, 60)
    assert judge.batches.cancel(batch.id).status == "cancelling"
    done = ended(judge, batch, 30)
    good, bad = lines(judge, done.output_file_id), lines(judge, done.error_file_id)
    assert (done.status, counts(done)) == ("cancelled", (60, len(good), len(bad)))
    assert len(good) >= 3
    assert sorted(row["custom_id"] for row in good + bad) == sorted(names)
    assert {(row["response"], row["error"]["code"]) for row in bad} == {(None, "batch_cancelled")}
    with pytest.raises(openai.ConflictError):
        judge.batches.cancel(batch.id)


def test_a_node_worker_killed_in_the_middle_costs_no_line(live: Live, judge: openai.OpenAI) -> None:
    names = [f"n-{n}" for n in range(16)]
    batch = started(judge, [request(name, max_tokens=8) for name in names])
    eventually(lambda: counts(judge.batches.retrieve(batch.id))[1], lambda completed: completed >= 2, 60)
    ring = live.get("/api/instances")["instances"][0]["ring"]
    psutil.Process(live.facts["nodes"][ring[0]["node"]]["pid"]).send_signal(signal.SIGKILL)
    done = ended(judge, batch, 180)
    good, bad = lines(judge, done.output_file_id), lines(judge, done.error_file_id)
    assert [row["response"] for row in bad] == []
    assert (done.status, counts(done)) == ("completed", (16, 16, 0))
    assert sorted(row["custom_id"] for row in good) == sorted(names)


def test_files_and_batches_as_the_client_lists_them(judge: openai.OpenAI) -> None:
    listed = list(judge.files.list(purpose="batch", limit=2))  # the client turns the pages
    assert len(listed) == 5
    assert len({file.id for file in listed}) == 5
    assert all(file.status == "processed" and file.expires_at for file in listed)
    assert len(list(judge.batches.list(limit=2))) == 5
    with pytest.raises(openai.BadRequestError, match="not the id"):
        judge.files.list(after="file-unknown")


def test_a_file_is_deleted(judge: openai.OpenAI) -> None:
    file = judge.files.create(
        file=("x.jsonl", b"{}\n"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert file.expires_at == file.created_at + 3600
    assert judge.files.content(file.id).read() == b"{}\n"
    assert judge.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        judge.files.retrieve(file.id)
    with pytest.raises(openai.NotFoundError):
        judge.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")


def test_what_is_refused_names_the_field(judge: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="purpose"):
        judge.files.create(file=("x.jsonl", b"{}\n"), purpose="assistants")
    for change in ({"endpoint": "/v1/embeddings"}, {"completion_window": "soon"}, {"metadata": {"k": "v" * 600}}):
        asked: Any = {"input_file_id": "file-1", "endpoint": CHAT, "completion_window": "24h"} | change
        with pytest.raises(openai.BadRequestError, match=next(iter(change))):
            judge.batches.create(**asked)
