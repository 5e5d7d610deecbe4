"""A small client of our own REST routes, for our own commands: JSON in and out, and token streams."""

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from exo_celery.errors import UnavailableError

TIMEOUT_SECONDS = 60


class Rest:
    """The web of a cluster at an address."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        parts = urlsplit(url)
        self.host = parts.netloc
        self.connection = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.headers = {"Content-Type": "application/json"}
        if api_key:
            self.headers["Authorization"] = f"Bearer {api_key}"

    def get(self, path: str) -> Any:
        """Return what a route answers.

        Raises:
            UnavailableError: it answers an error; the message is its own, `numbers["status"]` its status.
        """
        return self.ask("GET", path)

    def post(self, path: str, body: dict[str, Any], **headers: str) -> Any:
        """Send an object and return the answer; raises as `get`."""
        return self.ask("POST", path, json.dumps(body), **headers)

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> Any:
        """Make one request on a connection of its own."""
        link = self.connection(self.host, timeout=TIMEOUT_SECONDS)
        try:
            return json.loads(self.answer(link, method, path, body, **headers).read())
        finally:
            link.close()

    def answer(self, link: http.client.HTTPConnection, method: str, path: str, body: str | None, **headers: str) -> Any:
        """Return the response to a request, if it is a good one."""
        sent = {name.replace("_", "-"): text for name, text in headers.items()}
        link.request(method, path, body, self.headers | sent)
        response = link.getresponse()
        if response.status >= http.client.BAD_REQUEST:
            said = response.read().decode(errors="replace")
            raise UnavailableError(
                f"{method} {path} answered {response.status}: {said[:2000]}", status=response.status, said=said
            )
        return response

    def stream(self, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the events of a server-sent event stream: name and data."""
        link = self.connection(self.host, timeout=TIMEOUT_SECONDS)
        try:
            name = ""
            for raw in self.answer(link, "GET", path, None):
                field, _, text = raw.decode().rstrip("\r\n").partition(": ")
                if field == "event":
                    name = text
                elif field == "data":
                    yield name, json.loads(text)
        finally:
            link.close()
