import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from exo_celery.errors import LinkError
from exo_celery.runner import links
from exo_celery.runner.links import Hello, Link, Listener, connect, sign

KEY = b"ring key"
HELLO = Hello("instance", 4, 0, 1)


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener("127.0.0.1", KEY, [HELLO])
    yield made
    made.close()


def address(listener: Listener) -> str:
    return f"127.0.0.1:{listener.port}"


def test_neighbours_link_and_frames_arrive_whole(listener: Listener) -> None:
    out = connect(address(listener), KEY, HELLO)
    (into,) = listener.links()
    big = bytes(range(256)) * 4096
    sender = threading.Thread(target=lambda: [out.send(frame) for frame in (b"", b"x", big)])
    sender.start()
    assert [into.receive() for _ in range(3)] == [b"", b"x", big]
    sender.join()
    out.close()
    with pytest.raises(LinkError, match="hung up"):
        into.receive()
    into.close()


def test_lanes_arrive_in_any_order() -> None:
    lanes = [replace(HELLO, lane=lane) for lane in range(3)]
    listener = Listener("127.0.0.1", KEY, lanes)
    out = {lane: connect(address(listener), KEY, lanes[lane]) for lane in (2, 0, 1)}
    for lane, link in enumerate(listener.links()):
        out[lane].send(bytes([lane]))
        assert link.receive() == bytes([lane])
        link.close()
        out[lane].close()


@pytest.mark.parametrize(
    "other", [{"instance": "another"}, {"epoch": 3}, {"from_rank": 2}, {"to_rank": 0}, {"lane": 1}], ids=str
)
def test_another_ring_is_turned_away(listener: Listener, other: dict[str, object]) -> None:
    with pytest.raises(LinkError):
        connect(address(listener), KEY, replace(HELLO, **other))


def test_a_wrong_key_is_found_out_by_the_caller(listener: Listener) -> None:
    with pytest.raises(LinkError, match="does not know this ring's key"):
        connect(address(listener), b"another key", HELLO)


def test_a_caller_without_the_key_is_turned_away(listener: Listener) -> None:
    with socket.create_connection(("127.0.0.1", listener.port)) as sock:
        link = Link(sock, 5)
        link.send(json.dumps({"nonce": "ab"}).encode())
        challenge = link.receive()
        assert len(challenge) == links.NONCE_BYTES + hashlib.sha256().digest_size
        link.send(bytes(challenge[links.NONCE_BYTES :]))  # the acceptor's own proof, played back
        with pytest.raises(LinkError):
            link.receive()


def test_silent_and_babbling_strangers_hold_nobody_up(listener: Listener) -> None:
    strangers = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(20)]
    strangers[0].sendall(b"\xff" * 64)
    out = connect(address(listener), KEY, HELLO)
    listener.links()[0].close()
    out.close()
    for stranger in strangers:
        stranger.close()


def test_a_slow_stranger_is_cut_off(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "HANDSHAKE_SECONDS", 0.1)
    with socket.create_connection(("127.0.0.1", listener.port)) as sock:
        sock.settimeout(5)
        assert sock.recv(1) == b""


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(LinkError, match="cannot be reached"):
        connect(f"127.0.0.1:{port}", KEY, HELLO)


def test_a_frame_beyond_the_limit_is_refused() -> None:
    left, right = socket.socketpair()
    left.sendall(links.LENGTH.pack(1000))
    with pytest.raises(LinkError, match="1000 bytes, the limit is 100"):
        Link(right).receive(limit_bytes=100)
    left.close()
    right.close()


def test_patience_ends() -> None:
    left, right = socket.socketpair()
    with pytest.raises(LinkError):
        Link(right, patience_seconds=0.05).receive()
    left.close()
    right.close()


def test_the_two_proofs_differ() -> None:
    assert sign(KEY, b"acceptor", b"hello", b"nonce") != sign(KEY, b"connector", b"hello", b"nonce")
