"""Function calls in what a model says: told apart from its text as it streams by. Pure but for the model's parser."""

import hashlib
import json
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from exo_celery.records.tools import CalledFunction, ToolCall
from exo_celery.runner.stops import overlap

Calls = tuple[ToolCall, ...]
Said = str | Calls
ALPHABET: Final = string.ascii_letters + string.digits
ID_LENGTH: Final = 9  # some chat templates take no other
# What parsers can raise on a call that is none.
PARSE_ERRORS: Final = (ValueError, LookupError, AttributeError, TypeError, SyntaxError, RecursionError, MemoryError)


class Reader(Protocol):
    """What a reply's text goes through before it is handed out."""

    @property
    def full(self) -> bool:
        """Whether the reply has said all that it may."""

    def feed(self, text: str) -> list[Said]:
        """Take text; return what is certain by now: text, and calls."""

    def finish(self) -> list[Said]:
        """Return what was held back."""


class PlainReader:
    """Text is text."""

    full = False

    def feed(self, text: str) -> list[Said]:
        """Return the text."""
        return [text] if text else []

    def finish(self) -> list[Said]:
        """Return nothing: nothing was held back."""
        return []


@dataclass(frozen=True)
class Format:
    """How a model writes calls and thoughts: each between two marks; '' for a call's end says that only the end does.

    `parse(text, tools)` reads what stands between the marks: a call or a list of them, as `name` and `arguments`.
    """

    start: str
    end: str
    parse: Callable[[str, list[dict[str, Any]]], Any]
    think_start: str = ""
    think_end: str = ""


class CallReader:
    """Takes what a model says, piece by piece, and gives its text without the calls, and the calls.

    What looks like a call and cannot be read, or names a function that nobody offered, is given as the text it is.
    White space beside a call belongs to it. In a thought nothing is a call.
    """

    def __init__(
        self,
        form: Format,
        tools: list[dict[str, Any]],
        name: str,
        *,
        thinking: bool = False,
        most: int | None = None,
    ) -> None:
        """Read calls of these tools, at most so many; `name` is of the request, and makes the ids of its calls."""
        self._form = form
        self._tools = tools
        self._offered = frozenset(tool["function"]["name"] for tool in tools)
        self._name = name
        self._most = most
        self._count = 0
        self._held = ""
        self._calling = self._after_call = False
        self._said: list[Said] = []
        self._marks: dict[str, Callable[[str], None]] = {}
        if thinking:
            self._think("")
        else:
            self._speak()

    @property
    def full(self) -> bool:
        """Whether the last call that is allowed was made."""
        return self._most is not None and self._count >= self._most

    def feed(self, text: str) -> list[Said]:
        """Take text; return what is certain by now."""
        self._held += text
        while not self.full and (found := self._next_mark()):
            at, mark = found
            before, self._held = self._held[:at], self._held[at + len(mark) :]
            self._marks[mark](before)
        if not self._calling:
            self._say(self._certain())
        return self._taken()

    def finish(self) -> list[Said]:
        """Return what was held back; a call that has no end yet may be whole all the same."""
        rest, self._held = self._held, ""
        if self.full:
            return []
        if self._calling:
            self._call(rest, end="")
        elif rest.strip() or not self._after_call:
            self._say(rest)
        return self._taken()

    def _next_mark(self) -> tuple[int, str] | None:
        """Return the first of the marks that lead on from here, and where it stands."""
        found = [(at, mark) for mark in self._marks if (at := self._held.find(mark)) >= 0]
        return min(found, default=None)

    def _certain(self) -> str:
        """Take from what is held all that is no beginning of a mark, and no space that may come before one."""
        keep = max((overlap(self._held, mark) for mark in self._marks), default=0)
        certain = self._held[: len(self._held) - keep].rstrip()
        self._held = self._held[len(certain) :]
        return certain

    # What is read from here on, and what ends it.

    def _speak(self) -> None:
        form, self._calling = self._form, False
        self._marks = {form.start: self._begin_call}
        if form.think_start:
            self._marks[form.think_start] = lambda before: self._think(before + form.think_start)

    def _think(self, before: str) -> None:
        self._say(before)
        self._marks = {self._form.think_end: self._end_thought}

    def _end_thought(self, before: str) -> None:
        self._say(before + self._form.think_end)
        self._speak()

    def _begin_call(self, before: str) -> None:
        self._say(before.rstrip())
        self._calling = True
        self._marks = {self._form.end: self._end_call} if self._form.end else {}

    def _end_call(self, before: str) -> None:
        self._call(before, end=self._form.end)
        self._speak()

    def _call(self, text: str, end: str) -> None:
        """Say a call; what is none as the text it is."""
        calls = self._read(text)
        if not calls:
            self._say(self._form.start + text + end)
            return
        calls = calls if self._most is None else calls[: self._most - self._count]
        self._count += len(calls)
        self._after_call = True
        self._said.append(calls)

    def _say(self, text: str) -> None:
        text = text.lstrip() if self._after_call else text
        if text:
            self._after_call = False
            self._said.append(text)

    def _taken(self) -> list[Said]:
        said, self._said = self._said, []
        return said

    def _read(self, text: str) -> Calls:
        """Return the calls in a text, none if it is not all calls of what was offered."""
        try:
            found = self._form.parse(text, self._tools)
            parsed = found if isinstance(found, list) else [found]
            return tuple(self._one(call, number) for number, call in enumerate(parsed, self._count))
        except PARSE_ERRORS:
            return ()

    def _one(self, call: dict[str, Any], number: int) -> ToolCall:
        name, arguments = call["name"], call.get("arguments") or {}
        if name not in self._offered:
            raise LookupError(name)
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        given = call.get("id")
        call_id = given if isinstance(given, str) and given else made_id(f"{self._name}:{number}")
        return ToolCall(id=call_id, function=CalledFunction(name=name, arguments=arguments))


def made_id(name: str) -> str:
    """Return an id that follows from a name."""
    number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
    letters = []
    for _ in range(ID_LENGTH):
        number, at = divmod(number, len(ALPHABET))
        letters.append(ALPHABET[at])
    return "".join(letters)
