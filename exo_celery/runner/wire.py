"""How messages travel: JSON lines over a Unix socket, versioned and bounded."""

import json
import socket
import threading
from contextlib import suppress
from typing import Annotated, Final

from pydantic import Field, TypeAdapter, ValidationError

from exo_celery.errors import InvalidRequestError, RunnerError
from exo_celery.runner.protocol import Message

VERSION: Final = 2
OPENING: Final = f'{{"v":{VERSION},'.encode()  # every line begins so
# A prompt of a million tokens fits; a line without an end does not fill the memory.
MAX_LINE_BYTES: Final = 16 * 2**20

MESSAGE: Final[TypeAdapter[Message]] = TypeAdapter(Annotated[Message, Field(discriminator="type")])


def encode(message: Message) -> bytes:
    """Return a message as its line.

    Raises:
        InvalidRequestError: the line would be longer than MAX_LINE_BYTES.
    """
    body = message.model_dump_json(exclude_defaults=False)
    line = OPENING + body[1:].encode() + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise InvalidRequestError(
            f"the request is {len(line)} bytes long, at most {MAX_LINE_BYTES} are taken: shorten it"
        )
    return line


def decode(line: bytes) -> Message:
    """Read a line.

    Raises:
        RunnerError: it is not a message of this version.
    """
    try:
        if not line.startswith(OPENING):
            fields = json.loads(line)
            version = fields.get("v") if isinstance(fields, dict) else None
            raise RunnerError(f"the other side speaks version {version} of the runner protocol, not {VERSION}")
        return MESSAGE.validate_json(line)
    except (ValueError, ValidationError) as error:
        raise RunnerError(f"not a message of the runner protocol: {line[:200]!r}") from error


class Connection:
    """One side of a socket that carries messages. `send` may be called by several threads, `receive` by one."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lines = sock.makefile("rb")
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Write a message.

        Raises:
            InvalidRequestError: it is too long.
            RunnerError: the other side is gone.
        """
        self.send_lines(encode(message))

    def send_lines(self, lines: bytes) -> None:
        """Write messages that are encoded already."""
        try:
            with self._sending:
                self._sock.sendall(lines)
        except OSError as error:
            raise RunnerError(f"the other side of the runner's socket is gone: {error}") from error

    def receive(self) -> Message | None:
        """Wait for the next message; None when the other side is gone.

        Raises:
            RunnerError: what came is not a message, or is longer than MAX_LINE_BYTES.
        """
        try:
            line = self._lines.readline(MAX_LINE_BYTES + 1)
        except (OSError, ValueError):
            line = b""
        if len(line) > MAX_LINE_BYTES:
            raise RunnerError(f"a message of the runner protocol is longer than {MAX_LINE_BYTES} bytes")
        if line.endswith(b"\n"):
            return decode(line)
        self._lines.close()
        return None

    def close(self) -> None:
        """End the connection; a thread that waits in `receive` gets None."""
        with suppress(OSError):  # the other side was faster
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
