"""A cluster in memory: enough for the shapes of answers. What really happens is told by the integration tests."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from flask.testing import FlaskClient

from exo_celery import access, cluster
from exo_celery.errors import ModelNotFoundError, NotFoundError, PlacementError
from exo_celery.records.download import Download, DownloadStatus
from exo_celery.records.instance import Instance, PlacementRequest
from exo_celery.records.job import Job, JobRequest, JobState, TokenEvent, Usage
from exo_celery.records.model import AddModel, ModelCard
from exo_celery.records.node import NodeView
from exo_celery.settings import Settings
from web import create_app
from web.errors import OUTAGES

MODEL = "org/known"
CARD = ModelCard(id=MODEL, storage_bytes=1000, n_layers=10, hidden_size=64, created_at=12.5)
USAGE = Usage(prompt_tokens=3, completion_tokens=2, total_tokens=5, tokens_per_second=40.0)
RANK = {"node": "node-1", "rank": 0, "start_layer": 0, "end_layer": 10, "status": "ready"}
PLACED: dict[str, Any] = {
    "id": "i1",
    "model": MODEL,
    "status": "ready",
    "epoch": 1,
    "sharding": "pipeline",
    "ring": [RANK],
    "why": "only ring",
    "error": "",
    "note": "",
    "group": "",
    "replica": 1,
    "placed_by": "user",
    "request": {"model": MODEL, "replicas": 1, "keep_alive": None},
    "running_jobs": 0,
    "idle_since": 1700000000.0,
    "unloads_at": None,
    "created_at": 1700000000.0,
}
ANSWER = [
    TokenEvent(id="1-1", kind="attempt"),
    TokenEvent(id="1-2", kind="delta", text="Par"),
    None,
    TokenEvent(id="1-3", kind="delta", text="is"),
    TokenEvent(
        id="1-4",
        kind="end",
        data={"state": "succeeded", "finish_reason": "stop", "usage": USAGE.model_dump(), "error": None},
    ),
]


class FakeCluster:
    """One node, one model, and jobs whose events a test sets beforehand."""

    def __init__(self) -> None:
        self.submitted: list[JobRequest] = []
        self.cancelled: list[str] = []
        self.wishes: list[tuple[str, str, str]] = []
        self.events: list[TokenEvent | None] = list(ANSWER)
        self.state = "ready"
        self.said = ""
        self.placed = [dict(PLACED)]
        self.worked_for: list[str] = []
        self.failed = ""
        self.fits = True
        self.away = False
        self.ready: tuple[bool, list[str]] = (True, [])
        self.ended: dict[str, Any] = {}

    def nodes(self, c: Any) -> list[NodeView]:
        return [NodeView(id="node-1", alive=True, ram_total_bytes=8, ram_available_bytes=4)]

    def downloads(self, c: Any) -> list[Download]:
        if self.away:
            raise OUTAGES[0]("redis://secret-host:1 refused")
        done = {"status": DownloadStatus.COMPLETED, "downloaded_bytes": 1000, "total_bytes": 1000}
        return [Download(node="node-1", model=MODEL, **done)]

    def models(self, c: Any) -> list[ModelCard]:
        return [CARD]

    servable_models = models

    def model(self, c: Any, model: str) -> ModelCard:
        if model != MODEL:
            raise ModelNotFoundError(f"model {model!r} is not known here; known: {MODEL}", param="model")
        return CARD

    def add_model(self, c: Any, wanted: AddModel) -> ModelCard:
        return CARD

    def start_download(self, c: Any, node: str, model: str) -> Download:
        self.wishes.append(("download", node, model))
        return Download(node=node, model=model, total_bytes=1000)

    def cancel_download(self, c: Any, node: str, model: str) -> Download:
        self.wishes.append(("cancel", node, model))
        return Download(node=node, model=model, downloaded_bytes=5, total_bytes=1000)

    def delete_download(self, c: Any, node: str, model: str) -> None:
        self.wishes.append(("delete", node, model))

    def preview(self, c: Any, wanted: PlacementRequest) -> dict[str, Any]:
        ring = {"ring": [], "sharding": "pipeline", "why": "only ring", "reserved_bytes": {}}
        return {"model": wanted.model} | ring | {"replicas": [ring] * wanted.replicas, "request": wanted.model_dump()}

    def create_instances(self, c: Any, wanted: PlacementRequest) -> list[Instance]:
        self.model(c, wanted.model)
        if wanted.min_nodes > 1 or not self.fits:
            raise PlacementError("2 nodes wanted, 1 is alive", code="too_few_nodes", wanted=2, alive=1)
        return [Instance(id=f"i{n}", model=wanted.model, request=wanted) for n in range(1, wanted.replicas + 1)]

    def place_for_work(self, c: Any, model: str) -> Instance:
        self.worked_for.append(model)
        (placed,) = self.create_instances(c, PlacementRequest(model=model))
        return placed.evolve(status="failed" if self.failed else "placing", error=self.failed)

    def instances(self, c: Any) -> list[dict[str, Any]]:
        return self.placed

    def instance(self, c: Any, instance_id: str) -> dict[str, Any]:
        if instance_id != "i1":
            raise NotFoundError(f"instance {instance_id!r} does not exist")
        return dict(PLACED)

    def delete_instance(self, c: Any, instance_id: str) -> dict[str, Any]:
        return {"id": instance_id, "status": "gone"}

    def submit(self, c: Any, request: JobRequest, owner: str = "", idempotency_key: str = "") -> Job:
        self.model(c, request.model)
        self.submitted.append(request)
        return self.job(c, "j1")

    def job(self, c: Any, job_id: str) -> Job:
        if job_id != "j1":
            raise NotFoundError(f"job {job_id!r} does not exist")
        request = self.submitted[-1] if self.submitted else JobRequest(model=MODEL, prompt="x")
        done = {"state": JobState.SUCCEEDED, "text": "Paris", "finish_reason": "stop", "usage": USAGE} | self.ended
        return Job(id="j1", model=MODEL, request=request, attempt=1, created_at=1700000000.25, **done)

    def jobs(self, c: Any, state: Any, limit: int, cursor: Any = None, **wanted: str) -> tuple[list[Job], str | None]:
        self.listed = SimpleNamespace(state=state, limit=limit, cursor=cursor, **wanted)
        return [self.job(c, "j1")], "cursor-2"

    def cancel_job(self, c: Any, job_id: str) -> Job:
        self.cancelled.append(job_id)
        return self.job(c, job_id).evolve(state=JobState.CANCELLED)

    def retry_job(self, c: Any, job_id: str) -> Job:
        return self.job(c, job_id).evolve(state=JobState.QUEUED)

    def follow(self, c: Any, job_id: str, after: str = "0-0") -> Iterator[TokenEvent | None]:
        past = [event for event in self.events if event and event.id == after]
        yield from self.events[self.events.index(past[0]) + 1 :] if past else self.events

    def readiness(self, c: Any) -> tuple[bool, list[str]]:
        return self.ready

    def job_counts(self, c: Any) -> dict[JobState, int]:
        return dict.fromkeys(JobState, 0) | {JobState.SUCCEEDED: 1}

    def waiting_jobs(self, c: Any) -> dict[str, int]:
        return {MODEL: 3}

    def latest_events(self, c: Any, count: int) -> list[dict[str, Any]]:
        return [{"id": "1700000000000-0", "at": 1700000000.0, "kind": "unload", "text": "i0 makes room"}]

    def clock(self, c: Any) -> float:
        return 1700000060.0

    def serving_state(self, c: Any, model: str) -> tuple[str, str]:
        return self.state, self.said


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Cluster functions that answer from memory."""
    stand_in = FakeCluster()
    for name in [name for name in dir(FakeCluster) if not name.startswith("_")]:
        monkeypatch.setattr(cluster, name, getattr(stand_in, name))
    monkeypatch.setattr(access, "keys_exist", lambda c: False)
    return stand_in


@pytest.fixture
def settings() -> Settings:
    return Settings()


@pytest.fixture
def client(fake: FakeCluster, settings: Settings) -> FlaskClient:
    """Client of the front, as a program on this machine."""
    return create_app(settings).test_client()
