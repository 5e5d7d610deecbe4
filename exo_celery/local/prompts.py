"""A file of prompts and the file of its results: what a line asks, what is done already. No network here.

A line is plain text, which becomes a user's message, or a JSON object with `prompt` or `messages` and other fields of
`POST /api/jobs`; its `id`, if it has one, comes back with the result. Results stand in the order in which they came,
each with its line's number.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from exo_celery.errors import InvalidRequestError

SUCCEEDED: Final = "succeeded"


@dataclass(frozen=True)
class Line:
    """One prompt: its number from 1 on, the request that it asks for, and the id that its writer gave it."""

    number: int
    request: dict[str, Any]
    id: Any = None

    @property
    def key(self) -> str:
        """What names its job: the same line asked the same way is the same job, however often it is submitted."""
        asked = json.dumps([self.number, self.request], sort_keys=True, ensure_ascii=False)
        return f"run-{hashlib.sha256(asked.encode()).hexdigest()}"

    def result(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return the line's result as it is written."""
        named = {"line": self.number} | ({} if self.id is None else {"id": self.id})
        told = {name: job.get(name) for name in ("state", "text", "finish_reason", "usage", "error")}
        told |= {name: job[name] for name in ("tool_calls", "logprobs") if job.get(name)}
        return named | {"job": job.get("id"), "key": self.key} | told


def read(path: Path, defaults: dict[str, Any]) -> list[Line]:
    """Return the lines of a file; what a line does not say, the defaults do.

    Raises:
        InvalidRequestError: a line is no prompt, or none names a model; the message tells its number.
    """
    lines = []
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{path} is not UTF-8: {error}") from error
    for number, written in enumerate(text.split("\n"), 1):
        if written.strip():
            lines.append(line(number, written.strip(), defaults))
    return lines


def line(number: int, written: str, defaults: dict[str, Any]) -> Line:
    """Read one line; errors as of `read`."""
    asked: Any = {"messages": [{"role": "user", "content": written}]}
    if written.startswith("{"):
        try:
            asked = json.loads(written)
        except json.JSONDecodeError as error:
            raise InvalidRequestError(f"line {number} begins like JSON and is none: {error}") from error
    named = asked.pop("id", None)
    if "prompt" not in asked and "messages" not in asked:
        raise InvalidRequestError(f"line {number} has neither prompt nor messages: {written[:80]}")
    request = defaults | asked
    if not request.get("model"):
        raise InvalidRequestError(f"line {number} names no model: write one in the line, or give --model")
    return Line(number, request, named)


def keep_good(path: Path, lines: list[Line]) -> set[str]:
    """Leave in a file of results only what succeeded and still is asked, and return the keys of that.

    A last line that was cut off in the middle goes too. The file is replaced in one step.
    """
    asked = {line.key for line in lines}
    kept = {row["key"]: row for row in results(path) if row.get("state") == SUCCEEDED and row.get("key") in asked}
    fresh = path.with_name(f".{path.name}.fresh")
    with fresh.open("w", encoding="utf-8") as file:
        for row in kept.values():
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    return set(kept)


def results(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the results in a file, as far as they are whole."""
    if not path.exists():
        return
    for written in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(written)
        except json.JSONDecodeError:
            continue  # cut off when its writer was killed
        if isinstance(row, dict):
            yield row
