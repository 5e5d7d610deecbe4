"""What the JSON routes answer, where it is more than one record: the shapes that /openapi.json shows."""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from exo_celery.records.base import ModelId, Record
from exo_celery.records.download import Download
from exo_celery.records.engine import EngineFigures
from exo_celery.records.instance import InstanceStatus, Rank, RankStatus
from exo_celery.records.job import Job, JobState, Usage
from exo_celery.records.logprobs import TokenLogprobs
from exo_celery.records.model import ModelCard
from exo_celery.records.node import NodeView
from exo_celery.records.tools import ToolCall


class Nodes(Record):
    """Every node that ever registered."""

    nodes: list[NodeView]


class Downloads(Record):
    """One entry per node and model; a catalog model that a node lacks stands as pending with 0 bytes."""

    downloads: list[Download]


class Models(Record):
    """Every known model."""

    models: list[ModelCard]


class Event(Record):
    """Something that happened, in words, `at` seconds of Redis time; further fields say of what."""

    model_config = ConfigDict(extra="allow")

    id: str
    at: float
    kind: str
    text: str


class Events(Record):
    """The newest events first; about the last two thousand are kept."""

    events: list[Event]


class JobView(Record):
    """A job as callers see it; `text`, `tool_calls` and `logprobs` are its result, `reasons` say why attempts ended."""

    id: str
    model: ModelId
    state: JobState
    priority: int
    attempt: int
    text: str
    tool_calls: tuple[ToolCall, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: str
    usage: Usage
    error: dict[str, Any] | None
    reasons: tuple[str, ...]
    note: str
    instance: str
    ring: tuple[str, ...]
    seed: int
    deadline_at: float
    created_at: float
    started_at: float
    first_token_at: float
    finished_at: float

    @classmethod
    def of(cls, job: Job) -> "JobView":
        """Leave out what is only ours (lease, publishing) and the prompt."""
        return cls.model_validate(job.model_dump(exclude={"request", "owner"}))


class Jobs(Record):
    """One page of jobs, newest first; `next` is the cursor of the next page, null on the last."""

    jobs: list[JobView]
    next: str | None


class RankView(Record):
    """One place of a ring: layers `[start_layer, end_layer)`, and how far its node is."""

    model_config = ConfigDict(extra="allow")

    node: str
    rank: int
    start_layer: int
    end_layer: int
    status: RankStatus


class InstanceView(Record):
    """A placed model; `why` says what decided for this ring, `engine` what it has measured, null before it ran."""

    model_config = ConfigDict(extra="allow")

    id: str
    model: ModelId
    status: InstanceStatus
    epoch: int
    sharding: str
    ring: list[RankView]
    why: str
    error: str
    note: str = Field("", description="what else there is to know: what it waits for, ranks that are lost")
    group: str = Field("", description="shared by instances that were placed as replicas of each other")
    replica: int = 1
    placed_by: Literal["user", "work"] = "user"
    running_jobs: int = 0
    idle_since: float | None = Field(None, description="null while it is busy or not ready")
    unloads_at: float | None = Field(None, description="when it is unloaded unless work comes; null: it is kept")
    engine: EngineFigures | None = None


class Instances(Record):
    """All instances that are not gone."""

    instances: list[InstanceView]


class Accepted(Record):
    """An instance that is on its way, up or down."""

    id: str
    status: InstanceStatus


class Placed(Accepted):
    """The first instance that was placed, and all of them in `replicas`."""

    replicas: list[Accepted]


class Deleting(Record):
    """A wish that the node's agent works off."""

    node: str
    model: ModelId
    wanted: str = "delete"


class RingView(Record):
    """A ring that would be formed, and the reasons."""

    model_config = ConfigDict(extra="allow")

    ring: list[Rank]
    sharding: str
    reserved_bytes: dict[str, int]
    why: str


class Preview(RingView):
    """Where a model would be placed, without placing it: its first ring, and all of them in `replicas`."""

    model: ModelId
    replicas: list[RingView]


class ErrorFacts(Record):
    """What went wrong; `param` names the field at fault, `code` is stable."""

    message: str
    type: str
    param: str | None
    code: str | None
    details: dict[str, Any] = Field(default_factory=dict, description="numbers behind the message, if any")


class ErrorAnswer(Record):
    """OpenAI's error shape, which every error of this server has."""

    error: ErrorFacts
