"""Malformed requests against the real front: none is answered by a 500 or a traceback, and memory stays bounded."""

import socket
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from stand.front import served

NS = "test-malformed"
LOG: list[str] = []
GROWTH_BYTES = 300 * 2**20  # bodies of 8 MB are parsed whole, and Python gives memory back late
BODY_BYTES = 8 * 2**20


@pytest.fixture(scope="module")
def front(redis_url: str) -> Iterator[str]:
    """The front, which at its end must have logged no traceback and not have grown beyond bounds."""
    with served(LOG, EXO_REDIS_URL=redis_url, EXO_NAMESPACE=NS, EXO_AUTO_PLACE="0") as address:
        httpx.get(f"{address}/openapi.json", timeout=60)
        before = resident_bytes()
        yield address
        grown = resident_bytes() - before
        assert httpx.get(f"{address}/healthz", timeout=60).status_code == 200
    assert grown < GROWTH_BYTES
    assert "Traceback" not in "".join(LOG)


def resident_bytes() -> int:
    """Return what the front's processes hold in memory."""
    children = psutil.Process().children(recursive=True)
    return sum(one.memory_info().rss for one in children if any("gunicorn" in word for word in one.cmdline()))


def in_chat(value: bytes) -> bytes:
    return b'{"model": "org/known", "messages": [{"role": "user", "content": ' + value + b"}]}"


def in_tools(value: bytes) -> bytes:
    tool = b'{"type": "function", "function": {"name": "f", "parameters": {"x": ' + value + b"}}}"
    return in_chat(b'"x"')[:-1] + b', "tools": [' + tool + b"]}"


DEEP = 100_000
VALUES: dict[str, bytes] = {
    "nothing": b"",
    "an open brace": b"{",
    "deep lists": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "deep and open": b"[" * (BODY_BYTES // 2),
    "no UTF-8": b'"\xff\xfe\x80"',
    "half a character": b'"\xe2\x82"',
    "an overlong character": b'"\xc0\xaf"',
    "UTF-16": '{"model": "org/known"}'.encode("utf-16"),
    "a mark before it": b'\xef\xbb\xbf"x"',
    "half a surrogate": b'"\\ud800"',
    "a NUL": b'"\\u0000"',
    "a bare NUL": b'"\x00"',
    "a control character": b'"\x01\x1f"',
    "not a number": b"NaN",
    "infinity": b"-Infinity",
    "beyond floats": b"1e999",
    "a long number": b"9" * 50_000,
    "a long text": b'"' + b"x" * (BODY_BYTES - 200) + b'"',
    "many fields": b"{" + b",".join(b'"f%d": 1' % n for n in range(20_000)) + b"}",
    "a field twice": b'{"a": 1, "a": 2}',
    "many entries": b"[" + b"0," * 100_000 + b"0]",
    "a comment": b'"x" /* y */',
    "two values": b'"x" "y"',
    "single quotes": b"'x'",
}
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/batches", "/api/jobs", "/api/instances", "/api/models")


def fair(answer: httpx.Response) -> None:
    """Check that an answer is none of a failure, and that a refusal says why in the one shape."""
    assert answer.status_code < 500, (answer.status_code, answer.text[:500])
    assert "Traceback" not in answer.text
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert error["message"]
        assert len(error["message"]) < 2000
        assert error["code"]


@pytest.mark.parametrize("wrap", [bytes, in_chat, in_tools], ids=["alone", "in a message", "in a tool"])
@pytest.mark.parametrize("name", VALUES)
def test_malformed_json(http: httpx.Client, wrap: Callable[[bytes], bytes], name: str) -> None:
    body = wrap(VALUES[name])
    kind = {"Content-Type": "application/json"}
    for path in PATHS if wrap is bytes else ("/api/jobs",):
        answer = http.post(path, content=body, headers=kind)
        fair(answer)
        assert answer.status_code >= 400 or wrap is not bytes, path
    if wrap is not bytes:
        fair(http.post("/v1/chat/completions", content=body.replace(b"org/known", b"org/none"), headers=kind))


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "text/plain",
        "application/json; charset=utf-7",
        "application/json, application/json",
        "a/{b}",
        "{0.__class__}",
        "x" * 5000,
        "\xff",
    ],
)
def test_strange_content_types(http: httpx.Client, kind: str) -> None:
    for path in (*PATHS, "/v1/files"):
        answer = http.post(path, content=b"{}", headers={"Content-Type": kind.encode("latin-1")})
        fair(answer)
        assert answer.status_code in (400, 404, 415)


HEAD = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n{}\n\r\n'
END = b"--b--\r\n"
FORMS: dict[str, tuple[str, bytes]] = {
    "no boundary": ("multipart/form-data", HEAD + FILE + END),
    "an empty boundary": ("multipart/form-data; boundary=", HEAD + FILE + END),
    "another boundary": ("multipart/form-data; boundary=c", HEAD + FILE + END),
    "a long boundary": ("multipart/form-data; boundary=" + "b" * 5000, HEAD + FILE + END),
    "nothing": ("multipart/form-data; boundary=b", b""),
    "no end": ("multipart/form-data; boundary=b", HEAD + FILE[:-9]),
    "no head of a part": ("multipart/form-data; boundary=b", HEAD + b"--b\r\nx\r\n" + END),
    "no name": ("multipart/form-data; boundary=b", HEAD + b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n" + END),
    "a long head of a part": ("multipart/form-data; boundary=b", b"--b\r\nX: " + b"y" * 2**20 + b"\r\n\r\nx\r\n" + END),
    "many parts": ("multipart/form-data; boundary=b", HEAD * 20_000 + FILE + END),
    "a long field": ("multipart/form-data; boundary=b", HEAD.replace(b"batch", b"x" * 2**22) + FILE + END),
    "no UTF-8": ("multipart/form-data; boundary=b", HEAD.replace(b"batch", b"\xff\xfe") + FILE + END),
    "a file for a field": ("multipart/form-data; boundary=b", FILE.replace(b'"file"', b'"purpose"') + FILE + END),
    "a field for a file": ("multipart/form-data; boundary=b", HEAD + HEAD.replace(b"purpose", b"file") + END),
    "another encoding": (
        "multipart/form-data; boundary=b",
        HEAD.replace(
            b"\r\n\r\n", b"\r\nContent-Transfer-Encoding: base64\r\nContent-Type: text/x; charset=nope\r\n\r\n"
        )
        + END,
    ),
    "urlencoded": ("application/x-www-form-urlencoded", b"purpose=batch&file=%ff" + b"&a=b" * 10_000),
}


@pytest.mark.parametrize("name", FORMS)
def test_malformed_forms(http: httpx.Client, name: str) -> None:
    kind, body = FORMS[name]
    answer = http.post("/v1/files", content=body, headers={"Content-Type": kind})
    fair(answer)
    assert answer.status_code in (400, 413, 415)


@pytest.mark.parametrize("name", ["../../etc/passwd", "a\\..\\b", "", ".", "x" * 3000, "né\u202e.jsonl", "a\x00b"])
def test_strange_file_names_name_no_file_of_ours(http: httpx.Client, name: str) -> None:
    head = f'--b\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n{{}}\n\r\n'.encode()
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = http.post("/v1/files", content=HEAD + head + END, headers=kind)
    fair(answer)
    if answer.status_code == 200:
        assert "/" not in answer.json()["filename"]
        assert len(answer.json()["filename"]) <= 255


@pytest.mark.parametrize(
    "path",
    [
        "/v1/files?limit=9e9",
        "/v1/files?after=%00",
        "/v1/batches?after=" + "x" * 3000,
        "/v1/files/%ff",
        "/v1/files/%00/content",
        "/v1/models/%2e%2e%2f%2e%2e",
        "/v1/models/" + "a/" * 1000,
        "/v1/batches/batch_%F0%9F%92%A9/cancel",
        "/api/jobs?state=%ff&cursor=%00",
        "/api/jobs?" + "&".join(f"ids={n}" for n in range(300)),
        "/api/jobs?cursor=nan",
        "/api/jobs?cursor=" + "9" * 190,
        "/api/jobs/" + "a" * 3000,
        "/%c0%ae%c0%ae/%c0%ae%c0%ae/etc/passwd",
    ],
)
def test_strange_paths_and_queries(http: httpx.Client, path: str) -> None:
    for method in ("GET", "POST", "DELETE", "PUT"):
        fair(http.request(method, path))


# Whole requests that are no HTTP, or not quite: gunicorn answers most of them itself.
RAW: dict[str, bytes] = {
    "a long header": b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 2**20 + b"\r\n\r\n",
    "many headers": b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
    "a long line": b"GET /" + b"x" * 2**20 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a NUL in a header": b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
    "no UTF-8 in a header": b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\xfe\r\n\r\n",
    "no UTF-8 in a key": b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: \xff\r\n"
    b"Content-Length: 0\r\n\r\n",
    "two hosts": b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: elsewhere\r\n\r\n",
    "a strange host": b"GET /v1/models HTTP/1.1\r\nHost: [::1\r\n\r\n",
    "no host": b"GET /v1/models HTTP/1.1\r\n\r\n",
    "a negative length": b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    "a length that is none": b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: many\r\n\r\n",
    "two lengths": b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
    "a huge length": b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 99999999999\r\n\r\n{}",
    "a broken chunk": b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "a length and chunks": b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
    "another version": b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "a strange method": b"G\xffT / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "nothing but an end": b"\r\n\r\n\r\n\r\n",
}


@pytest.mark.parametrize("name", RAW)
def test_what_is_no_http(front: str, name: str) -> None:
    where = urlsplit(front)
    with socket.create_connection((str(where.hostname), int(where.port or 0)), timeout=10) as sock:
        said = exchanged(sock, RAW[name])
    assert b"Traceback" not in said
    if said:
        assert said.startswith(b"HTTP/1."), said[:100]
        assert int(said.split()[1]) < 500, said[:200]
    assert httpx.get(f"{front}/healthz", timeout=60).status_code == 200


def exchanged(sock: socket.socket, request: bytes) -> bytes:
    """Send a request and return the answer, as far as the other side wanted to hear of it."""
    try:
        sock.sendall(request)
        sock.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: sock.recv(65536), b""))
    except OSError:
        return b""


def test_an_upload_in_pieces_beyond_the_limit_is_cut(front: str, http: httpx.Client) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(2 * BODY_BYTES // 2**16):
            yield b" " * 2**16

    headers: dict[str, Any] = {"Content-Type": "application/json"}
    try:
        answer = http.post("/api/jobs", content=pieces(), headers=headers)
    except httpx.TransportError:
        return  # it hung up on us in the middle of the flood
    assert answer.status_code == 413
