import json
from typing import Any

import pytest
from flask.testing import FlaskClient

MODEL = "org/known"


def test_submitting_a_job(client: FlaskClient, fake: Any) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stop": ["\n"], "temperature": 1}
    answer = client.post("/api/jobs", json=body)
    assert answer.status_code == 202
    assert answer.headers["Location"] == "/api/jobs/j1"
    assert answer.json["id"] == "j1"
    (request,) = fake.submitted
    assert (request.stop, request.temperature, request.max_tokens, request.priority) == (("\n",), 1.0, 256, 5)


def test_a_job_shows_its_result_and_not_its_prompt(client: FlaskClient) -> None:
    shown = client.get("/api/jobs/j1").json
    assert shown["text"] == "Paris"
    assert shown["usage"]["total_tokens"] == 5
    assert {"state", "attempt", "ring", "error"} <= set(shown)
    assert "request" not in shown


def test_listing_jobs(client: FlaskClient, fake: Any) -> None:
    listed = client.get("/api/jobs?state=succeeded&limit=7&cursor=c").json
    assert [job["id"] for job in listed["jobs"]] == ["j1"]
    assert listed["next"] == "cursor-2"
    assert (fake.listed.state, fake.listed.limit, fake.listed.cursor) == ("succeeded", 7, "c")


def test_cancelling_a_job(client: FlaskClient, fake: Any) -> None:
    assert client.delete("/api/jobs/j1").json["state"] == "cancelled"
    assert fake.cancelled == ["j1"]


def test_the_stream_of_a_job(client: FlaskClient) -> None:
    answer = client.get("/api/jobs/j1/stream")
    assert answer.mimetype == "text/event-stream"
    frames = answer.text.split("\n\n")
    assert frames[0] == 'id: 1-1\nevent: attempt\ndata: {"attempt":1}'
    assert frames[1] == 'id: 1-2\nevent: delta\ndata: {"attempt":1,"text":"Par"}'
    assert frames[2] == ": keep-alive"
    assert frames[4].startswith("id: 1-4\nevent: end\n")
    assert json.loads(frames[4].partition("data: ")[2])["state"] == "succeeded"


def test_a_stream_resumes_after_the_last_event_seen(client: FlaskClient) -> None:
    text = client.get("/api/jobs/j1/stream", headers={"Last-Event-ID": "1-3"}).text
    assert text.startswith("id: 1-4\n")


def test_what_happened(client: FlaskClient) -> None:
    [event] = client.get("/api/events?limit=1").json["events"]
    assert (event["kind"], event["text"], event["at"]) == ("unload", "i0 makes room", 1700000000.0)
    assert client.get("/api/events?limit=0").status_code == 400


@pytest.mark.parametrize("path", ["/api/jobs/none", "/api/jobs/none/stream", "/api/instances/none"])
def test_what_does_not_exist(client: FlaskClient, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.json["error"]["code"]) == (404, "not_found")


def test_an_unknown_model_lists_what_is_known(client: FlaskClient, fake: Any) -> None:
    for path in ("/api/jobs", "/api/instances"):
        answer = client.post(path, json={"model": "no/such"} | ({"prompt": "x"} if path == "/api/jobs" else {}))
        assert (answer.status_code, answer.json["error"]["code"]) == (404, "model_not_found")
        assert MODEL in answer.json["error"]["message"]
    assert fake.submitted == []


@pytest.mark.parametrize("path", ["nodes", "downloads", "models", "instances", "jobs"])
def test_lists_have_their_plural(client: FlaskClient, path: str) -> None:
    assert len(client.get(f"/api/{path}").json[path]) == 1


@pytest.mark.parametrize("model", ["org/known", "org%2Fknown"])
def test_downloads(client: FlaskClient, fake: Any, model: str) -> None:
    assert client.post("/api/downloads", json={"node": "node-1", "model": MODEL}).status_code == 202
    cancelled = client.post(f"/api/downloads/node-1/{model}/cancel")
    assert (cancelled.status_code, cancelled.json["downloaded_bytes"]) == (202, 5)
    assert client.delete(f"/api/downloads/node-1/{model}").status_code == 202
    assert fake.wishes == [(act, "node-1", MODEL) for act in ("download", "cancel", "delete")]


@pytest.mark.parametrize("path", ["node-1/..%2F..%2Fetc", "node-1/onlyname", "no.de/org/known", "node-1/a--b/c"])
def test_ids_that_are_none_reach_nothing(client: FlaskClient, fake: Any, path: str) -> None:
    assert client.delete(f"/api/downloads/{path}").status_code == 404
    assert fake.wishes == []


def test_placing_a_model(client: FlaskClient) -> None:
    answer = client.post("/api/instances", json={"model": MODEL, "required_nodes": ["node-1"]})
    placed = {"id": "i1", "status": "placing"}
    assert (answer.status_code, answer.json) == (202, placed | {"replicas": [placed]})


def test_replicas_are_all_told(client: FlaskClient) -> None:
    answer = client.post("/api/instances", json={"model": MODEL, "replicas": 2, "keep_alive": 600})
    assert [one["id"] for one in answer.json["replicas"]] == ["i1", "i2"]
    assert answer.headers["Location"] == "/api/instances/i1"
    assert len(client.get(f"/api/placements/preview?model={MODEL}&replicas=3").json["replicas"]) == 3


@pytest.mark.parametrize("wrong", [{"replicas": 0}, {"replicas": 65}, {"keep_alive": 0}, {"keep_alive": "soon"}])
def test_no_number_of_replicas_or_seconds(client: FlaskClient, wrong: dict[str, Any]) -> None:
    answer = client.post("/api/instances", json={"model": MODEL} | wrong)
    assert (answer.status_code, answer.json["error"]["param"]) == (400, next(iter(wrong)))


def test_a_refused_placement_tells_the_numbers(client: FlaskClient) -> None:
    answer = client.post("/api/instances", json={"model": MODEL, "min_nodes": 2})
    error = answer.json["error"]
    assert (answer.status_code, error["code"]) == (409, "too_few_nodes")
    assert error["details"] == {"wanted": 2, "alive": 1}


def test_a_preview_reads_its_query(client: FlaskClient) -> None:
    query = f"model={MODEL}&min_nodes=2&required_nodes=a,b&required_nodes=c&sharding=tensor"
    asked = client.get(f"/api/placements/preview?{query}").json["request"]
    assert (asked["min_nodes"], asked["required_nodes"], asked["sharding"]) == (2, ["a", "b", "c"], "tensor")


def test_readiness(client: FlaskClient, fake: Any) -> None:
    assert client.get("/readyz").status_code == 200
    fake.ready = (False, ["no node is alive"])
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json["reasons"]) == (503, ["no node is alive"])
    assert answer.json["error"]["code"] == "not_ready"


def test_metrics(client: FlaskClient) -> None:
    text = client.get("/metrics").text
    assert 'exo_celery_node_up{node="node-1"} 1\n' in text
    assert 'exo_celery_download_bytes{node="node-1",model="org/known"} 1000\n' in text
    assert 'exo_celery_instances{model="org/known",status="ready"} 1\n' in text
    assert 'exo_celery_jobs{state="succeeded"} 1\n' in text
    assert 'exo_celery_queued_jobs{model="org/known"} 3\n' in text
