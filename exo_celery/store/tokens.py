"""Token streams: what a job's attempts have said so far, written for many jobs at once, for whoever follows one."""

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from redis import Redis

from exo_celery.records.job import TokenEvent
from exo_celery.store import keys
from exo_celery.store.scripts import run


class Piece(NamedTuple):
    """Text (or something else, as `data`) for the stream of a job's attempt; numbers begin with 1 and rise."""

    job_id: str
    attempt: int
    number: int
    text: str
    data: str = ""


def append(redis: Redis, ns: str, pieces: Sequence[Piece]) -> list[bool]:
    """Add pieces to their jobs' streams in one round trip; False for each whose attempt is to stop.

    The numbers make sending the same pieces twice harmless.
    """
    where = [key for one in pieces for key in (keys.job(ns, one.job_id), keys.tokens(ns, one.job_id))]
    said = [part for one in pieces for part in (one.attempt, one.number, one.text, one.data)]
    return [bool(goes_on) for goes_on in run(redis, "tokens_append", where, said)]


def read(fields: dict[str, str], event_id: str) -> TokenEvent:
    """Read one stream entry."""
    data = json.loads(fields.get("data", "{}"))
    return TokenEvent.model_validate(
        {"id": event_id, "kind": fields["kind"], "text": fields.get("text", ""), "data": data}
    )


def follow(redis: Redis, ns: str, job_id: str, after: str, block_seconds: float) -> Iterator[TokenEvent | None]:
    """Yield the events after an id as they come, None when none came for a while; end after the `end` event."""
    key, last = keys.tokens(ns, job_id), after
    while True:
        answer = redis.xread({key: last}, count=100, block=int(block_seconds * 1000))
        if not answer:
            yield None
            continue
        for event_id, fields in answer[0][1]:
            last = event_id
            event = read(fields, event_id)
            yield event
            if event.kind == "end":
                return
