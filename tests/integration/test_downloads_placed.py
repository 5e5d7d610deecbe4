"""Placement while downloads run: the node with more bytes is preferred, by what is true at that moment."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lookalike.hub import Hub
from lookalike.lab import MODEL, Lab, opened

from exo_celery import cluster as asked
from exo_celery.models.hub import HubSource
from exo_celery.node.downloads import Downloads
from exo_celery.records.download import DownloadStatus, Wish
from exo_celery.records.instance import PlacementRequest
from exo_celery.records.model import AddModel
from exo_celery.records.node import Node
from exo_celery.store import client, nodes
from exo_celery.store import downloads as store

FREE_BYTES = 10**9


@pytest.fixture
def lab(tmp_path: Path, redis_url: str, namespace: str) -> Iterator[Lab]:
    with opened(tmp_path, redis_url, namespace) as made:
        yield made


@contextmanager
def live(lab: Lab, name: str, bytes_per_second: float) -> Iterator[Downloads]:
    """Let a node live that downloads from a hub of its own, past its peers."""
    settings = lab.cluster.settings.model_copy(update={"models_dirs": (lab.root / name,)})
    node = Downloads(settings, lab.cluster.redis, name, lambda model: None)
    alive = Node(
        id=name,
        boot_id=name,
        ram_available_bytes=FREE_BYTES,
        ram_total_bytes=FREE_BYTES,
        backends=("MlxCpu",),
    )
    nodes.heartbeat(lab.cluster.redis, lab.cluster.ns, alive)
    with Hub(lab.hub.models, rate=bytes_per_second, piece=2048) as hub:
        node.sources = [HubSource(hub.url, None)]
        yield node
        node.stop()


def begin(lab: Lab, node: Downloads) -> None:
    wish = Wish(action="download", since=client.now(lab.cluster.redis))
    store.set_wish(lab.cluster.redis, lab.cluster.ns, node.node_id, MODEL, wish)
    node.work_off()


def fractions(lab: Lab) -> dict[str, float]:
    """Return how much of the model the hashes of nodes that are in the middle of it tell."""
    held = store.of_model(lab.cluster.redis, lab.cluster.ns, MODEL, ["slow", "fast"])
    return {name: one.fraction for name, one in held.items() if one.status is DownloadStatus.ONGOING}


def chosen(lab: Lab) -> str:
    """Return where the model would be placed now."""
    (rank,) = asked.preview(lab.cluster, PlacementRequest(model=MODEL))["ring"]
    return str(rank["node"])


def test_the_node_that_has_more_by_now_is_preferred(lab: Lab) -> None:
    asked.add_model(lab.cluster, AddModel(model=MODEL))
    size = sum(path.stat().st_size for path in lab.hub.models[MODEL].iterdir())
    with live(lab, "slow", size / 30) as tortoise, live(lab, "fast", size / 8) as hare:
        assert chosen(lab) == "fast", "nobody has anything: the first by name"
        begin(lab, tortoise)
        lab.until(lambda: fractions(lab).get("slow", 0) > 0)
        assert chosen(lab) == "slow"
        begin(lab, hare)
        lab.until(lambda: fractions(lab)["fast"] > fractions(lab)["slow"])
        ahead = fractions(lab)
        assert 0 < ahead["slow"] < ahead["fast"] < 1
        assert chosen(lab) == "fast"
