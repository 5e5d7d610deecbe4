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
FIRST_WORK_SECONDS: Final = 30  # a fresh ring is idle only after that: whoever waited for it asks again every 5 s
LOST_WITHIN_SECONDS: Final = 25  # one node life of grace, and a look at all instances
BETWEEN_WORK_SECONDS: Final = 10  # whoever has just had an answer may ask on; no ring makes room before that


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


@dataclass(frozen=True)
class UnloadShard:
    """The rank's node is to end its shard: `exo.unload_shard`."""

    node: str


@dataclass(frozen=True)
class End:
    """All shards of a draining instance have ended, and their nodes have measured their memory anew."""


Action = NeedDownload | LoadShard | SetStatus | FormRing | DropRing | GiveUp | UnloadShard | End
SETTLED: Final = frozenset({InstanceStatus.FAILED, InstanceStatus.GONE})


def plan(instance: Instance, downloads: Mapping[str, Download], boots: Mapping[str, str], now: float) -> list[Action]:
    """Return what is due for this instance.

    `downloads` are those of its model by node, `boots` the boot ids of live nodes, `now` is Redis time in seconds.
    """
    if instance.status in SETTLED:
        return []
    if instance.status is InstanceStatus.DRAINING:
        return drain(instance, boots)
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


def drain(instance: Instance, boots: Mapping[str, str]) -> list[Action]:
    """Return what is due of an instance that is to go: every node's shard ends, then it ends itself.

    A node that ended its shard says so by a rank that waits; one that is gone or has restarted holds none.
    """
    held = [rank for rank in instance.ring if not unloaded(instance, rank, boots)]
    return [UnloadShard(rank.node) for rank in held] or [End()]


def unloaded(instance: Instance, rank: Rank, boots: Mapping[str, str]) -> bool:
    """Tell whether a rank's node holds its shard no more."""
    state = state_of(instance, rank)
    return is_lost(instance, rank, boots) or (state is not None and state.status is RankStatus.WAITING)


def is_lost(instance: Instance, rank: Rank, boots: Mapping[str, str]) -> bool:
    """Tell whether a rank's node is gone, or another process than the one that the ring was formed with."""
    boot = boots.get(rank.node)
    return boot is None or boot != instance.boot_ids.get(rank.node, boot)


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
    if is_lost(instance, rank, boots):
        return RankStatus.LOST
    if state := state_of(instance, rank):
        return state.status
    moving = download is not None and download.status is DownloadStatus.ONGOING
    return RankStatus.DOWNLOADING if moving else RankStatus.WAITING


# Instances without work.


def idle_since(instance: Instance) -> float:
    """Return since when an instance has had no work, given that it is ready and runs nothing now.

    Its first job may have ended before it was seen to be ready.
    """
    if instance.used_at:
        return max(instance.used_at, instance.ready_at)
    return instance.ready_at + FIRST_WORK_SECONDS


def may_be_unloaded(instance: Instance) -> bool:
    """Tell whether an instance may go when it is idle: placed by work, or with a keep-alive. Others stay."""
    return instance.placed_by == "work" or instance.request.keep_alive is not None


def unloads_at(instance: Instance) -> float | None:
    """Return when an idle instance is unloaded unless work comes; None: it is kept."""
    keep_alive = instance.request.keep_alive
    return None if keep_alive is None else idle_since(instance) + keep_alive


def may_make_room(instance: Instance, now: float) -> bool:
    """Tell whether an idle instance may go for a model that work waits for."""
    return may_be_unloaded(instance) and now - idle_since(instance) >= BETWEEN_WORK_SECONDS


def lost_note(instance: Instance, boots: Mapping[str, str], seen_at: Mapping[str, float], now: float) -> str:
    """Say which ranks are lost though the instance's status does not tell yet, and when it will; '' for none.

    `seen_at` is when a node was last heard, in Redis time.
    """
    lost = [rank for rank in instance.ring if is_lost(instance, rank, boots)]
    if not lost or instance.status is InstanceStatus.DRAINING:
        return ""
    return "; ".join(how_lost(rank, boots, seen_at.get(rank.node, 0), now) for rank in lost) + (
        f": a new ring is placed within {LOST_WITHIN_SECONDS} s, since after an outage nobody counts as lost at once"
        if boots
        else ": a new ring is placed once a node is alive"
    )


def how_lost(rank: Rank, boots: Mapping[str, str], seen_at: float, now: float) -> str:
    """Say what is known of a lost rank's node."""
    what = "has restarted" if rank.node in boots else f"has not been heard for {now - seen_at:.0f} s"
    return f"rank {rank.rank} is lost, {rank.node} {what}"
