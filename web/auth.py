"""The one guard in front of every route.

Always: the Host must be one we allow (else a web page could reach us by rebinding its name), and a write that tells
where it comes from must come from our own pages. Then a request brings an API key, or a browser its session, or it
comes straight from this machine, whose own users need no key: the peer must be loopback, and no proxy may have passed
the request on (its peer would be the proxy). Nobody else is let in.
"""

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from flask import Flask, Response, redirect, request
from werkzeug.datastructures import Headers

from exo_celery import access as keys
from exo_celery.errors import AccessError, InvalidKeyError
from exo_celery.records.access import AccessKey, Scope
from exo_celery.settings import Settings
from web import access
from web.context import the_cluster
from web.pages import check_token

OPEN_PATHS: Final = frozenset({"/healthz"})  # says that the process lives, and nothing else
PUBLIC: Final = ("/login", "/static/")  # what a browser needs before it has a session
READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
FORWARDING: Final = ("forwarded", "via", "x-real-ip")
SESSION: Final = "exo_session"
BEARER: Final = "bearer "
# The first that fits says which scope a path needs, None any; whatever is not listed is for admins.
SCOPES: Final[tuple[tuple[str, Scope | None], ...]] = (
    ("/v1/files", Scope.SUBMIT),
    ("/v1/batches", Scope.SUBMIT),
    ("/v1/models", None),
    ("/v1/", Scope.INFER),
    ("/api/jobs", Scope.SUBMIT),
    ("/openapi.json", None),
    ("/readyz", None),
)


def install(app: Flask, settings: Settings) -> None:
    """Guard all routes of the application, those that do not exist included."""

    def guard() -> Response | None:
        if request.path in OPEN_PATHS:
            return None
        check_origin(request.method, request.headers, settings.allowed_hosts)
        key = key_of_request()
        access.set_caller(key)
        if key:
            check_scope(key, request.path)
            return None
        if request.path.startswith(PUBLIC):
            return None
        return stranger(settings)

    app.before_request(guard)


def key_of_request() -> AccessKey | None:
    """Return the key that the request brings, in its header or through its session; None for none.

    Raises:
        InvalidKeyError: it is unknown, revoked or expired; a local client may send any while there are no keys.
        RateLimitError: it has used up its requests of this minute.
        AccessError: a session's write without the token of our pages.
    """
    sent = request.headers.get("Authorization", "")
    if sent.lower().startswith(BEARER):
        return keys.admit(the_cluster(), sent[len(BEARER) :].strip())
    session = request.cookies.get(SESSION)
    key = keys.of_session(the_cluster(), session) if session else None
    if key and request.method not in READS and not request.path.startswith(PUBLIC):
        check_token()
    return key


def stranger(settings: Settings) -> Response | None:
    """Let in a request without a key, send a browser to log in, or raise.

    Raises:
        InvalidKeyError: a key is needed.
        AccessError: it does not come straight from this machine, and there are no keys that it could bring.
    """
    try:
        check_local(request.remote_addr, request.headers)
    except AccessError as refusal:
        if not keys.keys_exist(the_cluster()):
            raise
        return ask_for_key(refusal.message)
    return ask_for_key("EXO_REQUIRE_KEY is set") if settings.require_key else None


def ask_for_key(why: str) -> Response:
    """Send a browser that wants a page to log in.

    Raises:
        InvalidKeyError: for everybody else.
    """
    if request.method == "GET" and request.accept_mimetypes.best == "text/html":
        return redirect("/login", 303)  # type: ignore[return-value]  # werkzeug's own response
    raise InvalidKeyError(f"an API key is needed (Authorization: Bearer sk-exo-…): {why}")


def check_scope(key: AccessKey, path: str) -> None:
    """Let a key do what it is for.

    Raises:
        AccessError: it is for something else.
    """
    needed = next((scope for prefix, scope in SCOPES if path.startswith(prefix)), Scope.ADMIN)
    if not (key.is_admin or needed is None or needed in key.scopes):
        raise AccessError(f"key {key.name!r} is for {keys.names(key.scopes)}; {path[:100]} needs {needed}")


def check_origin(method: str, headers: Headers, allowed_hosts: tuple[str, ...]) -> None:
    """Let a request pass that was meant for us by its user.

    Raises:
        AccessError: its Host is none of ours, or it is a write from a page that is not ours.
    """
    host = headers.get("Host", "")
    if host_name(host) not in {name.lower() for name in allowed_hosts}:
        raise AccessError(
            f"Host {host[:100]!r} is not allowed; allowed: {', '.join(allowed_hosts)} (set EXO_ALLOWED_HOSTS)"
        )
    origin = headers.get("Origin")
    if method not in READS and origin is not None and urlsplit(origin).netloc.lower() != host.lower():
        raise AccessError(f"a page of {origin[:100]!r} may not write here; only our own pages at {host!r} may")


def check_local(peer: str | None, headers: Headers) -> None:
    """Let a request pass that comes straight from this machine.

    Raises:
        AccessError: it comes from elsewhere.
    """
    if not is_loopback(peer):
        raise AccessError(f"without an API key only this machine is let in; the request came from {peer or 'nowhere'}")
    if passed_on := sorted(name for name in headers.keys() if is_forwarding(name)):  # noqa: SIM118
        raise AccessError(f"without an API key no proxy is let in; the request carries {', '.join(passed_on)}")


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
