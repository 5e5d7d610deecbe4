"""The jobs API over the wire: idempotency, retries, deadlines, lists."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from stand.worker import MODEL, Worker

NS = "test-jobs-front"
FRONT = {"EXO_JOB_RETENTION_DAYS": "2"}
ASK: dict[str, Any] = {"model": MODEL, "prompt": "Capital of France?"}


def submit(http: httpx.Client, key: str = "", **changes: Any) -> httpx.Response:
    return http.post("/api/jobs", json=ASK | changes, headers={"Idempotency-Key": key} if key else {})


def test_the_same_key_and_request_are_one_job(http: httpx.Client, worker: Worker) -> None:
    with ThreadPoolExecutor(8) as many:
        answers = list(many.map(lambda _: submit(http, "letter-17"), range(16)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len({answer.json()["seed"] for answer in answers}) == 1
    assert len(http.get("/api/jobs").json()["jobs"]) == 1
    job = worker.next_job()
    worker.finish(job)
    assert submit(http, "letter-17").json()["text"] == "Paris"


def test_the_same_key_for_another_request_is_refused(http: httpx.Client) -> None:
    first = submit(http, "letter-17").json()["id"]
    answer = submit(http, "letter-17", prompt="Capital of Italy?")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert first in answer.json()["error"]["message"]
    assert submit(http, "letter-18", prompt="Capital of Italy?").json()["id"] != first


@pytest.mark.parametrize("key", ["two words", "x" * 256, "é"])
def test_what_is_no_key_is_refused(http: httpx.Client, key: str) -> None:
    answer = http.post("/api/jobs", json=ASK, headers={"Idempotency-Key": key.encode()})
    assert answer.status_code == 400
    assert "Idempotency-Key" in answer.json()["error"]["message"]


def test_a_failed_job_is_run_again_under_its_id(http: httpx.Client, worker: Worker) -> None:
    job_id = submit(http).json()["id"]
    assert http.post(f"/api/jobs/{job_id}/retry").status_code == 409
    worker.fail(worker.next_job(), {"message": "no", "type": "server_error", "param": None, "code": "x"})
    again = http.post(f"/api/jobs/{job_id}/retry")
    assert (again.status_code, again.json()["state"], again.json()["error"]) == (202, "queued", None)
    worker.finish(worker.next_job())
    ended = http.get(f"/api/jobs/{job_id}").json()
    assert (ended["state"], ended["attempt"], ended["text"]) == ("succeeded", 2, "Paris")
    refused = http.post(f"/api/jobs/{job_id}/retry")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert http.post("/api/jobs/job-0/retry").status_code == 404


def test_lists_by_state_model_and_ids(http: httpx.Client, worker: Worker) -> None:
    ids = [submit(http).json()["id"] for _ in range(5)]
    http.delete(f"/api/jobs/{ids[2]}")
    listed = lambda **query: [job["id"] for job in http.get("/api/jobs", params=query).json()["jobs"]]  # noqa: E731
    assert listed(state="cancelled") == [ids[2]]
    assert listed(model=MODEL) == ids[::-1]
    assert listed(model="org/other") == []
    assert listed(ids=",".join([ids[4], ids[0], "job-0"])) == [ids[4], ids[0]]
    page = http.get("/api/jobs", params={"limit": 2, "model": MODEL}).json()
    rest = http.get("/api/jobs", params={"limit": 9, "model": MODEL, "cursor": page["next"]}).json()
    assert [job["id"] for job in page["jobs"] + rest["jobs"]] == ids[::-1]
    assert rest["next"] is None


def test_a_record_is_kept_as_long_as_it_is_set(http: httpx.Client, worker: Worker) -> None:
    job_id = submit(http).json()["id"]
    worker.finish(worker.next_job())
    assert 2 * 86_400 - 60 < worker.redis.ttl(f"{NS}:job:{job_id}") <= 2 * 86_400


@pytest.mark.parametrize("seconds", [0, -1, 1e9, "soon"])
def test_what_is_no_deadline_is_refused(http: httpx.Client, seconds: Any) -> None:
    answer = submit(http, deadline_seconds=seconds)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "deadline_seconds")


def test_a_deadline_is_shown(http: httpx.Client) -> None:
    job = submit(http, deadline_seconds=60).json()
    assert job["deadline_at"] == pytest.approx(job["created_at"] + 60)
