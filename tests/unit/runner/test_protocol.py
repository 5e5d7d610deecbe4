import json
import socket

import pytest

from exo_celery.errors import InvalidRequestError, RunnerError
from exo_celery.runner import wire
from exo_celery.runner.client import checked
from exo_celery.runner.protocol import Cancel, Delta, Generate, GenerateRequest
from exo_celery.runner.wire import Connection, decode, encode


def pair() -> tuple[Connection, Connection]:
    left, right = socket.socketpair()
    return Connection(left), Connection(right)


def test_a_message_survives_the_wire() -> None:
    message = Generate(id="a", request=GenerateRequest(prompt=(1, 2), max_tokens=3, stop=("x",)))
    line = encode(message)
    assert line.count(b"\n") == 1
    assert json.loads(line)["v"] == 2
    assert decode(line) == message


def test_text_with_line_ends_stays_one_line() -> None:
    message = Delta(id="a", text="one\ntwo\u2028three", token_ids=(7,))
    assert encode(message).count(b"\n") == 1
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "line",
    [b"\n", b"[]\n", b"{}\n", b'{"v":3,"type":"stop"}\n', b'{"v":2,"type":"dance"}\n', b'{"v":2,"type":"cancel"}\n'],
)
def test_what_is_not_a_message_is_refused(line: bytes) -> None:
    with pytest.raises(RunnerError):
        decode(line)


def test_another_version_is_named() -> None:
    with pytest.raises(RunnerError, match="speaks version 3"):
        decode(b'{"v":3,"type":"stop"}\n')


def test_messages_arrive_in_order_and_the_end_is_seen() -> None:
    left, right = pair()
    left.send(Cancel(id="a"))
    left.send(Cancel(id="b"))
    left.close()
    assert [right.receive(), right.receive(), right.receive()] == [Cancel(id="a"), Cancel(id="b"), None]
    right.close()


def test_half_a_line_is_no_message() -> None:
    left, right = socket.socketpair()
    connection = Connection(right)
    left.sendall(encode(Cancel(id="a"))[:-1])
    left.close()
    assert connection.receive() is None
    connection.close()


def test_a_line_without_an_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_LINE_BYTES", 64)
    left, right = socket.socketpair()
    connection = Connection(right)
    left.sendall(b"x" * 100)
    with pytest.raises(RunnerError, match="longer than 64"):
        connection.receive()
    left.close()
    connection.receive()
    connection.close()


def test_too_long_a_request_is_refused_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_LINE_BYTES", 200)
    with pytest.raises(InvalidRequestError, match="shorten it"):
        encode(Generate(id="a", request=GenerateRequest(prompt="x" * 300)))


def test_sending_to_a_closed_side_is_an_error() -> None:
    left, right = pair()
    right.close()
    right.receive()
    with pytest.raises(RunnerError, match="gone"):
        left.send(Cancel(id="a"))
    left.close()
    left.receive()


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "temperature": 3}, "temperature"),
        ({"prompt": "x", "wings": 2}, "wings"),
        ({"prompt": "x", "stop": ["a"] * 17}, "stop"),
        ({}, None),
        ({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, None),
    ],
)
def test_the_field_at_fault_is_named(request_: dict[str, object], param: str | None) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        checked(request_)
    assert caught.value.param == param
