"""What a runner and its two callers say to each other: JSON lines over a Unix socket, versioned and bounded.

The node worker (control) starts, links and stops a runner; a serving worker sends requests. One message is one line.
"""

import json
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from exo_celery.errors import InvalidRequestError, RunnerError
from exo_celery.records.base import Record
from exo_celery.records.job import Usage

VERSION: Final = 1
# A prompt of a million tokens fits; a line without an end does not fill the memory.
MAX_LINE_BYTES: Final = 16 * 2**20


class ShardSpec(Record):
    """What one rank of a ring shall hold: layers `[start_layer, end_layer)` of `n_layers`.

    `threads` is the number of BLAS threads, 0 means every core this process may use. `memory_bytes` is what weights
    may fill, 0 means what the machine has free.
    """

    instance: str
    epoch: int = Field(ge=0)
    rank: int = Field(ge=0)
    world: int = Field(ge=1)
    model_dir: Path
    start_layer: int = Field(ge=0)
    end_layer: int = Field(ge=1)
    n_layers: int = Field(ge=1)
    sharding: Literal["pipeline", "tensor"] = "pipeline"
    host: str = "127.0.0.1"
    threads: int = Field(0, ge=0)
    slots: int = Field(16, ge=1, le=256)
    memory_bytes: int = Field(0, ge=0)

    @property
    def is_first(self) -> bool:
        """Say whether this rank owns the requests and holds the first layers."""
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        """Say whether this rank holds the last layers, norm and head, and samples."""
        return self.rank == self.world - 1


class GenerateRequest(Record):
    """What a generation asks for: messages or a prompt (text or token ids).

    Penalties and biases are OpenAI's, `repetition_penalty` is a factor; `logprobs` is how many alternatives to list.
    """

    model_config = Record.model_config | {"extra": "forbid"}

    messages: tuple[dict[str, Any], ...] | None = None
    prompt: str | tuple[int, ...] | None = None
    max_tokens: int = Field(256, ge=1)
    temperature: float = Field(0.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    min_p: float = Field(0.0, ge=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, gt=0, le=10)
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] = Field(default_factory=dict, max_length=1024)
    logprobs: int | None = Field(None, ge=0, le=20)
    seed: int | None = Field(None, ge=0, lt=2**63)
    stop: tuple[str, ...] = Field((), max_length=16)


# From the parent.


class Start(Record):
    """Load this shard. The ring key (hex) authenticates the links to the neighbours."""

    type: Literal["start"] = "start"
    spec: ShardSpec
    ring_key: str


class Link(Record):
    """All ranks are loaded: form the ring. `peers` are the addresses `host:port` of all ranks, in rank order."""

    type: Literal["link"] = "link"
    peers: tuple[str, ...]


class Stop(Record):
    """Exit now."""

    type: Literal["stop"] = "stop"


# To the parent.


class Loading(Record):
    """So many of the shard's layers are in memory."""

    type: Literal["loading"] = "loading"
    layers: int
    total_layers: int


class Loaded(Record):
    """The shard is in memory; the previous rank may connect to `port`."""

    type: Literal["loaded"] = "loaded"
    port: int
    weights_bytes: int


class Ready(Record):
    """The ring has run its first step; `slots` requests may be in flight at once."""

    type: Literal["ready"] = "ready"
    slots: int
    context_length: int


class Failed(Record):
    """The runner gives up and exits."""

    type: Literal["failed"] = "failed"
    code: str
    message: str


class Exited(Record):
    """The process has ended. Never on the wire: the parent sees it."""

    type: Literal["exited"] = "exited"
    returncode: int


# From a serving worker.


class Generate(Record):
    """Run this request."""

    type: Literal["generate"] = "generate"
    id: str
    request: GenerateRequest


class Cancel(Record):
    """Give up this request and free its slot."""

    type: Literal["cancel"] = "cancel"
    id: str


# To a serving worker.


class Started(Record):
    """The request was admitted."""

    type: Literal["started"] = "started"
    id: str
    prompt_tokens: int


class Candidate(Record):
    """A token, spelled, with its log probability."""

    token_id: int
    token: str
    logprob: float


class TokenLogprobs(Candidate):
    """A chosen token, with the likeliest at its place."""

    top: tuple[Candidate, ...] = ()


class Delta(Record):
    """One step's tokens and the text that is certain by now; either may be empty. Logprobs only where asked for."""

    type: Literal["delta"] = "delta"
    id: str
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


class Finished(Record):
    """The request is done: `text` is all of it, finish_reason `stop`, `length` or `cancelled`."""

    type: Literal["finished"] = "finished"
    id: str
    finish_reason: Literal["stop", "length", "cancelled"]
    text: str
    usage: Usage


class Refused(Record):
    """The request cannot be run as it is; the same request will be refused again."""

    type: Literal["refused"] = "refused"
    id: str
    code: str
    message: str
    param: str | None = None


ControlEvent = Loading | Loaded | Ready | Failed | Exited
Event = Started | Delta | Finished | Refused
Message = (
    Start | Link | Stop | Loading | Loaded | Ready | Failed | Generate | Cancel | Started | Delta | Finished | Refused
)
MESSAGE: Final[TypeAdapter[Message]] = TypeAdapter(Annotated[Message, Field(discriminator="type")])


def encode(message: Message) -> bytes:
    """Return a message as its line.

    Raises:
        InvalidRequestError: the line would be longer than MAX_LINE_BYTES.
    """
    body = message.model_dump_json(exclude_defaults=False)
    line = f'{{"v":{VERSION},{body[1:]}\n'.encode()
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
        fields = json.loads(line)
        version = fields.pop("v", None) if isinstance(fields, dict) else None
        if version != VERSION:
            raise RunnerError(f"the other side speaks version {version} of the runner protocol, not {VERSION}")
        return MESSAGE.validate_python(fields)
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
        self.send_line(encode(message))

    def send_line(self, line: bytes) -> None:
        """Write a message that is encoded already."""
        try:
            with self._sending:
                self._sock.sendall(line)
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
