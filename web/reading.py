"""Numbers as people read them on the pages: filters for templates. PURE."""

from typing import Final

from exo_celery.placement.wording import count, names, size
from exo_celery.records.download import Download, DownloadStatus

STEPS: Final = ((60, 1, "s"), (3600, 60, "min"), (86_400, 3600, "h"), (float("inf"), 86_400, "days"))
FRESH_SECONDS: Final = 10  # younger than two heartbeats: no number that would flicker


def duration(seconds: float) -> str:
    """Write a span of time in its largest unit: 47 s, 3 min, 5 h, 2 days."""
    if seconds < 1:
        return "under 1 s"
    for limit, unit_seconds, unit in STEPS:
        if seconds < limit:
            return f"{seconds // unit_seconds:.0f} {unit}"
    raise AssertionError("the last step has no limit")


def ago(then: float, now: float) -> str:
    """Write how long ago something was."""
    if not then:
        return "never"
    return "just now" if now - then < FRESH_SECONDS else f"{duration(now - then)} ago"


def percent(download: Download) -> int:
    """Return how much of a model is there, in whole percent: 100 only when it is complete."""
    if download.status is DownloadStatus.COMPLETED:
        return 100
    if not download.total_bytes:
        return 0
    return min(99, 100 * download.downloaded_bytes // download.total_bytes)


def amount(download: Download) -> str:
    """Write the bytes of a model that are there, of how many."""
    if download.status is DownloadStatus.COMPLETED or not download.total_bytes:
        return size(download.total_bytes or download.downloaded_bytes)
    return f"{size(download.downloaded_bytes)} of {size(download.total_bytes)}"


FILTERS: Final = {
    "ago": ago,
    "amount": amount,
    "count": count,
    "duration": duration,
    "names": names,
    "percent": percent,
    "size": size,
}
