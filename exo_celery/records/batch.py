"""Files and batches: a batch is a file of requests, each line of which becomes a job."""

import re
from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import Field

from exo_celery.records.base import ModelId, Record

LINE_JOB: Final = re.compile(r"(batch_[0-9a-f]{32})-([0-9]+)")

MAX_WINDOW_SECONDS: Final = 30 * 86_400

Endpoint = Literal["/v1/chat/completions", "/v1/completions"]
Purpose = Literal["batch", "batch_output"]


class BatchStatus(StrEnum):
    """`validating → failed | in_progress → finalizing → completed | expired`; a cancel leads over `cancelling`."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


ENDED: Final = frozenset({BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED})


class StoredFile(Record):
    """A file's record: `bytes` are the content's, `stored_bytes` what its compressed chunks take."""

    id: str
    purpose: Purpose = "batch"
    filename: str = ""
    bytes: int = 0
    chunks: int = 0
    stored_bytes: int = 0
    owner: str = ""
    created_at: float = 0.0
    expires_at: float = 0.0


class BatchError(Record):
    """Why a batch was not begun; `line` counts from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class Cursor(Record):
    """Where the lines of one model that are not yet begun start: after this line, at this byte of the content."""

    line: int = 0
    offset: int = 0


class Flight(Record):
    """A line that is being worked on: enough to read it again."""

    line: int
    offset: int
    custom_id: str
    model: ModelId


class Batch(Record):
    """The record of a batch. Times are Redis time, 0 while it has not come so far.

    `allowed_models` are those that its owner may use, none means all. `lines` counts the lines of each model,
    `completed` and `failed` those that have their result. `ending` is set once, when the last result is in, to the
    status that the batch ends in as soon as its files are written.
    """

    id: str
    status: BatchStatus = BatchStatus.VALIDATING
    ending: str = ""
    endpoint: Endpoint
    input_file_id: str
    completion_window: str
    metadata: dict[str, str] | None = None
    owner: str = ""
    allowed_models: tuple[ModelId, ...] = ()
    errors: list[BatchError] = Field(default_factory=list)
    lines: dict[ModelId, int] = Field(default_factory=dict)
    output_file_id: str | None = None
    error_file_id: str | None = None
    output_keep_seconds: int = 30 * 86_400
    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    created_at: float = 0.0
    expires_at: float = 0.0
    in_progress_at: float = 0.0
    finalizing_at: float = 0.0
    completed_at: float = 0.0
    failed_at: float = 0.0
    expired_at: float = 0.0
    cancelling_at: float = 0.0
    cancelled_at: float = 0.0

    @property
    def total(self) -> int:
        """How many lines it has; 0 until it is validated."""
        return sum(self.lines.values())

    @property
    def over(self) -> bool:
        """Whether it has come to its end."""
        return self.status in ENDED

    def job_id(self, line: int) -> str:
        """Return the id of a line's job: always the same, so that no line is submitted twice."""
        return f"{self.id}-{line}"

    def file_id(self, kind: str) -> str:
        """Return the id of its output or error file: always the same, so that writing twice writes one file."""
        return f"file-{self.id.removeprefix('batch_')}-{kind}"


class LineResult(Record):
    """What became of a line: its text in the output file, or in the error file if not `good`."""

    good: bool
    text: str
    usage: dict[str, Any] = Field(default_factory=dict)


def batch_of(job_id: str) -> str | None:
    """Return the batch that a job is a line of, or None."""
    match = LINE_JOB.fullmatch(job_id)
    return match[1] if match else None
