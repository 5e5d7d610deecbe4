"""Forming a group for sums: who is at the other end of MLX's connections is proved over our links."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from exo_celery.errors import LinkError, RunnerError
from exo_celery.runner import group
from exo_celery.runner.group import Address, form, reserved
from exo_celery.runner.links import Link
from exo_celery.runner.protocol import ShardSpec
from exo_celery.runner.ring import Neighbours

HOST = "127.0.0.1"
SPEC = ShardSpec(
    instance="i", epoch=1, rank=0, world=2, model_dir=Path(), start_layer=0, end_layer=2, n_layers=2, sharding="tensor"
)


def pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection."""
    with socket.create_server((HOST, 0)) as server:
        return socket.create_connection(server.getsockname()), server.accept()[0]


class Other:
    """The only other rank: it is before and after us, and connects to us over `mlx`."""

    def __init__(self) -> None:
        self.opened: list[socket.socket] = []
        ends = [*pair(), *pair()]
        self.opened += ends
        self.neighbours = Neighbours(before=Link(ends[0]), after=Link(ends[2]))
        self.as_before, self.as_after = Link(ends[1]), Link(ends[3])
        self.listening = socket.create_server((HOST, 0))
        self.opened.append(self.listening)
        self.end: tuple[str, int] = ("", 0)

    def mlx(self, spec: ShardSpec, mine: Address, following: Address) -> mx.distributed.Group:
        """Do what MLX does: be called by the rank before, call the next one."""
        assert following == (HOST, self.listening.getsockname()[1])
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind(mine)
            server.listen()
            calling = socket.create_connection(mine)
            self.opened += [calling, server.accept()[0], socket.create_connection(following)]
        self.end = self.end if self.end[1] else calling.getsockname()
        return mx.distributed.init(strict=False, backend="ring")

    def play(self, dtype: str = "mlx.core.float32") -> None:
        """Say over the links what a rank says."""
        self.as_after.send(json.dumps(self.listening.getsockname()[1]).encode())
        json.loads(self.as_before.receive())
        json.loads(self.as_after.receive())
        self.as_before.send(json.dumps({"end": self.end, "dtype": dtype}).encode())


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[Other]:
    made = Other()
    monkeypatch.setattr(group, "connect", made.mlx)
    yield made
    for each in made.opened:
        each.close()


def formed(other: Other, **said: str) -> group.Group:
    thread = threading.Thread(target=other.play, kwargs=said)
    thread.start()
    try:
        return form(SPEC, other.neighbours, mx.float32, lambda _: None)
    finally:
        thread.join()


def test_a_group_forms_where_both_ends_agree(other: Other) -> None:
    assert formed(other).sums.size() == 1


def test_a_stranger_in_a_neighbours_place_is_found_out(other: Other) -> None:
    other.end = (HOST, 9)
    with pytest.raises(LinkError, match="a stranger connected to rank 0's port"):
        formed(other)


def test_ranks_that_compute_in_other_numbers_are_refused(other: Other) -> None:
    with pytest.raises(RunnerError, match=r"float32, the rank before it in mlx.core.bfloat16: .* nodes of one kind"):
        formed(other, dtype="mlx.core.bfloat16")


def test_a_connection_that_is_missing_is_told(other: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "connect", lambda *_: mx.distributed.init(strict=False, backend="ring"))
    other.as_after.send(b"1")
    with pytest.raises(LinkError, match="no connection to both neighbours"):
        form(SPEC, other.neighbours, mx.float32, lambda _: None)


def test_a_reserved_port_takes_no_callers() -> None:
    with reserved(HOST) as port, pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, port))


def test_an_address_that_mlx_cannot_use_is_refused() -> None:
    with pytest.raises(RunnerError, match="IPv4 only"), reserved("::1"):
        pass
