"""plan(): the behaviours of the reference's change 1044, and the way of a ring through failures."""

import pytest

from exo_celery.plan import (
    BACKOFF_SECONDS,
    BETWEEN_WORK_SECONDS,
    FIRST_WORK_SECONDS,
    MAX_FAILURES,
    DropRing,
    End,
    FormRing,
    GiveUp,
    LoadShard,
    NeedDownload,
    SetStatus,
    UnloadShard,
    idle_since,
    lost_note,
    may_make_room,
    plan,
    rank_status,
    unloads_at,
)
from exo_celery.records.download import Download, DownloadStatus
from exo_celery.records.instance import Instance, InstanceStatus, PlacementRequest, Rank, RankState, RankStatus

MODEL = "org/model"
BOOTS = {"a": "boot-a", "b": "boot-b"}


def instance(status: InstanceStatus = InstanceStatus.PLACING, **changes: object) -> Instance:
    ring = (Rank(node="a", rank=0, start_layer=0, end_layer=2), Rank(node="b", rank=1, start_layer=2, end_layer=4))
    base = Instance(
        id="i", model=MODEL, status=status, epoch=3, request=PlacementRequest(model=MODEL), ring=ring, boot_ids=BOOTS
    )
    return base.evolve(**changes)


def downloads(a: DownloadStatus | None, b: DownloadStatus | None) -> dict[str, Download]:
    given = {"a": a, "b": b}
    return {n: Download(node=n, model=MODEL, status=s, error="disk full") for n, s in given.items() if s}


def ranks(a: RankStatus | None, b: RankStatus | None, epoch: int = 3) -> dict[int, RankState]:
    given = {0: a, 1: b}
    return {r: RankState(epoch=epoch, boot_id="x", status=s, error="boom") for r, s in given.items() if s}


DONE, ONGOING, PENDING, FAILED = (
    DownloadStatus.COMPLETED,
    DownloadStatus.ONGOING,
    DownloadStatus.PENDING,
    DownloadStatus.FAILED,
)
WHOLE = downloads(DONE, DONE)


def test_a_rank_whose_node_lacks_the_model_asks_for_a_download() -> None:
    assert plan(instance(), downloads(DONE, PENDING), BOOTS, 0) == [
        NeedDownload("b"),
        SetStatus(InstanceStatus.DOWNLOADING),
    ]
    assert plan(instance(), downloads(DONE, None), BOOTS, 0)[0] == NeedDownload("b")


@pytest.mark.parametrize("moving", [ONGOING, DONE])
def test_one_that_is_ongoing_or_completed_asks_for_none_even_if_others_lag(moving: DownloadStatus) -> None:
    actions = plan(instance(), downloads(moving, PENDING), BOOTS, 0)
    assert NeedDownload("a") not in actions
    assert NeedDownload("b") in actions


def test_no_rank_loads_before_all_have_the_model() -> None:
    for one in (PENDING, ONGOING):
        actions = plan(instance(InstanceStatus.DOWNLOADING), downloads(DONE, one), BOOTS, 0)
        assert not any(isinstance(action, LoadShard) for action in actions)


def test_all_there_every_rank_loads() -> None:
    assert plan(instance(InstanceStatus.DOWNLOADING), WHOLE, BOOTS, 0) == [
        SetStatus(InstanceStatus.LOADING),
        LoadShard(0, "a"),
        LoadShard(1, "b"),
    ]


def test_only_the_rank_that_has_not_begun_is_asked_again() -> None:
    loading = instance(InstanceStatus.LOADING, ranks=ranks(RankStatus.LOADING, None))
    assert plan(loading, WHOLE, BOOTS, 0) == [LoadShard(1, "b")]


def test_nothing_warms_before_all_are_loaded() -> None:
    loading = instance(InstanceStatus.LOADING, ranks=ranks(RankStatus.LOADED, RankStatus.LOADING))
    assert plan(loading, WHOLE, BOOTS, 0) == []


def test_all_loaded_then_warm_then_ready() -> None:
    loaded = instance(InstanceStatus.LOADING, ranks=ranks(RankStatus.LOADED, RankStatus.LOADED))
    warm = [SetStatus(InstanceStatus.WARMING), LoadShard(0, "a"), LoadShard(1, "b")]
    assert plan(loaded, WHOLE, BOOTS, 0) == warm
    half = instance(InstanceStatus.WARMING, ranks=ranks(RankStatus.READY, RankStatus.WARMING))
    assert plan(half, WHOLE, BOOTS, 0) == []
    warmed = instance(InstanceStatus.WARMING, ranks=ranks(RankStatus.READY, RankStatus.READY))
    assert plan(warmed, WHOLE, BOOTS, 0) == [SetStatus(InstanceStatus.READY)]
    assert plan(warmed.evolve(status=InstanceStatus.READY), WHOLE, BOOTS, 0) == []


def test_what_another_epoch_said_is_void() -> None:
    stale = instance(InstanceStatus.LOADING, ranks=ranks(RankStatus.READY, RankStatus.FAILED, epoch=2))
    assert plan(stale, WHOLE, BOOTS, 0) == [LoadShard(0, "a"), LoadShard(1, "b")]


@pytest.mark.parametrize(
    ("changes", "boots", "reason"),
    [
        ({}, {"a": "boot-a"}, "node b is gone"),
        ({}, BOOTS | {"b": "another"}, "node b has restarted"),
        ({"ranks": ranks(RankStatus.READY, RankStatus.FAILED)}, BOOTS, "rank 1 on b failed: boom"),
    ],
)
def test_a_lost_node_or_a_failed_runner_breaks_the_ring(
    changes: dict[str, object], boots: dict[str, str], reason: str
) -> None:
    ready = instance(InstanceStatus.READY, **changes)
    assert plan(ready, WHOLE, boots, 0) == [DropRing(reason, 1, BACKOFF_SECONDS[0])]


def test_a_failed_download_breaks_the_ring_with_its_reason() -> None:
    (action,) = plan(instance(), downloads(DONE, FAILED), BOOTS, 0)
    assert isinstance(action, DropRing)
    assert "disk full" in action.reason


def test_failures_in_a_row_wait_longer_and_end() -> None:
    waits = []
    for failures in range(MAX_FAILURES):
        (action,) = plan(instance(failures=failures), WHOLE, {}, 0)
        assert isinstance(action, DropRing)
        waits.append(action.backoff_seconds)
    assert waits == sorted(waits)
    assert waits[-1] > waits[0]
    assert isinstance(plan(instance(failures=MAX_FAILURES), WHOLE, {}, 0)[0], GiveUp)


def test_a_ring_that_was_steady_starts_the_count_again() -> None:
    old = instance(InstanceStatus.READY, failures=MAX_FAILURES, ready_at=1.0)
    (action,) = plan(old, WHOLE, {}, 1000.0)
    assert isinstance(action, DropRing)
    assert action.failures == 1


def test_without_a_ring_it_is_placed_when_the_backoff_is_over() -> None:
    bare = instance(ring=(), retry_at=10.0)
    assert plan(bare, {}, BOOTS, 9.0) == []
    assert plan(bare, {}, BOOTS, 10.0) == [FormRing()]


@pytest.mark.parametrize("status", [InstanceStatus.FAILED, InstanceStatus.GONE])
def test_what_has_ended_needs_nothing(status: InstanceStatus) -> None:
    assert plan(instance(status), {}, {}, 0) == []


def test_rank_status_shows_what_only_shows_from_outside() -> None:
    one = instance(InstanceStatus.DOWNLOADING)
    moving = downloads(DONE, ONGOING)
    first, second = one.ring
    assert rank_status(one, first, moving["a"], BOOTS) is RankStatus.WAITING
    assert rank_status(one, second, moving["b"], BOOTS) is RankStatus.DOWNLOADING
    assert rank_status(one, second, moving["b"], {"a": "boot-a"}) is RankStatus.LOST
    assert rank_status(one.evolve(ranks=ranks(RankStatus.READY, None)), first, None, BOOTS) is RankStatus.READY


def test_what_drains_ends_once_every_node_holds_nothing() -> None:
    draining = instance(InstanceStatus.DRAINING, ranks=ranks(RankStatus.READY, RankStatus.READY))
    assert plan(draining, WHOLE, BOOTS, 0) == [UnloadShard("a"), UnloadShard("b")]
    half = draining.evolve(ranks=ranks(RankStatus.WAITING, RankStatus.READY))
    assert plan(half, WHOLE, BOOTS, 0) == [UnloadShard("b")]
    assert plan(half, WHOLE, {"a": "boot-a"}, 0) == [End()]
    assert plan(half, WHOLE, BOOTS | {"b": "another"}, 0) == [End()]
    assert plan(draining.evolve(ranks=ranks(RankStatus.WAITING, RankStatus.WAITING)), {}, BOOTS, 0) == [End()]


def ready(**changes: object) -> Instance:
    return instance(InstanceStatus.READY, ready_at=100.0, **changes)


def kept(seconds: float | None) -> PlacementRequest:
    return PlacementRequest(model=MODEL, keep_alive=seconds)


def test_a_fresh_ring_has_time_until_its_first_work() -> None:
    assert idle_since(ready()) == 100 + FIRST_WORK_SECONDS
    assert idle_since(ready(used_at=90.0)) == 100
    assert idle_since(ready(used_at=150.0)) == 150


def test_an_idle_instance_goes_after_its_keep_alive_and_never_without_one() -> None:
    assert unloads_at(ready(used_at=150.0, request=kept(60))) == 210
    assert unloads_at(ready(request=kept(60))) == 160 + FIRST_WORK_SECONDS
    assert unloads_at(ready(used_at=150.0)) is None
    assert unloads_at(ready(used_at=150.0, placed_by="work")) is None


@pytest.mark.parametrize(
    ("changes", "may"),
    [
        ({}, False),  # somebody placed it to stay
        ({"request": kept(3600)}, True),
        ({"placed_by": "work"}, True),
    ],
)
def test_who_may_make_room(changes: dict[str, object], may: bool) -> None:
    idle = ready(used_at=150.0, **changes)
    assert may_make_room(idle, 150 + BETWEEN_WORK_SECONDS) is may
    assert not may_make_room(idle, 149 + BETWEEN_WORK_SECONDS)


def test_lost_ranks_are_told_before_the_status_says_so() -> None:
    one = ready()
    assert lost_note(one, BOOTS, {}, 500) == ""
    away = lost_note(one, {"a": "boot-a"}, {"b": 470.0}, 500)
    assert away.startswith("rank 1 is lost, b has not been heard for 30 s: a new ring is placed within")
    assert "rank 0 is lost, a has restarted; rank 1" in lost_note(one, {"a": "other"}, {"b": 470.0}, 500)
    assert lost_note(one, {}, {"a": 1.0, "b": 1.0}, 500).endswith("once a node is alive")
    assert lost_note(one.evolve(status=InstanceStatus.DRAINING), {}, {}, 500) == ""
