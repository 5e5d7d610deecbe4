from collections.abc import Iterator
from threading import BoundedSemaphore

import pytest
from flask.testing import FlaskClient

from web import sse
from web.errors import OUTAGES


def test_a_frame() -> None:
    assert sse.frame("one") == "data: one\n\n"
    assert sse.frame("a\nb", event="delta", event_id="1-2") == "id: 1-2\nevent: delta\ndata: a\ndata: b\n\n"


def test_too_many_streams_are_refused_and_a_closed_one_makes_room(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "open_streams", BoundedSemaphore(1))
    first = client.get("/api/jobs/j1/stream", buffered=False)
    assert first.status_code == 200
    refused = client.get("/api/jobs/j1/stream")
    assert (refused.status_code, refused.json["error"]["code"]) == (503, "unavailable")
    assert refused.headers["Retry-After"] == "5"
    first.close()
    third = client.get("/api/jobs/j1/stream")
    assert third.status_code == 200
    third.close()


def test_a_stream_ends_with_an_error_once_it_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "ALLOWED_SECONDS", 0.0)
    answers = iter([True, False])
    first, second, last = sse.while_allowed(iter(["one", "two", "three"]), lambda: next(answers))
    assert (first, second) == ("one", "two")
    assert last.startswith("event: error")
    assert "revoked" in last


def test_an_outage_ends_a_stream_cleanly() -> None:
    def frames() -> Iterator[str]:
        yield sse.frame("one")
        raise OUTAGES[0]("refused")

    assert list(sse.until_outage(frames())) == [sse.frame("one"), sse.OUTAGE]
    assert sse.OUTAGE.startswith(":")
