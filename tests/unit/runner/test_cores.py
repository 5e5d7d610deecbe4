"""How a rank alone divides its threads among lanes and parts of a prefill."""

import threading

import pytest

from exo_celery.runner import blas
from exo_celery.runner.cores import MOST_PARTS, ONE_CORE, Cores


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many threads products were let have, each time that changed."""
    told: list[int] = []
    monkeypatch.setattr(blas, "SETTERS", [told.append])
    return told


@pytest.mark.parametrize(
    ("threads", "lanes", "parts"), [(1, 1, 1), (2, 1, 2), (2, 2, 1), (4, 2, 2), (3, 2, 1), (16, 1, MOST_PARTS)]
)
def test_a_lane_splits_its_work_among_its_share_of_the_threads(
    used: list[int], threads: int, lanes: int, parts: int
) -> None:
    cores = Cores(threads)
    cores.share(lanes)
    assert len(cores.split(range(20))) == parts
    assert [item for part in cores.split(range(20)) for item in part] == list(range(20))


def test_no_part_is_empty() -> None:
    assert [list(part) for part in Cores(4).split([1, 2, 3, 4, 5])] == [[1, 2], [3, 4], [5]]


def test_parts_run_at_once_and_have_the_threads_between_them(used: list[int]) -> None:
    cores = Cores(4)
    together = threading.Barrier(2, timeout=5)
    assert cores.run([lambda: together.wait() >= 0, lambda: together.wait() >= 0]) == [True, True]
    assert used == [2, 4]


def test_threads_come_back_after_a_failure(used: list[int]) -> None:
    def fail() -> None:
        raise ValueError("a part failed")

    with pytest.raises(ValueError, match="a part failed"):
        Cores(2).run([fail, fail])
    assert used == [1, 2]


def test_one_core_changes_nothing(used: list[int]) -> None:
    ONE_CORE.share(2)
    assert ONE_CORE.run([lambda: 7]) == [7]
    assert (ONE_CORE.lanes, used) == (1, [])
