"""The one guard in front of every route.

While no keys are configured the machine's own users are let in and nobody else: the peer must be loopback, the Host
one we allow (else a web page could reach us by rebinding its name), and no proxy may have passed the request on (its
peer would be the proxy). A browser tells where a write comes from; it must come from our own pages.
"""

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from flask import Flask, request
from werkzeug.datastructures import Headers

from exo_celery.errors import AccessError
from exo_celery.settings import Settings

OPEN_PATHS: Final = frozenset({"/healthz"})  # says that the process lives, and nothing else
READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
FORWARDING: Final = ("forwarded", "via", "x-real-ip")


def install(app: Flask, settings: Settings) -> None:
    """Guard all routes of the application, those that do not exist included."""

    def guard() -> None:
        if request.path not in OPEN_PATHS:
            check(request.remote_addr, request.method, request.headers, settings.allowed_hosts)

    app.before_request(guard)


def check(peer: str | None, method: str, headers: Headers, allowed_hosts: tuple[str, ...]) -> None:
    """Let a request in, or raise.

    Raises:
        AccessError: it does not come from this machine, or may not have been meant by its user.
    """
    if not is_loopback(peer):
        raise AccessError(
            f"no API key is configured, so only this machine is let in; the request came from {peer or 'nowhere'}"
        )
    host = headers.get("Host", "")
    if host_name(host) not in {name.lower() for name in allowed_hosts}:
        raise AccessError(
            f"Host {host[:100]!r} is not allowed; allowed: {', '.join(allowed_hosts)} (set EXO_ALLOWED_HOSTS)"
        )
    if passed_on := sorted(name for name in headers.keys() if is_forwarding(name)):  # noqa: SIM118
        raise AccessError(
            f"no API key is configured, so no proxy is let in; the request carries {', '.join(passed_on)}"
        )
    origin = headers.get("Origin")
    if method not in READS and origin is not None and urlsplit(origin).netloc.lower() != host.lower():
        raise AccessError(f"a page of {origin[:100]!r} may not write here; only our own pages at {host!r} may")


def is_loopback(peer: str | None) -> bool:
    """Tell whether a peer's address is this machine's loopback, also when IPv4 is written as IPv6."""
    try:
        address = ipaddress.ip_address(peer or "")
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def host_name(host: str) -> str:
    """Return a Host header without its port; an IPv6 address keeps its brackets."""
    name, colon, port = host.rpartition(":")
    return (name if colon and (port.isdigit() or not port) else host).lower()


def is_forwarding(name: str) -> bool:
    """Tell whether a header says that somebody passed the request on."""
    return name.lower() in FORWARDING or name.lower().startswith("x-forwarded")
