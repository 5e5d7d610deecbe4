"""The connection to Redis that reads and writes our records."""

from typing import Final

from redis import AuthenticationError, BusyLoadingError, ConnectionError, Redis, RedisError, TimeoutError
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from exo_celery.settings import Settings

# Other rooms name the client and its errors, but know nothing of the package behind them.
__all__ = ["TRANSIENT", "AuthenticationError", "Redis", "RedisError", "connect", "now", "uptime_seconds"]

# Errors after which the same command may simply be sent again: every script of ours is idempotent.
TRANSIENT: Final = (ConnectionError, TimeoutError, BusyLoadingError)


def connect(settings: Settings, *, retries: int = 4, timeout_seconds: float = 5) -> Redis:
    """Return a client with text answers that rides out short outages.

    With the default of four retries a command gives up after about two seconds; a caller that must not give up
    (a finished result, a heartbeat) tries again itself.
    """
    return Redis.from_url(
        settings.redis_url,
        decode_responses=True,
        socket_timeout=timeout_seconds,
        socket_connect_timeout=2,
        socket_keepalive=True,
        health_check_interval=15,
        retry=Retry(ExponentialWithJitterBackoff(cap=1, base=0.05), retries),
        retry_on_error=list(TRANSIENT),
    )


def uptime_seconds(redis: Redis) -> float:
    """Return for how long the server has been up; after a restart its clocks and keys are not yet trusted."""
    return float(redis.info("server")["uptime_in_seconds"])


def now(redis: Redis) -> float:
    """Return Redis time in seconds: the only clock that processes compare."""
    seconds, micros = redis.time()
    return float(seconds) + float(micros) / 1e6
