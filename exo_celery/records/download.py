"""Downloads: one model on one node, as the download hash tells it."""

from enum import StrEnum

from pydantic import Field

from exo_celery.records.base import ModelId, Record

# Where a download's facts come from: found by a scan; otherwise `source` names what it is fetched from.
DISK = "disk"
HF_CACHE = "hf-cache"


class DownloadStatus(StrEnum):
    """`pending` is known and not moving, `ongoing` a live download of this boot; a `failed` one keeps its reason."""

    PENDING = "pending"
    ONGOING = "ongoing"
    COMPLETED = "completed"
    FAILED = "failed"


class Download(Record):
    """One model on one node. `total_bytes` is 0 while it is not known."""

    node: str
    model: ModelId
    status: DownloadStatus = DownloadStatus.PENDING
    downloaded_bytes: int = Field(0, ge=0)
    total_bytes: int = Field(0, ge=0)
    completed_files: int = 0
    total_files: int = 0
    speed_bps: float = 0.0
    eta_seconds: float | None = None
    error: str = ""
    directory: str = ""
    read_only: bool = False
    source: str = ""
    revision: str = ""
    updated_at: float = 0.0

    @property
    def attempted(self) -> bool:
        """Whether this tells of an attempt to fetch the model, not of a scan."""
        return self.source not in ("", DISK, HF_CACHE)

    @property
    def fraction(self) -> float:
        """How much of the model is there, as placement counts it: completed 1, failed 0, else bytes, at most 1."""
        if self.status is DownloadStatus.COMPLETED:
            return 1.0
        if self.status is DownloadStatus.FAILED or not self.total_bytes:
            return 0.0
        return min(1.0, self.downloaded_bytes / self.total_bytes)


class Wish(Record):
    """What somebody wants of a model on a node; `by` says who: `user`, or the id of the instance that needs it."""

    action: str = Field(pattern="^(download|delete|verify)$")
    by: str = "user"
    revision: str = ""
    since: float = 0.0
