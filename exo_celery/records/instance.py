"""Instances: placed models, and the request that placed them."""

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from exo_celery.records.base import ModelId, Record, Request
from exo_celery.records.engine import EngineFigures


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
    """A placed model. Keeps its id for life; its epoch rises each time a ring is formed, its version at each write."""

    id: str
    model: ModelId
    status: InstanceStatus = InstanceStatus.PLACING
    epoch: int = 0
    version: int = 0
    sharding: str = "pipeline"
    request: PlacementRequest
    ring: tuple[Rank, ...] = ()
    ranks: dict[int, RankState] = Field(default_factory=dict)
    reserved_bytes: dict[str, int] = Field(default_factory=dict)
    boot_ids: dict[str, str] = Field(default_factory=dict)
    why: str = ""
    decision: dict[str, Any] = Field(default_factory=dict)
    error: str = ""
    failures: int = 0
    retry_at: float = 0.0
    deadline_at: float = 0.0
    created_at: float = 0.0
    updated_at: float = 0.0
    ready_at: float = 0.0
