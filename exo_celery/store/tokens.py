"""Token streams: what a job's attempts have said so far, for whoever follows it."""

import json
from collections.abc import Iterator

from redis import Redis

from exo_celery.records.job import TokenEvent
from exo_celery.store import keys


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
