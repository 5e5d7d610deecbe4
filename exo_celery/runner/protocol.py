"""What a runner and its two callers say to each other; wire.py carries it.

The node worker (control) starts, links and stops a runner; a serving worker sends requests. One message is one line.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from exo_celery.records.base import Record
from exo_celery.records.engine import EngineFigures
from exo_celery.records.job import Usage
from exo_celery.records.logprobs import TokenLogprobs
from exo_celery.records.tools import ToolCall


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
    slots: int = Field(32, ge=1, le=256)
    memory_bytes: int = Field(0, ge=0)

    @property
    def is_first(self) -> bool:
        """Say whether this rank owns the requests and holds the first layers."""
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        """Say whether this rank is the last; in a pipeline it holds the last layers, norm and head, and samples."""
        return self.rank == self.world - 1

    @property
    def sliced(self) -> bool:
        """Say whether each rank holds a slice of every layer; rank 0 samples then."""
        return self.sharding == "tensor" and self.world > 1


class GenerateRequest(Record):
    """What a generation asks for: messages or a prompt (text or token ids).

    `tools` are shown to the model, in OpenAI's shape; without `parallel_tool_calls` it calls one of them at most.
    Penalties and biases are OpenAI's, `repetition_penalty` is a factor; `logprobs` is how many alternatives to list.
    Of requests that wait for their first token the one of lowest `priority` goes first, as on the queue.
    """

    model_config = Record.model_config | {"extra": "forbid"}

    messages: tuple[dict[str, Any], ...] | None = None
    prompt: str | tuple[int, ...] | None = None
    tools: tuple[dict[str, Any], ...] = ()
    parallel_tool_calls: bool = True
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
    stop: tuple[Annotated[str, Field(max_length=1000)], ...] = Field((), max_length=16)
    priority: int = Field(0, ge=0, le=9)


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


class Ping(Record):
    """Say `Pong`."""

    type: Literal["ping"] = "ping"


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


class Measured(Record):
    """What the engine has measured so far; told by rank 0 while something happens."""

    type: Literal["measured"] = "measured"
    figures: EngineFigures


class Pong(Record):
    """The process runs: it heard a ping."""

    type: Literal["pong"] = "pong"


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
    """The request was admitted; so many tokens of its prompt were computed already."""

    type: Literal["started"] = "started"
    id: str
    prompt_tokens: int
    cached_tokens: int = 0


class Delta(Record):
    """One step's tokens and what is certain by now, text or calls; each may be empty. Logprobs only where asked for."""

    type: Literal["delta"] = "delta"
    id: str
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()


class Finished(Record):
    """The request is done: `text` is all of it but for `tool_calls`; logprobs only where asked for."""

    type: Literal["finished"] = "finished"
    id: str
    finish_reason: Literal["stop", "length", "tool_calls", "cancelled"]
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    usage: Usage


class Refused(Record):
    """The request cannot be run as it is; the same request will be refused again."""

    type: Literal["refused"] = "refused"
    id: str
    code: str
    message: str
    param: str | None = None


ControlEvent = Loading | Loaded | Ready | Measured | Failed | Exited
Event = Started | Delta | Finished | Refused
Message = (
    Start
    | Link
    | Ping
    | Stop
    | Loading
    | Loaded
    | Ready
    | Measured
    | Pong
    | Failed
    | Generate
    | Cancel
    | Started
    | Delta
    | Finished
    | Refused
)
