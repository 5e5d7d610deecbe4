"""The front as clients meet it: gunicorn on a real Redis, and a worker whose steps the test takes.

A module that asks for them names its namespace as `NS`, and may set the front's settings as `FRONT`.
"""

from collections.abc import Iterator

import httpx
import pytest
from redis import Redis
from stand.front import served
from stand.worker import Worker


@pytest.fixture(scope="module")
def front(request: pytest.FixtureRequest, redis_url: str) -> Iterator[str]:
    """Address of the front."""
    settings = getattr(request.module, "FRONT", {})
    with served(EXO_REDIS_URL=redis_url, EXO_NAMESPACE=request.module.NS, **settings) as address:
        yield address


@pytest.fixture
def worker(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Worker]:
    """A worker with a ready instance; what the test leaves in Redis is removed."""
    redis = Redis.from_url(redis_url, decode_responses=True)
    worker = Worker(redis, request.module.NS)
    worker.set_up()
    yield worker
    for key in redis.scan_iter(match=f"{worker.ns}:*", count=1000):
        redis.delete(key)
    redis.close()


@pytest.fixture
def http(front: str, worker: Worker) -> Iterator[httpx.Client]:
    """A client of the front."""
    with httpx.Client(base_url=front, timeout=15) as client:
        yield client
