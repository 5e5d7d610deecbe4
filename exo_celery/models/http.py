"""Streaming GET over HTTP(S): what a download needs of a client, on the standard library.

A wait inside ends at once when it is stopped (its socket is shut down); a credential never follows a redirect to
another origin, while Range does; the system's proxies are honoured.
"""

import http.client
import socket
import ssl
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from functools import cache, partial
from typing import Final
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

import truststore

from exo_celery.errors import DownloadError, DownloadInterruptedError
from exo_celery.models.stop import Stop

CONNECT_SECONDS: Final = 10.0
SILENCE_SECONDS: Final = 30.0  # without a byte; then the connection counts as dead
MAX_REDIRECTS: Final = 5
READ_BYTES: Final = 1 << 20
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
USER_AGENT: Final = "exo_celery"


@dataclass(frozen=True)
class Answer:
    """An answer whose body has not been read yet. `url` is where redirects led."""

    url: str
    status: int
    headers: Message
    response: http.client.HTTPResponse

    def chunks(self) -> Iterator[bytes]:
        """Yield the body as it arrives; it may end early.

        Raises:
            DownloadInterruptedError: nothing arrives any more.
        """
        with told(self.url):
            while chunk := self.response.read1(READ_BYTES):
                yield chunk

    def body(self, most: int) -> bytes:
        """Return the body, or as much of it as is allowed."""
        with told(self.url):
            return self.response.read(most)


@contextmanager
def get(url: str, headers: Mapping[str, str], stop: Stop, *, proxied: bool = True) -> Iterator[Answer]:
    """Ask for a URL and follow redirects; whatever the status, the answer is the caller's to judge.

    Raises:
        DownloadCancelledError: `stop` was set.
        DownloadInterruptedError: the other side cannot be reached, or does not answer.
        DownloadError: the URL, or one that it redirects to, is not HTTP; or there is no end of redirects.
    """
    sent = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity", **headers}
    for _ in range(MAX_REDIRECTS + 1):
        stop.check()
        with request(url, sent, stop, proxied) as answer:
            onward = urljoin(url, answer.headers["Location"] or "")
            if answer.status not in REDIRECTS or not answer.headers["Location"]:
                yield answer
                return
        if origin(onward) != origin(url):
            sent = {name: value for name, value in sent.items() if name.lower() != "authorization"}
        url = onward
    raise DownloadError(f"{url}: more than {MAX_REDIRECTS} redirects")


@contextmanager
def request(url: str, headers: Mapping[str, str], stop: Stop, proxied: bool) -> Iterator[Answer]:
    """Ask one server once, over a connection of its own: a stop then cuts off nobody else."""
    with told(url):
        connection, target = connect(url, proxied)
    # Held here because the connection lets go of it as soon as the answer's end is known to be its own.
    wire = connection.sock
    try:
        with stop.calling(partial(cut_off, wire)):
            with told(url):
                connection.request("GET", target, headers=headers)
                response = connection.getresponse()
            with response:
                yield Answer(url, response.status, response.headers, response)
    except DownloadInterruptedError:
        stop.check()  # our own cut looks like a broken connection
        raise
    finally:
        connection.close()


@contextmanager
def told(url: str) -> Iterator[None]:
    """Turn what goes wrong on the way into one error that names the other side."""
    where = urlsplit(url).netloc.rpartition("@")[2]
    try:
        yield
    except TimeoutError as error:
        raise DownloadInterruptedError(f"{where} does not answer: {error}") from error
    except (OSError, http.client.HTTPException) as error:
        raise DownloadInterruptedError(f"{where} cannot be reached: {error or type(error).__name__}") from error


def connect(url: str, proxied: bool) -> tuple[http.client.HTTPConnection, str]:
    """Return a connection towards a URL, and the target that is to be requested on it."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise DownloadError(f"{url!r} is not a http:// or https:// address")
    proxy = proxy_of(parts) if proxied else None
    via = proxy or parts
    assert via.hostname
    tls = parts.scheme == "https"
    connection: http.client.HTTPConnection
    if tls:
        port = via.port or (80 if proxy else 443)
        connection = http.client.HTTPSConnection(via.hostname, port, timeout=CONNECT_SECONDS, context=trust())
    else:
        connection = http.client.HTTPConnection(via.hostname, via.port or 80, timeout=CONNECT_SECONDS)
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    if proxy and tls:
        connection.set_tunnel(parts.hostname, parts.port or 443, headers=proxy_login(proxy))
    connection.connect()
    connection.sock.settimeout(SILENCE_SECONDS)
    return connection, url if proxy and not tls else path


def cut_off(wire: socket.socket) -> None:
    """Wake whoever waits for bytes on a socket."""
    with suppress(OSError):
        # The plain socket's way: that of TLS takes the session away from the thread that is reading it.
        socket.socket.shutdown(wire, socket.SHUT_RDWR)


def origin(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port: what a credential was given for."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def proxy_of(parts: SplitResult) -> SplitResult | None:
    """Return the proxy that the system wants used for a URL, if any."""
    address = urllib.request.getproxies().get(parts.scheme)
    host = parts.hostname or ""
    if not address or host == "localhost" or host.startswith("127.") or urllib.request.proxy_bypass(host):
        return None
    proxy = urlsplit(address if "//" in address else f"http://{address}")
    return proxy if proxy.hostname else None


def proxy_login(proxy: SplitResult) -> dict[str, str]:
    """Return the header that carries a proxy's user and password."""
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": "Basic " + b64encode(pair.encode()).decode()}


@cache
def trust() -> ssl.SSLContext:
    """Return whom to trust: the authorities of the operating system, on macOS too."""
    return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
