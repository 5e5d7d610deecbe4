"""The peer server of a node: hands its whole models and files to nodes of the same cluster, in the hub's protocol.

So `huggingface_hub` can fetch from it as well. Every request needs the token derived from the cluster secret. What is
asked for is only ever looked up among the node's own files, so no name leads out of them.
"""

import hmac
import json
import logging
import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from exo_celery.errors import DownloadInterruptedError
from exo_celery.models.digests import listed_digest
from exo_celery.models.manifest import FileEntry
from exo_celery.models.rate import Rate
from exo_celery.models.shelf import Served, Shelf

log = logging.getLogger(__name__)
SILENCE_SECONDS: Final = 30.0  # a peer that takes no byte for so long is hung up on
AT_ONCE: Final = 32  # requests; a further one is asked to come again
PIECE_BYTES: Final = 4 << 20
MODEL: Final = r"([^/]+/[^/]+)"
INFO: Final = re.compile(rf"/api/models/{MODEL}(?:/revision/([^/]+))?")
TREE: Final = re.compile(rf"/api/models/{MODEL}/tree/([^/]+)")
WHOLE_FILES: Final = re.compile(rf"/api/models/{MODEL}/whole/([^/]+)")
RESOLVE: Final = re.compile(rf"/{MODEL}/resolve/([^/]+)/([^/]+)")
RANGE: Final = re.compile(r"bytes=(\d+)-(\d*)")


class PeerServer(ThreadingHTTPServer):
    """Serves from the moment it is made, on a port that the system chose."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, host: str, shelf: Shelf, token: str, rate: Rate) -> None:
        super().__init__((host, 0), Handler)
        self.shelf = shelf
        self.token = token
        self.rate = rate
        self.slots = threading.BoundedSemaphore(AT_ONCE)
        threading.Thread(target=self.serve_forever, name="peer-server", daemon=True).start()

    @property
    def port(self) -> int:
        """The port that peers reach it at."""
        return int(self.server_address[1])

    def close(self) -> None:
        """Serve nobody any more."""
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Note that a peer went away in the middle; it asks again where it needs to."""
        log.debug("a copy to %s broke off", client_address, exc_info=True)


class Handler(BaseHTTPRequestHandler):
    """One connection of a peer."""

    protocol_version = "HTTP/1.1"
    server_version = "exo_celery"
    sys_version = ""
    timeout = SILENCE_SECONDS
    server: PeerServer

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: peers ask often."""

    def do_HEAD(self) -> None:
        """Answer as GET does, without the body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Let in who shows the token, and answer."""
        shown = self.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if not hmac.compare_digest(shown.encode(), self.server.token.encode()):
            self.refuse(401, "Unauthorized")
        elif not self.server.slots.acquire(blocking=False):
            self.refuse(503, "Busy", {"Retry-After": "1"})
        else:
            try:
                self.answer(unquote(urlsplit(self.path).path))
            except DownloadInterruptedError as busy:
                self.refuse(503, "Busy", {"Retry-After": str(busy.numbers["retry_after_seconds"])})
            finally:
                self.server.slots.release()

    def answer(self, path: str) -> None:
        """Answer one request for a path."""
        if asked := RESOLVE.fullmatch(path):
            self.resolve(*asked.groups())
        elif asked := WHOLE_FILES.fullmatch(path):
            self.json({"files": sorted(self.server.shelf.files(*asked.groups()))})
        elif asked := TREE.fullmatch(path):
            self.listing(*asked.groups(), as_tree=True)
        elif asked := INFO.fullmatch(path):
            self.listing(*asked.groups(), as_tree=False)
        else:
            self.refuse(404, "EntryNotFound")

    def listing(self, model: str, revision: str | None, *, as_tree: bool) -> None:
        """List a whole model; `main` is the revision that is here."""
        found = self.server.shelf.whole(model)
        if found is None:
            self.refuse(404, "RepoNotFound")
            return
        manifest = found[1]
        if revision not in (None, "main", manifest.revision):
            self.refuse(404, "RevisionNotFound")
        elif as_tree:
            self.json([tree_entry(name, entry) for name, entry in manifest.files.items()])
        else:
            siblings = [sibling(name, entry) for name, entry in manifest.files.items()]
            self.json({"id": model, "sha": manifest.revision, "private": False, "tags": [], "siblings": siblings})

    def resolve(self, model: str, revision: str, name: str) -> None:
        """Send a file, or a part of it."""
        shelf = self.server.shelf
        if revision == "main" and (whole := shelf.whole(model)):
            revision = whole[1].revision
        served = shelf.files(model, revision).get(name)
        if served is None:
            self.refuse(404, "EntryNotFound")
            return
        size = served.entry.size
        asked = RANGE.fullmatch(self.headers.get("Range", ""))
        start, last = (int(asked[1]), min(int(asked[2] or size), size - 1)) if asked else (0, size - 1)
        if asked and start > last:
            self.send({"Content-Range": f"bytes */{size}"}, 416, 0)
            return
        headers = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream", "X-Repo-Commit": revision}
        headers |= {"ETag": f'"{listed_digest(served.entry)}"'}
        if served.entry.sha256:
            headers |= {"X-Linked-Etag": f'"{served.entry.sha256}"', "X-Linked-Size": str(size)}
        if asked:
            headers |= {"Content-Range": f"bytes {start}-{last}/{size}"}
        self.send(headers, 206 if asked else 200, last - start + 1)
        if self.command == "GET":
            self.pour(served, start, last + 1)

    def pour(self, served: Served, start: int, end: int) -> None:
        """Send bytes of a file from the kernel's cache to the socket, no faster than allowed."""
        rate, stop = self.server.rate, self.server.shelf.stop
        with served.path.open("rb") as file:
            while start < end:
                count = min(rate.piece(PIECE_BYTES), end - start)
                if pause := rate.turn(count):
                    stop.wait(pause)
                sent = self.connection.sendfile(file, start, count)
                if not sent:  # the file has been cut meanwhile: the peer sees the end and asks elsewhere
                    self.close_connection = True
                    return
                start += sent

    def json(self, content: Any) -> None:
        """Answer with JSON."""
        text = json.dumps(content).encode()
        self.send({"Content-Type": "application/json"}, 200, len(text))
        if self.command == "GET":
            self.wfile.write(text)

    def refuse(self, status: int, code: str, headers: Mapping[str, str] | None = None) -> None:
        """Answer with an error, as the hub words it."""
        text = json.dumps({"error": code}).encode()
        self.send({"Content-Type": "application/json", "X-Error-Code": code, **(headers or {})}, status, len(text))
        if self.command == "GET":
            self.wfile.write(text)

    def send(self, headers: Mapping[str, str], status: int, length: int) -> None:
        """Send status and headers."""
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def sibling(name: str, entry: FileEntry) -> dict[str, Any]:
    """Return a file as the hub's model info lists it."""
    found: dict[str, Any] = {"rfilename": name, "size": entry.size, "blobId": entry.blob_id}
    return found | ({"lfs": {"sha256": entry.sha256, "size": entry.size, "pointerSize": 0}} if entry.sha256 else {})


def tree_entry(name: str, entry: FileEntry) -> dict[str, Any]:
    """Return a file as the hub's tree lists it."""
    found: dict[str, Any] = {"type": "file", "path": name, "size": entry.size, "oid": listed_digest(entry)[:40]}
    return found | ({"lfs": {"oid": entry.sha256, "size": entry.size, "pointerSize": 0}} if entry.sha256 else {})
