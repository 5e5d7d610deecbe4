"""Where other machines reach this one: found from the way to Redis, not guessed."""

import ipaddress
import socket
from typing import Final
from urllib.parse import urlsplit

import psutil

from exo_celery.errors import ConfigurationError
from exo_celery.settings import Settings

LOOPBACK: Final = "127.0.0.1"
EVERYWHERE: Final = "0.0.0.0"  # noqa: S104  # only where the machine has several addresses; callers must prove the key
REDIS_PORT: Final = 6379


def own_addresses(settings: Settings) -> tuple[str, ...]:
    """Return this machine's addresses for its peers, the one on the way to Redis first.

    With Redis on loopback the cluster is this machine alone, and so is the address.

    Raises:
        ConfigurationError: the name in the Redis URL does not resolve, or there is no route to it.
    """
    if settings.node_host:
        return (settings.node_host,)
    first = way_to_redis(settings.redis_url)
    if is_loopback(first):
        return (LOOPBACK,)
    return (first, *(other for other in lan_addresses() if other != first))


def bind_address(addresses: tuple[str, ...]) -> str:
    """Return where to listen: the one address, or all when there are several."""
    return addresses[0] if len(addresses) == 1 else EVERYWHERE


def way_to_redis(redis_url: str) -> str:
    """Return the address that this machine uses on its way to Redis; nothing is sent.

    Source: connecting a UDP socket only asks the kernel for a route.
    """
    parts = urlsplit(redis_url)
    if not parts.hostname:
        return LOOPBACK  # a Unix socket
    try:
        family, kind, _, _, peer = socket.getaddrinfo(parts.hostname, parts.port or REDIS_PORT, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind) as probe:
            probe.connect(peer)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigurationError(
            f"Redis at {parts.hostname} cannot be reached from here: {error}. Check EXO_REDIS_URL and the network"
        ) from error


def is_loopback(address: str) -> bool:
    """Tell whether an address means this machine only."""
    return ipaddress.ip_address(address.split("%")[0]).is_loopback


def lan_addresses() -> list[str]:
    """Return the IPv4 addresses of the interfaces that are up, loopback and link-local ones left out."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = [
        address.address
        for name, addresses in sorted(psutil.net_if_addrs().items())
        for address in addresses
        if name in up and address.family == socket.AF_INET
    ]
    return [text for text in found if not (is_loopback(text) or ipaddress.ip_address(text).is_link_local)]
