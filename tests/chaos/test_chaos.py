"""A short storm, for every run of the tests; the long one is `python tests/chaos/storm.py`."""

from pathlib import Path

import pytest
from storm import Plan, storm

SEED = 30  # hits Redis, the web, a node worker and a serving worker


@pytest.mark.timeout(480)
def test_every_job_ends_exactly_once_whatever_is_killed(tmp_path: Path) -> None:
    report = storm(tmp_path, Plan(jobs=40, clients=6, faults=4, seed=SEED, lines=40))
    assert report.broken == [], report
    assert report.states["succeeded"] >= 34
