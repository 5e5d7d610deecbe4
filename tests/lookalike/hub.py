"""A hub on loopback that speaks the Hugging Face protocol over plain HTTP, keeps a log, and fails on demand."""

import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

LFS_FROM_BYTES = 2000  # larger files are listed with a sha256, smaller ones with git's blob id


@dataclass
class Seen:
    """One request, and how many bytes of the body went out."""

    path: str
    headers: dict[str, str]
    status: int = 0
    sent: int = 0


@dataclass
class Fault:
    """What to do instead, for the next `times` requests whose path holds `part`."""

    part: str
    act: Callable[["Handler", Path, int, Seen], None]
    times: int


class Server(ThreadingHTTPServer):
    """A server whose broken connections are part of the tests."""

    daemon_threads = True
    block_on_close = False
    hub: "Hub"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


@dataclass
class Hub:
    """Models by id and folder; what was asked; what goes wrong next.

    `rate` is bytes per second and connection, sent in pieces of `piece` bytes.
    """

    models: dict[str, Path]
    token: str = ""
    rate: float = 0
    piece: int = 1 << 16
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.closing = threading.Event()
        self.server = Server(("127.0.0.1", self.port), Handler)
        self.server.hub = self
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def when(self, part: str, act: Callable[["Handler", Path, int, Seen], None], times: int = 1) -> None:
        """Let the next requests for a path fail in some way."""
        self.faults.append(Fault(part, act, times))

    def sent_bytes(self, part: str = "/resolve/") -> int:
        """Return how many body bytes went out for paths that hold this."""
        return sum(seen.sent for seen in self.seen if part in seen.path)

    def asked(self, part: str) -> list[Seen]:
        """Return the requests for paths that hold this."""
        return [seen for seen in self.seen if part in seen.path]

    def listing(self, model: str) -> tuple[str, dict[str, dict[str, Any]]]:
        """Return a model's commit and files as the hub lists them."""
        files = {path.name: listed(path) for path in sorted(self.models[model].iterdir()) if path.name[0] != "."}
        return hashlib.sha1(json.dumps(files, sort_keys=True).encode()).hexdigest(), files


def listed(path: Path) -> dict[str, Any]:
    """Return one file's entry of a listing."""
    data = path.read_bytes()
    entry: dict[str, Any] = {
        "rfilename": path.name,
        "size": len(data),
        "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
    }
    if len(data) >= LFS_FROM_BYTES:
        entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return entry


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        hub = self.server.hub
        seen = Seen(unquote(self.path), {name.lower(): value for name, value in self.headers.items()})
        hub.seen.append(seen)
        path = unquote(urlsplit(self.path).path)
        file, start = self.file_of(path), self.start_of()
        for fault in hub.faults:
            if fault.part in seen.path and fault.times > 0:
                fault.times -= 1
                fault.act(self, file, start, seen)
                return
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self.refuse(seen, 401, "RepoNotFound")
        elif listing := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            self.list(seen, listing[1], listing[2])
        elif not file.is_file():
            self.refuse(seen, 404, "EntryNotFound")
        elif start and start >= file.stat().st_size:
            self.answer(seen, 416, b"")
        else:
            self.send_file(seen, file, start)

    def file_of(self, path: str) -> Path:
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/([^/]+)", path)
        models = self.server.hub.models
        return models[found[1]] / found[2] if found and found[1] in models else Path("/nowhere")

    def start_of(self) -> int:
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        return int(found[1]) if found else 0

    def list(self, seen: Seen, model: str, revision: str) -> None:
        hub = self.server.hub
        if model not in hub.models:
            self.refuse(seen, 404, "RepoNotFound")
            return
        sha, files = hub.listing(model)
        if revision not in ("main", sha):
            self.refuse(seen, 404, "RevisionNotFound")
            return
        self.answer(seen, 200, json.dumps({"id": model, "sha": sha, "siblings": list(files.values())}).encode())

    def answer(self, seen: Seen, status: int, body: bytes, **headers: str) -> None:
        seen.status = status
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)
        seen.sent += len(body)

    def refuse(self, seen: Seen, status: int, code: str, **headers: str) -> None:
        self.answer(seen, status, b'{"error": "no"}', X_Error_Code=code, **headers)

    def send_file(
        self, seen: Seen, file: Path, start: int, *, stop_after: int | None = None, zeros: bool = False, end: str = ""
    ) -> None:
        """Send a file from an offset; after `stop_after` bytes `end` it by a "drop" or a "stall"."""
        size = file.stat().st_size
        seen.status = 206 if start else 200
        self.send_response(seen.status)
        self.send_header("Content-Length", str(size - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        self.end_headers()
        began = time.monotonic()
        with file.open("rb") as source:
            source.seek(start)
            left = size - start if stop_after is None else min(stop_after, size - start)
            while left > 0 and not self.server.hub.closing.is_set():
                piece = source.read(min(self.server.hub.piece, left))
                self.wfile.write(bytes(len(piece)) if zeros else piece)
                seen.sent += len(piece)
                left -= len(piece)
                if rate := self.server.hub.rate:
                    time.sleep(max(0, seen.sent / rate - (time.monotonic() - began)))
        if end == "stall":
            self.server.hub.closing.wait(60)
        if end:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)


# Faults


def status(code: int, error: str = "", **headers: str) -> Callable[[Handler, Path, int, Seen], None]:
    """Answer with an error."""
    return lambda handler, file, start, seen: handler.refuse(seen, code, error, **headers)


def drop(after: int) -> Callable[[Handler, Path, int, Seen], None]:
    """Close the connection after so many bytes."""
    return lambda handler, file, start, seen: handler.send_file(seen, file, start, stop_after=after, end="drop")


def stall(after: int) -> Callable[[Handler, Path, int, Seen], None]:
    """Say nothing more after so many bytes."""
    return lambda handler, file, start, seen: handler.send_file(seen, file, start, stop_after=after, end="stall")


def wrong_bytes() -> Callable[[Handler, Path, int, Seen], None]:
    """Send zeros of the right length."""
    return lambda handler, file, start, seen: handler.send_file(seen, file, start, zeros=True)


def ignore_range() -> Callable[[Handler, Path, int, Seen], None]:
    """Send the whole file whatever was asked."""
    return lambda handler, file, start, seen: handler.send_file(seen, file, 0)


def silent() -> Callable[[Handler, Path, int, Seen], None]:
    """Accept the request and say nothing."""
    return lambda handler, file, start, seen: handler.server.hub.closing.wait(60) and None


def redirect(to: str) -> Callable[[Handler, Path, int, Seen], None]:
    """Send the client on to the same path elsewhere."""
    return lambda handler, file, start, seen: handler.answer(seen, 302, b"", Location=to + handler.path)


def page(text: str) -> Callable[[Handler, Path, int, Seen], None]:
    """Answer with other content and a good status."""
    return lambda handler, file, start, seen: handler.answer(seen, 200, text.encode())
