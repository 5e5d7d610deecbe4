"""One webhook: a signed POST that tells the end of a job, to an address that a stranger may have chosen.

Signed as https://www.standardwebhooks.com describes it: `webhook-signature: v1,<base64>` is HMAC-SHA256 over
`<webhook-id>.<webhook-timestamp>.<body>`. Links to this network's own devices and to cloud metadata are never followed;
redirects neither.
"""

import base64
import hashlib
import hmac
import http.client
import ipaddress
import json
import socket
import ssl
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import truststore

from exo_celery.records.job import Job

TIMEOUT_SECONDS: Final = 10.0
# Seconds before each try; after the last the webhook is given up.
PAUSES: Final = (0, 5, 30, 120, 600, 1800, 7200, 21_600, 43_200)
METADATA: Final = frozenset({ipaddress.ip_address("100.100.100.200"), ipaddress.ip_address("fd00:ec2::254")})
PREFIX: Final = "whsec_"


class ForbiddenAddressError(OSError):
    """The URL leads where no webhook may go."""


def post(job: Job, key: bytes, now: int) -> str | None:
    """Tell the end of a job; None when it was taken, else what went wrong."""
    body = json.dumps(message(job), ensure_ascii=False).encode()
    sent_as = f"{job.id}.{job.attempt}.{job.state}"
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "exo_celery",
        "webhook-id": sent_as,
        "webhook-timestamp": str(now),
        "webhook-signature": f"v1,{signature(key, sent_as, now, body)}",
    }
    parts = urlsplit(job.webhook)
    try:
        connection = connect(parts, local=not job.owner)
        try:
            connection.request("POST", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), body, headers)
            status = connection.getresponse().status
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{parts.hostname}: {error or type(error).__name__}"
    return None if 200 <= status < 300 else f"{parts.hostname} answered {status}"


def message(job: Job) -> dict[str, Any]:
    """Return what is told: the end, without prompt and text, which their owner reads at `GET /api/jobs/<id>`."""
    told = job.model_dump(mode="json", include={"id", "model", "state", "finish_reason", "usage", "error", "attempt"})
    return {"type": f"job.{job.state}", "timestamp": job.finished_at, "data": told}


def signature(key: bytes, sent_as: str, now: int, body: bytes) -> str:
    """Return the base64 signature of one message."""
    signed = f"{sent_as}.{now}.".encode() + body
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def shown(key: bytes) -> str:
    """Return the key as receivers configure it."""
    return PREFIX + base64.b64encode(key).decode()


def connect(parts: SplitResult, *, local: bool) -> http.client.HTTPConnection:
    """Return a connection to the address that was checked, whatever the name leads to a moment later.

    Raises:
        ForbiddenAddressError: see `forbidden`; `local` allows this machine.
        OSError: it cannot be reached.
        ValueError: the URL has no host, or no port that is one.
    """
    tls = parts.scheme == "https"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{parts.geturl()[:100]!r} is not a http:// or https:// address")
    port = parts.port or (443 if tls else 80)
    address = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)[0][4][0]
    if why := forbidden(str(address), local=local):
        raise ForbiddenAddressError(f"{address} is {why}: no webhook goes there")
    wire: socket.socket = socket.create_connection((str(address), port), timeout=TIMEOUT_SECONDS)
    if tls:
        wire = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_socket(wire, server_hostname=parts.hostname)
    connection = http.client.HTTPConnection(parts.hostname, port, timeout=TIMEOUT_SECONDS)
    connection.sock = wire
    return connection


def forbidden(address: str, *, local: bool) -> str | None:
    """Return why no webhook goes to an address, or None. PURE."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    if ip.is_link_local or ip in METADATA:
        return "link-local or a metadata service"
    if ip.is_multicast or ip.is_unspecified or (ip.is_reserved and not ip.is_loopback):
        return "not one machine's address"
    if ip.is_loopback and not local:
        return "this machine, where only its own users may send webhooks"
    return None
