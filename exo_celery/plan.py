"""What an instance needs next, from the records and the time alone. PURE: no IO, no clock of its own.

`plan()` is asked again on every event and every few seconds; it answers with all that is due now, so a lost message,
a late one or a doubled one changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from exo_celery.records.download import Download, DownloadStatus
from exo_celery.records.instance import Instance, InstanceStatus, Rank, RankState, RankStatus

MAX_FAILURES: Final = 5  # rings in a row that may fail before the instance does
BACKOFF_SECONDS: Final = (1, 2, 5, 15, 30)  # before a new ring, by failures in a row
STEADY_SECONDS: Final = 300  # a ring that was ready for this long has earned a fresh count


@dataclass(frozen=True)
class NeedDownload:
    """The rank's node lacks the model and nothing is moving there."""

    node: str


@dataclass(frozen=True)
class LoadShard:
    """The rank's node is to bring its shard one step on (load it, or link and warm it): `exo.load_shard`."""

    rank: int
    node: str


@dataclass(frozen=True)
class SetStatus:
    """The instance has got this far."""

    status: InstanceStatus


@dataclass(frozen=True)
class FormRing:
    """There is no ring and it is time to place one: `exo.place_model`."""


@dataclass(frozen=True)
class DropRing:
    """The ring is broken: a new epoch, placed again after `backoff_seconds`."""

    reason: str
    failures: int
    backoff_seconds: float


@dataclass(frozen=True)
class GiveUp:
    """Too many rings failed in a row."""

    reason: str


Action = NeedDownload | LoadShard | SetStatus | FormRing | DropRing | GiveUp
SETTLED: Final = frozenset({InstanceStatus.FAILED, InstanceStatus.GONE, InstanceStatus.DRAINING})


def plan(instance: Instance, downloads: Mapping[str, Download], boots: Mapping[str, str], now: float) -> list[Action]:
    """Return what is due for this instance.

    `downloads` are those of its model by node, `boots` the boot ids of live nodes, `now` is Redis time in seconds.
    """
    if instance.status in SETTLED:
        return []
    if not instance.ring:
        return [FormRing()] if now >= instance.retry_at else []
    if reason := broken(instance, downloads, boots):
        return [after_failure(instance, reason, now)]
    if lacking := [rank for rank in instance.ring if not complete(downloads.get(rank.node))]:
        asked: list[Action] = [NeedDownload(rank.node) for rank in lacking if still(downloads.get(rank.node))]
        return asked + reach(instance, InstanceStatus.DOWNLOADING)
    return load(instance)


def load(instance: Instance) -> list[Action]:
    """Return what is due once every rank's node has the model: load all, then warm all, then ready."""
    states = {rank.rank: state_of(instance, rank) for rank in instance.ring}
    reached = {rank: state.status if state else RankStatus.WAITING for rank, state in states.items()}
    if all(status is RankStatus.READY for status in reached.values()):
        return reach(instance, InstanceStatus.READY)
    warming = all(status in (RankStatus.LOADED, RankStatus.WARMING, RankStatus.READY) for status in reached.values())
    due = RankStatus.LOADED if warming else RankStatus.WAITING
    steps: list[Action] = [LoadShard(rank.rank, rank.node) for rank in instance.ring if reached[rank.rank] is due]
    return reach(instance, InstanceStatus.WARMING if warming else InstanceStatus.LOADING) + steps


def broken(instance: Instance, downloads: Mapping[str, Download], boots: Mapping[str, str]) -> str:
    """Return why the ring can't go on, or ''."""
    for rank in instance.ring:
        boot = boots.get(rank.node)
        if boot is None:
            return f"node {rank.node} is gone"
        if boot != instance.boot_ids.get(rank.node, boot):
            return f"node {rank.node} has restarted"
        state = state_of(instance, rank)
        if state and state.status is RankStatus.FAILED:
            return f"rank {rank.rank} on {rank.node} failed: {state.error}"
        download = downloads.get(rank.node)
        if download and download.status is DownloadStatus.FAILED:
            return f"the download on {rank.node} failed: {download.error}"
    return ""


def after_failure(instance: Instance, reason: str, now: float) -> Action:
    """Return a new ring, later with each failure in a row, or the end."""
    steady = instance.ready_at > 0 and now - instance.ready_at > STEADY_SECONDS
    failures = 1 if steady else instance.failures + 1
    if failures > MAX_FAILURES:
        return GiveUp(f"{failures} rings failed in a row; the last: {reason}")
    return DropRing(reason, failures, BACKOFF_SECONDS[failures - 1])


def state_of(instance: Instance, rank: Rank) -> RankState | None:
    """Return what the rank's node wrote for this epoch, if anything."""
    state = instance.ranks.get(rank.rank)
    return state if state and state.epoch == instance.epoch else None


def reach(instance: Instance, status: InstanceStatus) -> list[Action]:
    """Return the change of status, if it is one."""
    return [] if instance.status is status else [SetStatus(status)]


def complete(download: Download | None) -> bool:
    """Tell whether the model is whole on a node."""
    return download is not None and download.status is DownloadStatus.COMPLETED


def still(download: Download | None) -> bool:
    """Tell whether nothing moves there: no record, or one that waits."""
    return download is None or download.status is DownloadStatus.PENDING


def rank_status(instance: Instance, rank: Rank, download: Download | None, boots: Mapping[str, str]) -> RankStatus:
    """Return a rank's status as people see it, those that only show from outside included."""
    boot = boots.get(rank.node)
    if boot is None or boot != instance.boot_ids.get(rank.node, boot):
        return RankStatus.LOST
    if state := state_of(instance, rank):
        return state.status
    moving = download is not None and download.status is DownloadStatus.ONGOING
    return RankStatus.DOWNLOADING if moving else RankStatus.WAITING
