"""A real browser on the real front."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect
from redis import Redis
from stand.front import served
from stand.worker import Worker

NAMESPACE = "test-browser"
PATIENCE_MS = 20_000  # a loaded machine is slow, not wrong


@pytest.fixture(scope="session")
def front(redis_url: str) -> Iterator[str]:
    """Address of the front."""
    with served(EXO_REDIS_URL=redis_url, EXO_NAMESPACE=NAMESPACE) as address:
        yield address


@pytest.fixture
def worker(redis_url: str) -> Iterator[Worker]:
    """One live node, one ready instance, and whoever plays its serving worker."""
    redis = Redis.from_url(redis_url, decode_responses=True)
    worker = Worker(redis, NAMESPACE)
    worker.set_up()
    yield worker
    for key in redis.scan_iter(match=f"{NAMESPACE}:*", count=1000):
        redis.delete(key)
    redis.close()


@pytest.fixture
def page(browser: Browser, front: str, worker: Worker) -> Iterator[Page]:
    """A tab. At its end: nothing was complained of, and nothing was asked of anybody but the front."""
    context = browser.new_context(base_url=front, viewport={"width": 1320, "height": 820})
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    page = context.new_page()
    complaints: list[str] = []
    strangers: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    def watch(request: Request) -> None:
        if not request.url.startswith((front, "data:")):
            strangers.append(request.url)

    page.on("console", hear)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", watch)
    yield page
    context.close()
    assert complaints == []
    assert strangers == []
