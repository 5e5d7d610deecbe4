"""Whether this node may join the cluster it was pointed at: each reason not to, in one sentence with the cure."""

import time
from typing import Final
from urllib.parse import urlsplit

from exo_celery.errors import ConfigurationError
from exo_celery.node import machine
from exo_celery.node.addresses import is_loopback, way_to_redis
from exo_celery.records.node import NodeView
from exo_celery.settings import Settings
from exo_celery.store import client, nodes
from exo_celery.store.client import Redis

MAX_CLOCK_SKEW_SECONDS: Final = 15.0  # ticks carry an expiry by the sender's clock with 30 s of slack
SAME_EVERYWHERE: Final = ("exo_celery", "mlx", "mlx-lm")


def check(settings: Settings, redis: Redis, secret_proof: str) -> None:
    """Return if this node fits.

    Raises:
        ConfigurationError: Redis off loopback has no password, the clocks differ, or a live node has another secret
            or other versions.
    """
    check_password(settings.redis_url)
    check_clock(client.now(redis) - time.time())
    for other in nodes.every(redis, settings.namespace):
        if other.alive and other.id != settings.node_id:
            check_secret(other, secret_proof)
            check_versions(other, machine.versions())


def where(redis_url: str) -> str:
    """Return how to speak of a Redis, without its password."""
    parts = urlsplit(redis_url)
    return f"Redis at {parts.hostname or parts.path}" + (f" port {parts.port}" if parts.port else "")


def check_password(redis_url: str) -> None:
    """Refuse a Redis on the network that anybody may write to."""
    parts = urlsplit(redis_url)
    if not parts.password and not is_loopback(way_to_redis(redis_url)):
        raise ConfigurationError(
            f"{where(redis_url)} has no password, and whoever reaches it can run tasks on every node: set "
            "`requirepass` there and put the password into EXO_REDIS_URL (redis://default:PASSWORD@HOST:PORT/0)"
        )


def check_reachable(redis_url: str) -> None:
    """Refuse to invite to a Redis that only this machine reaches."""
    if is_loopback(way_to_redis(redis_url)):
        raise ConfigurationError(
            "Redis is on loopback, so no other machine reaches it: bind it to this machine's address in the network, "
            "with a password, and put that into EXO_REDIS_URL, or start with `exo-celery up --host ADDRESS`"
        )


def check_clock(ahead_seconds: float) -> None:
    """Refuse a clock by which tasks would expire before they arrive."""
    if abs(ahead_seconds) > MAX_CLOCK_SKEW_SECONDS:
        raise ConfigurationError(
            f"this machine's clock is {abs(ahead_seconds):.0f} s {'behind' if ahead_seconds > 0 else 'ahead of'} that "
            f"of Redis, at most {MAX_CLOCK_SKEW_SECONDS:.0f} s are allowed: turn on time synchronisation (NTP)"
        )


def check_secret(other: NodeView, secret_proof: str) -> None:
    """Refuse another secret: rings with that node could never form."""
    if other.secret_proof and other.secret_proof != secret_proof:
        raise ConfigurationError(
            f"this node's cluster secret is not that of {other.id}: copy the secret's file from there and set "
            "EXO_CLUSTER_SECRET_FILE, or join with the command that `exo-celery invite` prints there"
        )


def check_versions(other: NodeView, mine: dict[str, str]) -> None:
    """Refuse other versions: ranks of one ring must compute and speak alike."""
    for name in SAME_EVERYWHERE:
        theirs = other.versions.get(name, mine[name])
        if theirs != mine[name]:
            raise ConfigurationError(
                f"{name} is {mine[name]} here and {theirs} on {other.id}: install the same version on all nodes"
            )
