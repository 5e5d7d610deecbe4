"""schemathesis reads /openapi.json and asks every route what it may be asked, and what it may not.

No answer may be a 500, none may differ from what the document says of it, in status, type or shape.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from stand.front import served
from stand.worker import NODE, Worker

from exo_celery.store import nodes

NS = "test-schemathesis"
COMMAND = str(Path(sys.executable).with_name("schemathesis"))
# Rules that bind two fields (messages or prompt, never both) have no words in the document, so a body that fits it may
# well be a 400. `/api/downloads/node/org/cancel` is two paths in one: which methods it takes depends on its ids.
EXCLUDED = ("positive_data_acceptance", "allow_header_conformance", "unsupported_method")
EXAMPLES = os.environ.get("SCHEMATHESIS_EXAMPLES", "8")


def beat(redis: Redis, over: threading.Event) -> None:
    """Keep the one node alive, so that /readyz has nothing to tell."""
    while not over.wait(2):
        nodes.heartbeat(redis, NS, NODE)


@pytest.fixture
def front(redis_url: str) -> Iterator[str]:
    redis = Redis.from_url(redis_url, decode_responses=True)
    Worker(redis, NS).set_up()
    over = threading.Event()
    beats = threading.Thread(target=beat, args=(redis, over))
    beats.start()
    with served(EXO_REDIS_URL=redis_url, EXO_NAMESPACE=NS, EXO_AUTO_PLACE="0", EXO_OFFLINE="1") as address:
        yield address
    over.set()
    beats.join()
    for key in redis.scan_iter(match=f"{NS}:*", count=1000):
        redis.delete(key)
    redis.close()


@pytest.mark.timeout(600)
def test_each_route_keeps_to_what_it_says(front: str, tmp_path: Path) -> None:
    argv = [COMMAND, "--no-color", "run", f"{front}/openapi.json"]
    argv += ["--phases", "examples,coverage,fuzzing", "--max-examples", EXAMPLES, "--generation-deterministic"]
    argv += ["--suppress-health-check", "all", "--warnings", "off"]
    argv += ["--request-timeout", "20", "--continue-on-failure", "--exclude-checks", ",".join(EXCLUDED)]
    judged = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=550)
    assert judged.returncode == 0, judged.stdout[-20_000:] + judged.stderr
