"""A judge is a client that others wrote: what it cannot read, our users cannot either.

One cluster serves all of them: the demo model on two nodes, and on the first a model that calls functions.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The stands and the live cluster of the other tests.
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "integration")]

from judged import SPEAKS, Judged  # noqa: E402
from live import eventually  # noqa: E402
from scripted import scripted_model  # noqa: E402


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    folder = tmp_path_factory.mktemp("up")
    cluster = Judged(folder, "--nodes", "2", EXO_REPORT_SECONDS="5")
    try:
        scripted_model(tmp_path_factory.mktemp("model") / "new").rename(folder / "node-1" / "models" / "org--speaks")
        found = lambda: cluster.download("node-1", SPEAKS) or {}  # noqa: E731
        eventually(found, lambda told: told.get("status") == "completed", 60)
        speaking = cluster.place(model=SPEAKS, required_nodes=["node-1"], max_nodes=1)
        cluster.ready(cluster.place(min_nodes=2))
        cluster.ready(speaking)
        yield cluster
    finally:
        code = cluster.stop()
    assert code == 0
