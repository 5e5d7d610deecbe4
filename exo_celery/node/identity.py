"""Who may be a node: one process per node id, and a restarted one at once."""

import time
from typing import Final

import psutil

from exo_celery.errors import ConfigurationError
from exo_celery.node import machine
from exo_celery.store import nodes
from exo_celery.store.client import Redis

WATCH_SECONDS: Final = 6  # longer than a heartbeat: a living holder renews its key in that time
LOOK_SECONDS: Final = 0.25


def claim(redis: Redis, ns: str, node: str, boot_id: str) -> None:
    """Return once this process may live under the node id.

    A key that merely exists is no reason to refuse: it may be left over from a process that was killed.

    Raises:
        ConfigurationError: another live process renews the key.
    """
    held = nodes.life(redis, ns, node)
    if held is None or held.boot_id == boot_id or dead_here(redis, ns, node):
        return
    end = time.monotonic() + WATCH_SECONDS
    while time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
        seen = nodes.life(redis, ns, node)
        if seen is None:
            return
        if seen.boot_id != held.boot_id or seen.ttl_ms > held.ttl_ms:
            other = nodes.record(redis, ns, node)
            where = f"{other.hostname}, pid {other.pid}" if other else "another machine"
            raise ConfigurationError(
                f"node id {node!r} is taken by a live worker ({where}); set another EXO_NODE_ID or stop that one"
            )
        held = seen


def dead_here(redis: Redis, ns: str, node: str) -> bool:
    """Tell whether the holder was a process of this host that is gone."""
    holder = nodes.record(redis, ns, node)
    return holder is not None and holder.hostname == machine.hostname() and not psutil.pid_exists(holder.pid)
