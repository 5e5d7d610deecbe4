"""How many lines may be in work: slots stay free for people, and batches share the rest."""

from typing import Any

import pytest

from exo_celery.pump.window import room, share
from exo_celery.records.batch import Batch, BatchStatus, batch_of
from exo_celery.records.instance import Instance, InstanceStatus, PlacementRequest, RankState, RankStatus

MODEL = "org/known"


def placed(slots: int, model: str = MODEL, status: InstanceStatus = InstanceStatus.READY) -> Instance:
    rank = RankState(epoch=1, boot_id="b", status=RankStatus.READY, slots=slots)
    return Instance(id="i", model=model, status=status, request=PlacementRequest(model=model), ranks={0: rank})


def batch(number: int, **facts: Any) -> Batch:
    known = {"status": BatchStatus.IN_PROGRESS, "lines": {MODEL: 9}} | facts
    fixed = {"endpoint": "/v1/completions", "input_file_id": "file-1", "completion_window": "24h"}
    return Batch(id=f"batch_{number:032x}", **fixed, **known)


def test_two_slots_stay_free() -> None:
    assert room([placed(16)], MODEL, 8) == 14
    assert room([placed(16), placed(4), placed(9, "org/other")], MODEL, 8) == 18


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_one_line_is_always_in_work(slots: int) -> None:
    assert room([placed(slots)], MODEL, 8) == 1


def test_without_an_instance_as_many_wait_as_one_would_take() -> None:
    assert room([placed(16, status=InstanceStatus.LOADING)], MODEL, 8) == 6


@pytest.mark.parametrize("available", [1, 2, 14, 100])
def test_batches_share_all_of_it_and_no_more(available: int) -> None:
    active = [batch(n) for n in range(5)]
    parts = [share(available, MODEL, one.id, active) for one in active]
    assert sum(parts) == available
    assert max(parts) - min(parts) <= 1
    assert parts == sorted(parts, reverse=True)


def test_only_batches_that_run_and_want_the_model_share() -> None:
    others = [batch(1, status=BatchStatus.FINALIZING), batch(2, lines={"org/other": 1})]
    assert share(14, MODEL, batch(3).id, [*others, batch(3)]) == 14
    assert share(14, MODEL, batch(1).id, [*others, batch(3)]) == 0


def test_a_job_tells_its_batch() -> None:
    assert batch_of(batch(7).job_id(12)) == batch(7).id
    assert batch_of("job-" + "0" * 32) is None
