"""A download whose process is killed, or whose hub stumbles, ends whole by itself and fetches next to nothing twice."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from lookalike import node_process
from lookalike.checkpoints import write_model
from lookalike.hub import Hub, drop, status
from redis import Redis

from exo_celery.local.layout import CELERY
from exo_celery.records.download import Download, Wish
from exo_celery.records.node import Node
from exo_celery.settings import Settings
from exo_celery.store import client, nodes
from exo_celery.store import downloads as store

MODEL = "org/tiny"
AWAY_SECONDS = 20


class Running(NamedTuple):
    """A process with a node's downloads, and the port that peers reach it at."""

    process: subprocess.Popen[str]
    port: int


@contextmanager
def running(settings: Settings, node: str) -> Iterator[Running]:
    """Run a node's downloads in a process, and kill -9 it at the end."""
    command = [sys.executable, node_process.__file__, settings.model_dump_json(), node]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            word, port = process.stdout.readline().split()
            assert word == "booted"
            yield Running(process, int(port))
        finally:
            process.send_signal(signal.SIGKILL)


def until(what: Callable[[], object], seconds: float) -> bool:
    """Wait for something; tell whether it came."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def original(tmp_path: Path) -> Path:
    return write_model(tmp_path / "original", layers=8, hidden=160, shards=8, vocab=400)


@pytest.fixture
def settings(tmp_path: Path, redis_url: str, namespace: str) -> Settings:
    return Settings(redis_url=redis_url, namespace=namespace, models_dirs=(tmp_path / "n1",), hf_home=tmp_path / "hf")


def wish(redis: Redis, ns: str, node: str = "n1") -> None:
    store.set_wish(redis, ns, node, MODEL, Wish(action="download", since=client.now(redis)))


def test_a_stumbling_hub_costs_no_traffic_twice(
    tmp_path: Path, original: Path, settings: Settings, redis: Redis, namespace: str
) -> None:
    size = sum(path.stat().st_size for path in original.iterdir())
    with Hub({MODEL: original}) as hub:
        hub.when("00003-of", drop(after=50_000), times=5)
        hub.when("00004-of", status(503, Retry_After="1"), times=2)
        hub.when("00006-of", drop(after=0), times=3)
        wish(redis, namespace)
        with running(settings.model_copy(update={"hf_endpoint": hub.url}), "n1"):
            assert until(lambda: (d := store.get(redis, namespace, "n1", MODEL)) and d.status == "completed", 30)
        assert hub.sent_bytes() <= 1.1 * size
    copy = tmp_path / "n1" / "org--tiny"
    assert all((copy / path.name).read_bytes() == path.read_bytes() for path in original.iterdir())


@pytest.mark.timeout(60)
def test_a_hub_that_is_away_for_twenty_seconds_is_taken_up_again(
    tmp_path: Path, original: Path, settings: Settings, redis: Redis, namespace: str
) -> None:
    size = sum(path.stat().st_size for path in original.iterdir())
    wish(redis, namespace)

    def found() -> Download:
        return store.get(redis, namespace, "n1", MODEL) or Download(node="n1", model=MODEL)

    with Hub({MODEL: original}, rate=size / 8, piece=4096) as hub:
        port = hub.server.server_port
        with running(settings.model_copy(update={"hf_endpoint": hub.url}), "n1"):
            assert until(lambda: found().downloaded_bytes > 0.2 * size, 20)
            hub.__exit__()
            time.sleep(AWAY_SECONDS)
            assert found().status == "ongoing", "an outage is waited out"
            with Hub({MODEL: original}, port=port) as again:
                assert until(lambda: found().status == "completed", 30)
                assert hub.sent_bytes() + again.sent_bytes() <= 1.1 * size


@contextmanager
def worker(settings: Settings) -> Iterator[None]:
    """Run a whole node worker, as people start one, and kill -9 it at the end."""
    given = {
        "EXO_REDIS_URL": settings.redis_url,
        "EXO_NAMESPACE": settings.namespace,
        "EXO_NODE_ID": "n1",
        "EXO_DATA_DIR": str(settings.models_dirs[0].with_name("data")),
        "EXO_MODELS_DIRS": str(settings.models_dirs[0]),
        "HF_HOME": str(settings.hf_home),
        "HF_ENDPOINT": settings.hf_endpoint,
    }
    with subprocess.Popen([*CELERY, "worker", "-l", "WARNING"], env=os.environ | given) as process:
        try:
            yield
        finally:
            process.kill()


@pytest.mark.timeout(180)
def test_a_worker_killed_at_ten_points_goes_on_by_itself_and_fetches_nothing_twice(
    tmp_path: Path, original: Path, settings: Settings, redis: Redis, namespace: str
) -> None:
    size = sum(path.stat().st_size for path in original.iterdir())
    points = sorted(random.uniform(0.02, 0.9) for _ in range(10))

    def there() -> int:
        return sum(path.stat().st_size for path in (tmp_path / "n1" / "org--tiny").glob("*.s*"))

    def says() -> Download:
        return store.get(redis, namespace, "n1", MODEL) or Download(node="n1", model=MODEL)

    # Slowly: what is on its way is lost with each kill, and a busy machine lets it lie there for some hundredths.
    with Hub({MODEL: original}, rate=size / 40, piece=4096) as hub:
        asked = settings.model_copy(update={"hf_endpoint": hub.url})
        wish(redis, namespace)
        for point in points:
            with worker(asked):
                assert until(lambda at=point: there() > size * at, 40), f"killed at {points}"
                assert says().downloaded_bytes <= there(), "the hash claims no byte that the disk has not"
        before = there()
        with worker(asked):
            assert until(lambda: says().downloaded_bytes >= before, 40)
            assert until(lambda: says().status == "completed", 40)
        sent = hub.sent_bytes()
    copy = tmp_path / "n1" / "org--tiny"
    assert all((copy / path.name).read_bytes() == path.read_bytes() for path in original.iterdir())
    assert sent <= 1.1 * size, f"killed at {points}"


def test_a_peer_that_is_killed_in_the_middle_is_replaced_by_the_hub(
    tmp_path: Path, original: Path, settings: Settings, redis: Redis, namespace: str
) -> None:
    size = sum(path.stat().st_size for path in original.iterdir())
    shutil.copytree(original, tmp_path / "n2" / "org--tiny")
    slow = settings.model_copy(update={"models_dirs": (tmp_path / "n2",), "upload_limit": size // 6})

    def says() -> Download:
        return store.get(redis, namespace, "n1", MODEL) or Download(node="n1", model=MODEL)

    with Hub({MODEL: original}) as hub:
        node = settings.model_copy(update={"hf_endpoint": hub.url})
        wish(redis, namespace)
        with running(slow.model_copy(update={"hf_endpoint": hub.url}), "n2") as peer:
            alive = Node(id="n2", boot_id="n2", addresses=("127.0.0.1",), peer_port=peer.port)
            nodes.heartbeat(redis, namespace, alive)
            with running(node, "n1"):
                assert until(lambda: 0.3 < says().fraction < 0.8, 20)
                assert hub.sent_bytes() == 0, "all came from the peer so far"
                peer.process.kill()
                assert until(lambda: says().status == "completed", 40)
    assert 0 < hub.sent_bytes() <= 0.8 * size, "what the peer has sent is not fetched again"
    copy = tmp_path / "n1" / "org--tiny"
    assert all((copy / path.name).read_bytes() == path.read_bytes() for path in original.iterdir())
