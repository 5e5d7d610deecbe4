"""Batches: each transition is one script, and each line's result is written once, by its number.

Counts follow from results alone, so they never go down, whoever dies when.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from redis import Redis

from exo_celery.errors import NotFoundError
from exo_celery.records.batch import Batch, BatchError, BatchStatus, Cursor, Flight, LineResult
from exo_celery.store import events, keys
from exo_celery.store.files import pages
from exo_celery.store.hashes import decode, encode, text
from exo_celery.store.scripts import run

SCRIPT_OWNS: Final = frozenset({"created_at", "expires_at"})
CURSOR: Final = "cursor:{model}"
GOOD, BAD = b"+", b"-"


def create(redis: Redis, ns: str, batch: Batch, window_seconds: int) -> Batch:
    """Write a new batch, to be validated, and return it with its times; of a known id, return what is there."""
    pairs = [part for pair in encode(batch, without=SCRIPT_OWNS).items() for part in pair]
    where = [keys.batch(ns, batch.id), keys.batches(ns), keys.batches_active(ns)]
    if run(redis, "batch_create", where, [batch.id, window_seconds, *pairs]):
        tell(redis, ns, batch.id, BatchStatus.VALIDATING)
    return get(redis, ns, batch.id)


def move(
    redis: Redis,
    ns: str,
    batch: Batch,
    come_from: Iterable[BatchStatus],
    to: BatchStatus,
    fields: dict[str, Any],
    *,
    when_landed: bool = False,
) -> bool:
    """Bring a batch from one of these statuses to another one; False when it is in none of them.

    With `when_landed` also when a line is still being worked on. Sets the time `<status>_at` as well.
    """
    goes_on = to not in (BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED)
    pairs = [part for name, value in (fields | {"status": to}).items() for part in (name, text(value))]
    came = f",{','.join(come_from)},"
    head = [batch.id, came, int(when_landed), f"{to}_at", "" if goes_on else keys.BATCH_TTL]
    where = [keys.batch(ns, batch.id), keys.batches_active(ns), keys.batch_flights(ns, batch.id)]
    done = bool(run(redis, "batch_move", where, head + pairs))
    if done and to is not batch.status:
        tell(redis, ns, batch.id, to)
    return done


def tell(redis: Redis, ns: str, batch_id: str, status: BatchStatus) -> None:
    """Write the event that a batch has come to a status."""
    events.add(redis, ns, "batch", f"{batch_id} is {status}", batch=batch_id, status=status)


def begin(redis: Redis, ns: str, batch: Batch, lines: dict[str, int]) -> bool:
    """Let a valid batch begin; `lines` counts those of each model."""
    return move(redis, ns, batch, [BatchStatus.VALIDATING], BatchStatus.IN_PROGRESS, {"lines": lines})


def refuse(redis: Redis, ns: str, batch: Batch, errors: Sequence[BatchError]) -> bool:
    """End a batch that is not valid, nothing of it was run."""
    told = [error.model_dump(mode="json") for error in errors]
    return move(redis, ns, batch, [BatchStatus.VALIDATING], BatchStatus.FAILED, {"errors": told})


def cancel(redis: Redis, ns: str, batch: Batch) -> bool:
    """Begin to cancel a batch; False when there is nothing left to cancel."""
    return move(redis, ns, batch, [BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS], BatchStatus.CANCELLING, {})


def close(redis: Redis, ns: str, batch: Batch, ending: BatchStatus) -> bool:
    """Take no more results, once no line is being worked on; what is left is to write the files."""
    to = BatchStatus.CANCELLING if ending is BatchStatus.CANCELLED else BatchStatus.FINALIZING
    come_from = BatchStatus.CANCELLING if ending is BatchStatus.CANCELLED else BatchStatus.IN_PROGRESS
    # Its time stays that of the cancel.
    times = {"cancelling_at": f"{batch.cancelling_at:.6f}"} if ending is BatchStatus.CANCELLED else {}
    return move(redis, ns, batch, [come_from], to, {"ending": ending} | times, when_landed=True)


def end(redis: Redis, ns: str, batch: Batch, output_file_id: str | None, error_file_id: str | None) -> bool:
    """End a closed batch whose files are written; lines that were never run count as failed."""
    come_from = [BatchStatus.FINALIZING, BatchStatus.CANCELLING]
    files = {"output_file_id": output_file_id, "error_file_id": error_file_id}
    counts = {"failed": batch.total - batch.completed}
    done = move(redis, ns, batch, come_from, BatchStatus(batch.ending), files | counts)
    # Not at once: a second pump that came as late as this one still reads them.
    redis.expire(keys.batch_results(ns, batch.id), keys.LINE_JOB_TTL)
    return done


# Lines


def cursor(redis: Redis, ns: str, batch_id: str, model: str) -> str:
    """Return a model's cursor as it is stored; '' before the first line."""
    return redis.hget(keys.batch(ns, batch_id), CURSOR.format(model=model)) or ""


def cursor_at(stored: str) -> Cursor:
    """Read a stored cursor."""
    line, _, offset = stored.partition(":")
    return Cursor(line=int(line or 0), offset=int(offset or 0))


def take(redis: Redis, ns: str, batch_id: str, stored: str, to: Cursor, flight: Flight, most: int) -> str | None:
    """Move a model's cursor on and begin a line; return the new cursor.

    None when somebody else moved it, or `most` lines of the model are in work already.
    """
    moved = f"{to.line}:{to.offset}"
    head = [CURSOR.format(model=flight.model), stored, moved, flight.line, flight.model_dump_json()]
    taken = run(redis, "batch_take", take_keys(ns, batch_id), [*head, flight.model, most])
    return moved if taken else None


def skip(redis: Redis, ns: str, batch_id: str, model: str, stored: str, to: Cursor) -> None:
    """Move a model's cursor on over lines of other models."""
    args = [CURSOR.format(model=model), stored, f"{to.line}:{to.offset}", "", "", model, 0]
    run(redis, "batch_take", take_keys(ns, batch_id), args)


def take_keys(ns: str, batch_id: str) -> list[str]:
    """Return the keys that taking a line changes."""
    return [keys.batch(ns, batch_id), keys.batch_flights(ns, batch_id)]


def flights(redis: Redis, ns: str, batch_id: str) -> list[Flight]:
    """Return the lines that are being worked on, by number."""
    found = redis.hvals(keys.batch_flights(ns, batch_id))
    return sorted((Flight.model_validate_json(one) for one in found), key=lambda one: one.line)


def is_flying(redis: Redis, ns: str, batch_id: str, line: int) -> bool:
    """Tell whether a line is still being worked on."""
    return bool(redis.hexists(keys.batch_flights(ns, batch_id), str(line)))


def record(redis: Redis, ns: str, batch: Batch, line: int, result: LineResult) -> bool:
    """Write a line's result and let its job go; False when it has one already."""
    job_id = batch.job_id(line)
    where = [
        keys.batch(ns, batch.id),
        keys.batch_flights(ns, batch.id),
        keys.batch_results(ns, batch.id),
        keys.job(ns, job_id),
        keys.tokens(ns, job_id),
    ]
    packed = (GOOD if result.good else BAD) + zlib.compress(result.text.encode())
    count = "completed" if result.good else "failed"
    used = [result.usage.get(name, 0) for name in ("prompt_tokens", "completion_tokens")]
    return bool(run(redis, "batch_record", where, [ns, line, job_id, count, packed, *used, keys.LINE_JOB_TTL]))


def results(redis: Redis, ns: str, batch_id: str, lines: Sequence[int]) -> list[LineResult | None]:
    """Return the results of these lines, None for a line that has none."""
    # Compressed bytes are no text.
    found = redis.execute_command("HMGET", keys.batch_results(ns, batch_id), *lines, NEVER_DECODE=True)
    return [None if one is None else unpacked(one) for one in found]


def unpacked(packed: bytes) -> LineResult:
    """Read a stored result."""
    return LineResult(good=packed[:1] == GOOD, text=zlib.decompress(packed[1:]).decode())


# Who moves a batch on


def hold(redis: Redis, ns: str, batch_id: str, who: str) -> bool:
    """Take the batch to move it on; False while somebody else does, who is then told to look again."""
    return bool(run(redis, "batch_hold", hold_keys(ns, batch_id), [who, keys.BATCH_HOLD]))


def renew(redis: Redis, ns: str, batch_id: str) -> None:
    """Hold the batch for longer. Two who hold one do double work and no harm."""
    redis.expire(keys.batch_hold(ns, batch_id), keys.BATCH_HOLD)


def release(redis: Redis, ns: str, batch_id: str, who: str) -> bool:
    """Let the batch go; True when somebody came meanwhile."""
    return bool(run(redis, "batch_release", hold_keys(ns, batch_id), [who]))


def hold_keys(ns: str, batch_id: str) -> list[str]:
    """Return the two keys by which a batch is held."""
    return [keys.batch_hold(ns, batch_id), keys.batch_again(ns, batch_id)]


# Reading


def get(redis: Redis, ns: str, batch_id: str) -> Batch:
    """Return a batch.

    Raises:
        NotFoundError: no such batch, or its retention is over.
    """
    fields = redis.hgetall(keys.batch(ns, batch_id))
    if not fields:
        raise missing(batch_id)
    return decode(Batch, fields)


def missing(batch_id: str) -> NotFoundError:
    """Return the error for a batch that is not there."""
    return NotFoundError(f"batch {batch_id[:80]!r} does not exist, or is forgotten; GET /v1/batches lists batches")


def many(redis: Redis, ns: str, ids: Sequence[str]) -> list[Batch]:
    """Return the batches of these ids that still exist, in one round trip."""
    with redis.pipeline(transaction=False) as pipe:
        for batch_id in ids:
            pipe.hgetall(keys.batch(ns, batch_id))
        return [decode(Batch, fields) for fields in pipe.execute() if fields]


def active(redis: Redis, ns: str) -> list[Batch]:
    """Return the batches that have not ended, oldest first."""
    return many(redis, ns, redis.zrange(keys.batches_active(ns), 0, -1))


def each(redis: Redis, ns: str, after: str | None) -> Iterator[Batch]:
    """Yield the batches, newest first, those after one of them.

    Raises:
        InvalidRequestError: there is no batch `after`.
    """
    for ids in pages(redis, keys.batches(ns), after, newest_first=True):
        yield from many(redis, ns, ids)


def forget_expired(redis: Redis, ns: str, created_before: float) -> None:
    """Drop index entries of batches whose records have expired."""
    redis.zremrangebyscore(keys.batches(ns), "-inf", created_before)
