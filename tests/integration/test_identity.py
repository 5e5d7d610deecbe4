"""One process per node id: the living keep it, the dead lose it at once."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from redis import Redis

from exo_celery.errors import ConfigurationError
from exo_celery.node import identity, machine
from exo_celery.records.node import Node
from exo_celery.store import keys, nodes


def holder(pid: int, hostname: str = "") -> Node:
    return Node(id="node-1", boot_id="old", pid=pid, hostname=hostname or machine.hostname())


@contextmanager
def beating(redis: Redis, ns: str, node: Node) -> Iterator[None]:
    done = threading.Event()

    def beat() -> None:
        while not done.wait(0.3):
            nodes.heartbeat(redis, ns, node)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_a_free_id_is_taken(redis: Redis, namespace: str) -> None:
    identity.claim(redis, namespace, "node-1", "new")


def test_a_dead_process_of_this_host_loses_it_at_once(redis: Redis, namespace: str) -> None:
    nodes.heartbeat(redis, namespace, holder(dead_pid()))
    start = time.monotonic()
    identity.claim(redis, namespace, "node-1", "new")
    assert time.monotonic() - start < identity.WATCH_SECONDS / 2


def test_one_that_renews_keeps_it_and_is_named(redis: Redis, namespace: str) -> None:
    node = holder(1, hostname="other-host")
    nodes.heartbeat(redis, namespace, node)
    with beating(redis, namespace, node), pytest.raises(ConfigurationError, match=r"node-1.*other-host, pid 1"):
        identity.claim(redis, namespace, "node-1", "new")


def test_a_key_that_merely_exists_is_no_reason_to_refuse(
    redis: Redis, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "WATCH_SECONDS", 1.0)
    nodes.heartbeat(redis, namespace, holder(1, hostname="other-host"))
    identity.claim(redis, namespace, "node-1", "new")
    assert redis.get(keys.alive(namespace, "node-1")) == "old"


def test_leaving_ends_only_ones_own_life(redis: Redis, namespace: str) -> None:
    nodes.heartbeat(redis, namespace, holder(1))
    nodes.leave(redis, namespace, "node-1", "another")
    assert nodes.live_boots(redis, namespace) == {"node-1": "old"}
    nodes.leave(redis, namespace, "node-1", "old")
    (seen,) = nodes.every(redis, namespace)
    assert not seen.alive
    assert seen.seen_at > 0
