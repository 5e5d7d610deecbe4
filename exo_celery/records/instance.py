"""Instances: placed models, and the request that placed them."""

from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import Field

from exo_celery.records.base import ModelId, Record, Request
from exo_celery.records.engine import EngineFigures

MAX_REPLICAS: Final = 64
MAX_KEEP_ALIVE_SECONDS: Final = 365 * 86_400


class InstanceStatus(StrEnum):
    """The way of an instance; `failed` keeps its reason."""

    PLACING = "placing"
    DOWNLOADING = "downloading"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"
    FAILED = "failed"


class RankStatus(StrEnum):
    """The way of one rank. Waiting, downloading and lost are seen from outside; the others its node writes."""

    WAITING = "waiting"
    DOWNLOADING = "downloading"
    LOADING = "loading"
    LOADED = "loaded"
    WARMING = "warming"
    READY = "ready"
    FAILED = "failed"
    LOST = "lost"


class PlacementRequest(Request):
    """What a caller asks of placement (`POST /api/instances`)."""

    model: ModelId
    sharding: Literal["auto", "pipeline", "tensor"] = "auto"
    min_nodes: int = Field(1, ge=1)
    max_nodes: int | None = Field(None, ge=1)
    required_nodes: tuple[str, ...] = Field((), strict=False)
    excluded_nodes: tuple[str, ...] = Field((), strict=False)
    prefer: Literal["most-downloaded", "ready-soonest"] = "most-downloaded"
    labels: tuple[str, ...] = Field((), strict=False)
    instance_meta: Literal["MlxRing", "MlxJaccl"] = "MlxRing"
    # Where told, the KV cache of that many tokens and sequences is reserved too.
    context_tokens: int | None = Field(None, ge=1)
    concurrency: int = Field(1, ge=1)
    # So many instances that share the model's queue, each on a ring of its own.
    replicas: int = Field(1, ge=1, le=MAX_REPLICAS)
    # Seconds without work after which an instance is unloaded; None: never.
    keep_alive: float | None = Field(None, gt=0, le=MAX_KEEP_ALIVE_SECONDS)


class Rank(Record):
    """One place of a ring: what it holds (layers `[start_layer, end_layer)`)."""

    node: str
    rank: int
    start_layer: int
    end_layer: int


class RankState(Record):
    """What a rank's node writes about its runner; another epoch or boot id makes it void.

    `engine` is told by rank 0, which owns the requests.
    """

    epoch: int
    boot_id: str
    status: RankStatus
    address: str = ""
    port: int = 0
    weights_bytes: int = 0
    loaded_layers: int = 0
    slots: int = 0
    error: str = ""
    engine: EngineFigures | None = None
    updated_at: float = 0.0


class Instance(Record):
    """A placed model. Keeps its id for life; its epoch rises each time a ring is formed, its version at each write.

    `group` is shared by instances that were placed as replicas of each other, '' for one alone. `placed_by` tells
    whether somebody asked for it or work that waited. `used_at` is when a job last began or ended on its ring, 0 for
    never. `error` says what went wrong, `note` what else there is to know.
    """

    id: str
    model: ModelId
    status: InstanceStatus = InstanceStatus.PLACING
    epoch: int = 0
    version: int = 0
    sharding: str = "pipeline"
    request: PlacementRequest
    group: str = ""
    replica: int = 1
    placed_by: Literal["user", "work"] = "user"
    ring: tuple[Rank, ...] = ()
    ranks: dict[int, RankState] = Field(default_factory=dict)
    reserved_bytes: dict[str, int] = Field(default_factory=dict)
    boot_ids: dict[str, str] = Field(default_factory=dict)
    why: str = ""
    decision: dict[str, Any] = Field(default_factory=dict)
    error: str = ""
    note: str = ""
    failures: int = 0
    retry_at: float = 0.0
    deadline_at: float = 0.0
    created_at: float = 0.0
    updated_at: float = 0.0
    ready_at: float = 0.0
    used_at: float = 0.0
