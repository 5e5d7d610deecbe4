"""The doorbell of a node: a small TCP port that peers ring to see whether, and how fast, they reach it.

One frame each way. The caller names both nodes and a nonce and signs them; the answer signs the nonce back. So a
stranger learns nothing, and a foreign program on the port is not taken for a peer.
"""

import hashlib
import hmac
import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from exo_celery.errors import LinkError
from exo_celery.runner.links import Link, hang_up

log = logging.getLogger(__name__)
ANSWER_SECONDS: Final = 2.0
MAX_BYTES: Final = 1024
WAITING_CALLERS: Final = 64


class Bell:
    """Answers rings from the moment it is made; `on_ring` hears who rang."""

    def __init__(self, host: str, node: str, key: bytes, on_ring: Callable[[str], None]) -> None:
        self.node = node
        self.key = key
        self.on_ring = on_ring
        self._sock = socket.create_server((host, 0))
        self._callers = threading.BoundedSemaphore(WAITING_CALLERS)
        self.port: int = self._sock.getsockname()[1]
        threading.Thread(target=self._accept, name="bell", daemon=True).start()

    def close(self) -> None:
        """Answer nobody any more."""
        hang_up(self._sock)
        self._sock.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._sock.accept()
            except OSError:
                return  # closed
            if self._callers.acquire(blocking=False):
                threading.Thread(target=self._answer, args=(sock,), name="bell-answer", daemon=True).start()
            else:
                sock.close()

    def _answer(self, sock: socket.socket) -> None:
        """Answer one ring; a caller that is silent, or does not know the key, is hung up on."""
        link = Link(sock, ANSWER_SECONDS)
        try:
            greeting = bytes(link.receive(MAX_BYTES))
            proof = bytes(link.receive(MAX_BYTES))
            caller = json.loads(greeting)
            if hmac.compare_digest(proof, sign(self.key, b"caller", greeting)) and caller["to"] == self.node:
                link.send(sign(self.key, b"answer", greeting))
                self.on_ring(str(caller["from"]))
        except (LinkError, ValueError, KeyError, TypeError) as error:
            log.debug("a caller at the bell was turned away: %s", error)
        finally:
            link.close()
            self._callers.release()


def ring(address: str, port: int, me: str, peer: str, key: bytes) -> float:
    """Ring a peer's bell and return the seconds until its answer.

    Raises:
        LinkError: nobody answers there, or not with our key.
    """
    started = time.monotonic()
    try:
        sock = socket.create_connection((address, port), timeout=ANSWER_SECONDS)
    except OSError as error:
        raise LinkError(f"{peer} does not answer at {address} port {port}: {error}") from error
    link = Link(sock, ANSWER_SECONDS)
    try:
        greeting = json.dumps({"from": me, "to": peer, "nonce": secrets.token_hex(16)}).encode()
        link.send(greeting)
        link.send(sign(key, b"caller", greeting))
        if not hmac.compare_digest(bytes(link.receive(MAX_BYTES)), sign(key, b"answer", greeting)):
            raise LinkError(f"whoever answers at {address} port {port} is not {peer} or has another cluster secret")
    finally:
        link.close()
    return time.monotonic() - started


def sign(key: bytes, role: bytes, greeting: bytes) -> bytes:
    """Return the proof of one side."""
    return hmac.new(key, b"exo-celery bell 1 " + role + greeting, hashlib.sha256).digest()
