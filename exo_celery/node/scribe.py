"""The scribe of a serving worker: what the engine says of all jobs goes into their streams by one hand.

A step of the engine says something of each running job at the same moment. Written job by job, each by its own
thread, that costs a wakeup and a round trip to Redis per token; together it is one of each per step. While Redis is
slow, what has gathered of a job becomes one piece.
"""

import json
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from exo_celery.runner.protocol import Delta, Event
from exo_celery.store.client import RedisError
from exo_celery.store.tokens import Piece


@dataclass(frozen=True)
class Stopped:
    """The attempt is to stop: its job was cancelled, or is another attempt's by now."""


Told = Event | Exception | Stopped | None  # an event, why nothing could be written, stop, or: the runner is gone


@dataclass(eq=False)
class Line:
    """One running attempt, the number of its latest piece, and what its thread is told: all but its text."""

    job_id: str
    attempt: int
    number: int = 0
    over: bool = False
    told: "queue.SimpleQueue[Told]" = field(default_factory=queue.SimpleQueue)


class Scribe(threading.Thread):
    """Writes with `append`, which answers for each piece whether its attempt goes on."""

    def __init__(self, append: Callable[[Sequence[Piece]], list[bool]]) -> None:
        super().__init__(name="scribe", daemon=True)
        self._append = append
        self._heard: queue.SimpleQueue[tuple[Line, Event | None]] = queue.SimpleQueue()

    def hear(self, line: Line, event: Event | None) -> None:
        """Take what the engine says, None when it is gone; never waits."""
        self._heard.put((line, event))

    def run(self) -> None:
        """Write for ever: first the text, then the rest, so that an end finds all of its text written."""
        while True:
            heard = [self._heard.get()]
            while not self._heard.empty():
                heard.append(self._heard.get())
            self._write(heard)
            for line, event in heard:
                if not isinstance(event, Delta):
                    line.told.put(event)

    def _write(self, heard: Sequence[tuple[Line, Event | None]]) -> None:
        said = pieces(heard)
        if not said:
            return
        try:
            answers = self._append([piece for _, piece in said])
        except RedisError as error:
            for line, _ in said:
                end(line, error)
            return
        for (line, _), goes_on in zip(said, answers, strict=True):
            if not goes_on:
                end(line, Stopped())


def pieces(heard: Sequence[tuple[Line, Event | None]]) -> list[tuple[Line, Piece]]:
    """Return what is to be written: text that follows text of the same line is one piece with it."""
    said: dict[Line, list[Piece]] = {}
    for line, event in heard:
        if line.over or not isinstance(event, Delta) or not (event.text or event.tool_calls or event.logprobs):
            continue
        mine = said.setdefault(line, [])
        data = data_of(event)
        if mine and not data and not mine[-1].data:
            mine[-1] = mine[-1]._replace(text=mine[-1].text + event.text)
        else:
            line.number += 1
            mine.append(Piece(line.job_id, line.attempt, line.number, event.text, data))
    return [(line, piece) for line, mine in said.items() for piece in mine]


def data_of(delta: Delta) -> str:
    """Return what a delta says besides text as a stream event carries it, '' if nothing."""
    if not (delta.tool_calls or delta.logprobs):
        return ""
    said = delta.model_dump(mode="json", include={"tool_calls", "logprobs"})
    return json.dumps({name: facts for name, facts in said.items() if facts})


def end(line: Line, why: Exception | Stopped) -> None:
    """Let an attempt's thread know, once, that there is no use in going on."""
    if not line.over:
        line.over = True
        line.told.put(why)
