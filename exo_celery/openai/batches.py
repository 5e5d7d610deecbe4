"""Files and batches as OpenAI's clients ask for them and read them."""

import re
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints, field_validator

from exo_celery.records.base import Record, Request
from exo_celery.records.batch import MAX_WINDOW_SECONDS, Batch, BatchError, BatchStatus, Endpoint, Purpose, StoredFile

WINDOW: Final = re.compile(r"([1-9][0-9]{0,4})([mhd])")
UNIT_SECONDS: Final = {"m": 60, "h": 3600, "d": 86_400}
METADATA_PAIRS: Final = 16
Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Seconds = Annotated[int, Field(ge=3600, le=2_592_000)]


class ExpiresAfter(Request):
    """For how long files are kept."""

    anchor: Literal["created_at"]
    seconds: Seconds


class BatchRequest(Request):
    """`POST /v1/batches`. Besides OpenAI's `24h` a window may be any number of minutes, hours or days up to 30 days."""

    input_file_id: Id
    endpoint: Endpoint
    completion_window: Annotated[str, Field(pattern=f"^{WINDOW.pattern}$")]
    metadata: (
        dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]] | None
    ) = Field(None, max_length=METADATA_PAIRS)
    output_expires_after: ExpiresAfter | None = None

    @field_validator("completion_window")
    @classmethod
    def not_too_long(cls, text: str) -> str:
        """Refuse a window longer than files are kept."""
        if seconds_of(text) > MAX_WINDOW_SECONDS:
            raise ValueError("a window is at most 30d: write 24h, for example")
        return text

    @property
    def window_seconds(self) -> int:
        """The window in seconds."""
        return seconds_of(self.completion_window)


def seconds_of(window: str) -> int:
    """Return the seconds of a window such as `24h`."""
    match = WINDOW.fullmatch(window)
    return int(match[1]) * UNIT_SECONDS[match[2]] if match else 0


class V1File(Record):
    """A file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Purpose
    status: Literal["processed"] = "processed"
    status_details: None = None

    @classmethod
    def of(cls, file: StoredFile) -> "V1File":
        """Show a file's record."""
        times = {"created_at": int(file.created_at), "expires_at": int(file.expires_at)}
        return cls.model_validate(file.model_dump(include={"id", "bytes", "filename", "purpose"}) | times)


class V1Files(Record):
    """One page of files."""

    object: Literal["list"] = "list"
    data: list[V1File]
    first_id: str | None
    last_id: str | None
    has_more: bool


class V1FileDeleted(Record):
    """A file that is no more."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class V1BatchErrors(Record):
    """Why a batch was not begun."""

    object: Literal["list"] = "list"
    data: list[BatchError]


class V1BatchCounts(Record):
    """How many lines there are, and how many have their result in either file."""

    total: int
    completed: int
    failed: int


class V1BatchUsage(Record):
    """Tokens of all lines that were answered."""

    input_tokens: int
    input_tokens_details: dict[str, int] = Field(default_factory=lambda: {"cached_tokens": 0})
    output_tokens: int
    output_tokens_details: dict[str, int] = Field(default_factory=lambda: {"reasoning_tokens": 0})
    total_tokens: int


class V1Batch(Record):
    """A batch; the time of each status it has come to, null for the others."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: V1BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: V1BatchCounts
    usage: V1BatchUsage
    metadata: dict[str, str] | None

    @classmethod
    def of(cls, batch: Batch) -> "V1Batch":
        """Show a batch's record."""
        facts: dict[str, Any] = batch.model_dump()
        times = {name: int(value) or None for name, value in facts.items() if name.endswith("_at")}
        used = batch.prompt_tokens, batch.completion_tokens
        usage = V1BatchUsage(input_tokens=used[0], output_tokens=used[1], total_tokens=sum(used))
        shown = {
            "model": next(iter(batch.lines)) if len(batch.lines) == 1 else None,
            "errors": V1BatchErrors(data=batch.errors) if batch.errors else None,
            "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
            "usage": usage,
        }
        return cls.model_validate(facts | times | shown)


class V1Batches(Record):
    """One page of batches, newest first."""

    object: Literal["list"] = "list"
    data: list[V1Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool
