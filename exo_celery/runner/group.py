"""The ranks' group for sums: MLX's ring, formed with the help of our own links.

MLX's ring authenticates nobody, takes the first caller at a rank's port, and never gives up waiting. So the ports are
told over the authenticated links, each rank listens only at the address at which the rank before reached it, and before
the first step both ends of each connection are compared over the links: a stranger who was faster is found out. What
passes is in clear, as on our links. Whoever loses a link ends its process, and with it any sum that waits for a peer.
"""

import json
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import mlx.core as mx

from exo_celery.errors import LinkError, RunnerError
from exo_celery.runner.links import Link
from exo_celery.runner.protocol import ShardSpec
from exo_celery.runner.ring import Incoming, Neighbours

MESSAGE_BYTES: Final = 4096
FORM_SECONDS: Final = 30  # a rank that finds nobody gives up after 31
Address = tuple[str, int]


@dataclass(frozen=True)
class Group:
    """A formed group, and the links beside it: steps come in from the rank before and go out to the rank after."""

    sums: mx.distributed.Group
    before: Incoming
    after: Link


def form(
    spec: ShardSpec, neighbours: Neighbours, computes_in: mx.Dtype, on_broken: Callable[[LinkError], None]
) -> Group:
    """Form the group; once per process, as MLX has it.

    Raises:
        LinkError: a neighbour is gone, or somebody else took its place.
        RunnerError: the rank before computes in other numbers, or MLX's ring cannot be formed here.
    """
    before, after = neighbours.before, neighbours.after
    if before is None or after is None:
        raise RunnerError("a ring of one has nobody to add up with")
    incoming = Incoming(before, on_broken)
    known = open_files()
    with reserved(before.here) as port:
        before.send(json.dumps(port).encode())
        following = (after.there, json.loads(after.receive(MESSAGE_BYTES)))
        sums = connect(spec, (before.here, port), following)
    left, right = ends(open_files() - known, port)
    after.send(json.dumps({"end": right, "dtype": str(computes_in)}).encode())
    told = json.loads(incoming.next(None))
    if told["end"] != list(left):
        raise LinkError(f"a stranger connected to rank {spec.rank}'s port {port}: expected {told['end']}, found {left}")
    if told["dtype"] != str(computes_in):
        raise RunnerError(
            f"rank {spec.rank} computes in {computes_in}, the rank before it in {told['dtype']}: a tensor ring needs "
            "nodes of one kind"
        )
    return Group(sums, incoming, after)


@contextmanager
def reserved(host: str) -> Iterator[int]:
    """Hold a free port at an address until MLX has listened there: nobody is given it meanwhile, nor can call it.

    Raises:
        RunnerError: MLX's ring cannot use such an address.
    """
    if ":" in host:
        raise RunnerError(f"MLX's ring speaks IPv4 only, and the ranks know this node by {host}: set EXO_NODE_HOST")
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # MLX binds the same port
        held.bind((host, 0))
        yield held.getsockname()[1]


def connect(spec: ShardSpec, mine: Address, following: Address) -> mx.distributed.Group:
    """Let MLX connect to the next rank and wait for the one before; of the others it only needs the number.

    Raises:
        RunnerError: MLX cannot form its ring.
    """
    hosts = [[written(mine)]] * spec.world
    hosts[(spec.rank + 1) % spec.world] = [written(following)]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(hosts, file)
        file.flush()
        os.environ |= {"MLX_HOSTFILE": file.name, "MLX_RANK": str(spec.rank)}
        # MLX waits for ever with Python's lock held, so that no thread of ours could give up: the kernel does.
        signal.alarm(FORM_SECONDS)
        try:
            return mx.distributed.init(strict=True, backend="ring")
        except RuntimeError as error:
            raise RunnerError(f"MLX's ring cannot be formed between {mine} and {following}: {error}") from error
        finally:
            signal.alarm(0)


def written(address: Address) -> str:
    """Return an address as MLX's host file has it."""
    return f"{address[0]}:{address[1]}"


def open_files() -> set[int]:
    """Return this process's file descriptors."""
    return {int(name) for name in os.listdir("/dev/fd")}


def ends(files: set[int], port: int) -> tuple[Address, Address]:
    """Return who called at our port, and from where we called the next rank, among freshly opened descriptors.

    Raises:
        LinkError: MLX's connections are not both there.
    """
    caller = own = None
    for file in files:
        with suppress(OSError), socket.socket(fileno=os.dup(file)) as connection:  # others are no connected sockets
            here, there = connection.getsockname(), connection.getpeername()
            if here[1] == port:
                caller = there
            else:
                own = here
    if caller is None or own is None:
        raise LinkError("MLX's ring has no connection to both neighbours")
    return caller[:2], own[:2]
