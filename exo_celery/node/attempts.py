"""One attempt at a download, and how it ended: what may pass, what will not, what was withdrawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from exo_celery.errors import ConflictError, DownloadCancelledError, DownloadError, DownloadInterruptedError
from exo_celery.models.fetch import fetch
from exo_celery.models.rate import Rate
from exo_celery.models.sources import Source, choose
from exo_celery.models.verify import wrong_files
from exo_celery.node.transfer import Transfer
from exo_celery.records.download import Download, DownloadStatus, Wish

RETRY_SECONDS: Final = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)  # after attempts in a row that brought nothing


class Ending(StrEnum):
    """How an attempt ends."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True)
class End:
    """An ending with its reason; `wait_seconds` is what the other side asked for before the next attempt."""

    how: Ending
    reason: str = ""
    wait_seconds: float = 0.0


@dataclass(frozen=True)
class Later:
    """An attempt that has to wait: for which wish, after how many, until when by the steady clock, and why."""

    since: float
    attempts: int
    not_before: float
    reason: str


def needless(wish: Wish, found: Download) -> bool:
    """Tell whether there is nothing to do: a whole model need not be fetched, one that is not cannot be verified."""
    whole = found.status is DownloadStatus.COMPLETED
    return not whole if wish.action == "verify" else whole and wish.revision in ("", found.revision)


def attempt(model: str, transfer: Transfer, sources: Sequence[Source], directories: Sequence[Path], rate: Rate) -> End:
    """Fetch or verify a model once, and say how it ended."""
    try:
        if transfer.wish.action == "verify":
            return verify(transfer)
        revision = transfer.wish.revision
        source = choose(sources, model, revision)
        transfer.source = source.label
        fetch(model, directories, source, transfer.heard, transfer.stop, revision=revision, rate=rate)
    except DownloadCancelledError as error:
        return End(Ending.CANCELLED, error.message)
    except (DownloadInterruptedError, ConflictError) as error:
        return End(Ending.INTERRUPTED, error.message, error.numbers.get("retry_after_seconds") or 0.0)
    except DownloadError as error:
        return End(Ending.FAILED, error.message)
    return End(Ending.COMPLETED)


def verify(transfer: Transfer) -> End:
    """Hash a model's files again. Wrong ones are removed where we may write, so that a download replaces them alone."""
    transfer.source = "verify"
    folder = Path(transfer.found.directory)
    wrong = wrong_files(folder, transfer.stop)
    if not wrong:
        return End(Ending.COMPLETED)
    reason = f"{', '.join(wrong)} in {folder}: other bytes than were listed"
    if transfer.found.read_only:
        return End(Ending.FAILED, f"{reason}. The folder is read-only: replace them there")
    for name in wrong:
        (folder / name).unlink(missing_ok=True)
    return End(Ending.FAILED, f"{reason}. They were removed; download the model again")


def put_off(before: Later | None, transfer: Transfer, end: End, clock: float) -> Later:
    """Return when the next attempt is due: later each time, anew after one that brought bytes."""
    renewed = before is None or before.since != transfer.wish.since or transfer.brought_bytes
    attempts = 0 if renewed or before is None else before.attempts + 1
    seconds = max(RETRY_SECONDS[min(attempts, len(RETRY_SECONDS) - 1)], end.wait_seconds)
    reason = f"{end.reason}. Goes on by itself within {seconds:.0f} s"
    return Later(transfer.wish.since, attempts, clock + seconds, reason)


def with_reason(found: Download, later: Mapping[str, Later]) -> Download:
    """Return a download that waits for its next attempt with the reason why."""
    waits = later.get(found.model)
    return found.evolve(error=waits.reason) if waits and found.status is DownloadStatus.PENDING else found
