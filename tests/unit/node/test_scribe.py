"""What the engine says of several jobs is written at once, in order, and ends those who are to stop."""

import json
from collections.abc import Sequence

import pytest

from exo_celery.node.scribe import Line, Scribe, Stopped
from exo_celery.records.job import Usage
from exo_celery.runner.protocol import Delta, Event, Finished
from exo_celery.store.client import RedisError
from exo_celery.store.tokens import Piece

SECONDS = 5


class Book:
    """Where the scribe writes; `closed` refuses some attempts, `away` all."""

    def __init__(self) -> None:
        self.written: list[list[Piece]] = []
        self.closed: set[str] = set()
        self.away = False

    def append(self, pieces: Sequence[Piece]) -> list[bool]:
        if self.away:
            raise RedisError("no answer")
        self.written.append(list(pieces))
        return [piece.job_id not in self.closed for piece in pieces]


@pytest.fixture
def book() -> Book:
    return Book()


def scribe(book: Book, *heard: tuple[Line, Event | None]) -> None:
    """Start a scribe that finds all of this said already."""
    writer = Scribe(book.append)
    for line, event in heard:
        writer.hear(line, event)
    writer.start()


def says(text: str, **more: object) -> Delta:
    return Delta.model_validate({"id": "x", "text": text, "token_ids": (1,)} | more)


DONE = Finished(id="x", finish_reason="stop", text="", usage=Usage())


def test_all_that_a_step_says_is_written_at_once_before_an_end_is_told(book: Book) -> None:
    one, other = Line("job-1", 1), Line("job-2", 3)
    scribe(book, (one, says("Par")), (other, says("Lon")), (one, says("is")), (one, DONE), (other, says("")))
    assert one.told.get(timeout=SECONDS) == DONE
    assert book.written == [[Piece("job-1", 1, 1, "Paris"), Piece("job-2", 3, 1, "Lon")]]


def test_calls_are_a_piece_of_their_own_in_their_place(book: Book) -> None:
    call = {"id": "c", "function": {"name": "look", "arguments": "{}"}}
    line = Line("job-1", 1)
    scribe(book, (line, says("a")), (line, says("", tool_calls=[call])), (line, says("b")), (line, DONE))
    line.told.get(timeout=SECONDS)
    (pieces,) = book.written
    assert [(piece.number, piece.text) for piece in pieces] == [(1, "a"), (2, ""), (3, "b")]
    assert json.loads(pieces[1].data)["tool_calls"][0]["function"]["name"] == "look"


def test_an_attempt_that_is_to_stop_hears_so_once_and_writes_no_more(book: Book) -> None:
    book.closed = {"job-1"}
    stops, goes_on = Line("job-1", 1), Line("job-2", 1)
    scribe(book, (stops, says("a")), (goes_on, says("b")))
    assert stops.told.get(timeout=SECONDS) == Stopped()
    writer = Scribe(book.append)
    writer.hear(stops, says("more"))
    writer.hear(goes_on, says("c"))
    writer.hear(goes_on, DONE)
    writer.start()
    goes_on.told.get(timeout=SECONDS)
    assert book.written[-1] == [Piece("job-2", 1, 2, "c")]
    assert stops.told.empty()


def test_whoever_cannot_be_written_is_told_why(book: Book) -> None:
    book.away = True
    line = Line("job-1", 1)
    scribe(book, (line, says("a")))
    assert isinstance(line.told.get(timeout=SECONDS), RedisError)


def test_the_runners_end_is_passed_on(book: Book) -> None:
    line = Line("job-1", 1)
    scribe(book, (line, says("a")), (line, None))
    assert line.told.get(timeout=SECONDS) is None
    assert len(book.written) == 1
