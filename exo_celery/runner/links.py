"""Links between neighbouring ranks: authenticated TCP connections that carry frames of bytes.

Handshake, within five seconds: the connector names the ring and itself with a nonce; the acceptor answers with a nonce
and an HMAC-SHA256 of both; the connector proves the key in turn; the acceptor confirms. The frames themselves are in
clear. A ring is formed once and never repaired: whatever goes wrong is a LinkError, and the process ends.
"""

import hashlib
import hmac
import json
import logging
import queue
import secrets
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

from exo_celery.errors import LinkError

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS: Final = 5.0
HANDSHAKE_BYTES: Final = 4096
NONCE_BYTES: Final = 32
# Strangers that may be silent at the same time.
PENDING_HANDSHAKES: Final = 32
# A prefill chunk of 4096 tokens of a 16k wide model in float32 is 256 MiB.
MAX_FRAME_BYTES: Final = 512 * 2**20
LENGTH: Final = struct.Struct("<I")
CONFIRMED: Final = b"welcome"
# A dead host answers nothing; TCP alone would wait for a quarter of an hour.
UNACKNOWLEDGED_MS: Final = 15_000
KEEPALIVE: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


@dataclass(frozen=True)
class Hello:
    """Which link this is: from one rank to the next of one forming of one ring."""

    instance: str
    epoch: int
    from_rank: int
    to_rank: int
    lane: int = 0


class Link:
    """One connection to a neighbour; frames arrive whole and in order.

    `patience_seconds` is how long the neighbour may keep us waiting; None is for ever.
    """

    def __init__(self, sock: socket.socket, patience_seconds: float | None = None) -> None:
        self._sock = sock
        self.patience_seconds = patience_seconds

    @property
    def here(self) -> str:
        """The address of this end."""
        return str(self._sock.getsockname()[0])

    @property
    def there(self) -> str:
        """The address of the neighbour's end."""
        return str(self._sock.getpeername()[0])

    def send(self, frame: bytes | bytearray) -> None:
        """Send a frame.

        Raises:
            LinkError: the neighbour is gone or takes nothing, or the frame is larger than MAX_FRAME_BYTES.
        """
        size = len(frame)
        if size > MAX_FRAME_BYTES:
            raise LinkError(f"a frame of {size} bytes is over the limit of {MAX_FRAME_BYTES}")
        try:
            self._sock.settimeout(self.patience_seconds)
            self._sock.sendall(LENGTH.pack(size))
            self._sock.sendall(frame)
        except OSError as error:
            raise LinkError(f"the link to the next rank broke: {error}") from error

    def receive(self, limit_bytes: int = MAX_FRAME_BYTES) -> bytearray:
        """Wait for a frame.

        Raises:
            LinkError: the neighbour is gone or silent for too long, or the frame is larger than the limit.
        """
        try:
            self._sock.settimeout(self.patience_seconds)
            (size,) = LENGTH.unpack(self._exactly(LENGTH.size))
            if size > limit_bytes:
                raise LinkError(f"the neighbour announced a frame of {size} bytes, the limit is {limit_bytes}")
            return self._exactly(size)
        except OSError as error:
            raise LinkError(f"the link to the previous rank broke: {error}") from error

    def close(self) -> None:
        """Hang up."""
        self._sock.close()

    def _exactly(self, size: int) -> bytearray:
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            received = self._sock.recv_into(view)
            if received == 0:
                raise LinkError("the previous rank hung up")
            view = view[received:]
        return buffer


class Listener:
    """Where the previous rank connects, from the moment it is made. Strangers and silent callers hold nobody up."""

    def __init__(self, host: str, key: bytes, expected: Sequence[Hello]) -> None:
        self._sock = socket.create_server((host, 0))
        self._key, self._expected = key, tuple(expected)
        self._pending = threading.BoundedSemaphore(PENDING_HANDSHAKES)
        self._found: queue.SimpleQueue[tuple[Hello, socket.socket]] = queue.SimpleQueue()
        self.port: int = self._sock.getsockname()[1]
        threading.Thread(target=self._accept, name="links", daemon=True).start()

    def links(self) -> list[Link]:
        """Wait for all expected links, then close the port; return them in the order in which they were expected.

        The deadline is kept by whoever started the ring.
        """
        found: dict[Hello, socket.socket] = {}
        while len(found) < len(self._expected):
            hello, sock = self._found.get()
            found.setdefault(hello, sock)
        self.close()
        return [Link(tuned(found[hello])) for hello in self._expected]

    def close(self) -> None:
        """Close the port."""
        hang_up(self._sock)
        self._sock.close()

    def _accept(self) -> None:
        """Give each caller its own thread."""
        while True:
            try:
                sock, _ = self._sock.accept()
            except OSError:
                return  # closed: the neighbour was found
            if self._pending.acquire(blocking=False):
                threading.Thread(target=self._welcome, args=(sock,), name="handshake", daemon=True).start()
            else:
                sock.close()

    def _welcome(self, sock: socket.socket) -> None:
        try:
            self._found.put((answer_handshake(sock, self._key, self._expected), sock))
        except LinkError as error:
            log.warning("a caller at port %d was turned away: %s", self.port, error.message)
            sock.close()
        finally:
            self._pending.release()


def connect(address: str, key: bytes, hello: Hello) -> Link:
    """Connect to the next rank and prove the key to each other.

    Raises:
        LinkError: nobody listens there, or it does not know the key or the ring.
    """
    host, _, port = address.rpartition(":")
    try:
        sock = socket.create_connection((host.strip("[]"), int(port)), timeout=HANDSHAKE_SECONDS)
    except (OSError, ValueError) as error:
        raise LinkError(f"rank {hello.to_rank} cannot be reached at {address}: {error}") from error
    link = Link(sock, HANDSHAKE_SECONDS)
    try:
        greeting = json.dumps(asdict(hello) | {"nonce": secrets.token_hex(NONCE_BYTES)}).encode()
        link.send(greeting)
        answer = bytes(link.receive(HANDSHAKE_BYTES))
        nonce, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        if not hmac.compare_digest(proof, sign(key, b"acceptor", greeting, nonce)):
            raise LinkError(f"whoever listens at {address} does not know this ring's key")
        link.send(sign(key, b"connector", greeting, nonce))
        if link.receive(HANDSHAKE_BYTES) != CONFIRMED:
            raise LinkError(f"{address} refused the link")
    except LinkError:
        sock.close()
        raise
    return Link(tuned(sock))


def answer_handshake(sock: socket.socket, key: bytes, expected: Sequence[Hello]) -> Hello:
    """Let a caller prove that it is the neighbour we wait for; return which link it is.

    Raises:
        LinkError: it is not, or it took longer than five seconds.
    """
    link = Link(sock, HANDSHAKE_SECONDS)
    # One timer for the whole handshake: a caller that sends a byte now and then gains nothing.
    deadline = threading.Timer(HANDSHAKE_SECONDS, hang_up, (sock,))
    deadline.daemon = True
    deadline.start()
    try:
        greeting = bytes(link.receive(HANDSHAKE_BYTES))
        nonce = secrets.token_bytes(NONCE_BYTES)
        link.send(nonce + sign(key, b"acceptor", greeting, nonce))
        proof = bytes(link.receive(HANDSHAKE_BYTES))
        if not hmac.compare_digest(proof, sign(key, b"connector", greeting, nonce)):
            raise LinkError("the caller does not know this ring's key")
        hello = next((each for each in expected if names(greeting, each)), None)
        if hello is None:
            raise LinkError("the caller belongs to another ring or rank")
        link.send(CONFIRMED)
        return hello
    finally:
        deadline.cancel()


def hang_up(sock: socket.socket) -> None:
    """Wake whoever waits on a socket: it reads the end of the stream."""
    with suppress(OSError):  # the other side was faster
        sock.shutdown(socket.SHUT_RDWR)


def sign(key: bytes, role: bytes, greeting: bytes, nonce: bytes) -> bytes:
    """Return the proof of one side: the role keeps an answer from being played back as the other side's."""
    return hmac.new(key, b"exo-celery ring 1 " + role + nonce + greeting, hashlib.sha256).digest()


def names(greeting: bytes, expected: Hello) -> bool:
    """Say whether a greeting (proved already) names the expected link."""
    return {k: v for k, v in json.loads(greeting).items() if k != "nonce"} == asdict(expected)


def tuned(sock: socket.socket) -> socket.socket:
    """Set a link's socket: send at once, notice a dead host."""
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # macOS names one of them differently
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
    return sock
