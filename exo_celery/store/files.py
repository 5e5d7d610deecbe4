"""Files: a record, and the content in compressed chunks of one size, so that any byte is found without reading all.

A file can be read once its record is saved; until then it is an upload, dropped if it does not go on.
"""

import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

from redis import Redis

from exo_celery.errors import InvalidRequestError, NotFoundError, StorageFullError
from exo_celery.records.batch import StoredFile
from exo_celery.store import keys
from exo_celery.store.hashes import decode, encode
from exo_celery.store.scripts import run

CHUNK_BYTES: Final = 2**18  # a batch is read from its cursor on again and again: small pieces cost little each time
LEVEL: Final = 3  # JSON gets nearly as small as at 6, in half the time
PAGE: Final = 500
SCRIPT_OWNS: Final = frozenset({"created_at", "expires_at", "stored_bytes"})


def write(
    redis: Redis, ns: str, record: StoredFile, pieces: Iterable[bytes], keep_seconds: int, quota_bytes: int | None
) -> StoredFile:
    """Write a new file and return its record; the same id with the same content again changes nothing.

    Raises:
        StorageFullError: all files together would take more than the quota; nothing of this one stays.
    """
    size = number = 0
    for number, chunk in enumerate(chunked(pieces), 1):
        size += len(chunk)
        write_chunk(redis, ns, record.id, number - 1, zlib.compress(chunk, LEVEL), quota_bytes)
    whole = record.evolve(bytes=size, chunks=number)
    pairs = [part for pair in encode(whole, without=SCRIPT_OWNS).items() for part in pair]
    where = [keys.file(ns, record.id), keys.files(ns), keys.files_expiring(ns)]
    run(redis, "file_save", where, [record.id, keep_seconds, *pairs])
    return get(redis, ns, record.id)


def chunked(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Cut pieces of any size into chunks of one size; the last may be shorter."""
    held = bytearray()
    for piece in pieces:
        held += piece
        while len(held) >= CHUNK_BYTES:
            yield bytes(held[:CHUNK_BYTES])
            del held[:CHUNK_BYTES]
    if held:
        yield bytes(held)


def write_chunk(redis: Redis, ns: str, file_id: str, number: int, packed: bytes, quota_bytes: int | None) -> None:
    """Write one chunk, within the quota."""
    where = [keys.file(ns, file_id), keys.file_chunks(ns, file_id), keys.files_bytes(ns), keys.files_expiring(ns)]
    quota = "" if quota_bytes is None else quota_bytes
    taken, used = run(redis, "file_chunk", where, [file_id, number, packed, quota, keys.UPLOAD_TTL])
    if not taken:
        drop(redis, ns, file_id)
        raise StorageFullError(
            f"the files of all callers take {used} bytes compressed of the {quota} that EXO_FILES_QUOTA allows, "
            "and this one does not fit in: delete files that are no longer needed",
            used_bytes=used,
            quota_bytes=quota_bytes,
        )


def read(redis: Redis, ns: str, file: StoredFile, offset: int = 0) -> Iterator[bytes]:
    """Yield the content from a byte on, chunk by chunk.

    Raises:
        NotFoundError: the file was deleted meanwhile.
    """
    first, skip = divmod(offset, CHUNK_BYTES)
    for number in range(first, file.chunks):
        # Compressed bytes are the only answers of ours that are not text.
        packed = redis.execute_command("HGET", keys.file_chunks(ns, file.id), number, NEVER_DECODE=True)
        if packed is None:
            raise missing(file.id)
        yield zlib.decompress(packed)[skip:]
        skip = 0


def find(redis: Redis, ns: str, file_id: str) -> StoredFile | None:
    """Return a file's record, or None when there is no such file or it is not whole yet."""
    fields = redis.hgetall(keys.file(ns, file_id))
    return decode(StoredFile, fields) if "created_at" in fields else None


def get(redis: Redis, ns: str, file_id: str) -> StoredFile:
    """Return a file's record.

    Raises:
        NotFoundError: there is no such file, or it has expired.
    """
    found = find(redis, ns, file_id)
    if found is None:
        raise missing(file_id)
    return found


def missing(file_id: str) -> NotFoundError:
    """Return the error for a file that is not there."""
    return NotFoundError(f"file {file_id[:80]!r} does not exist, or has expired; GET /v1/files lists files")


def keep(redis: Redis, ns: str, file_id: str, until: float) -> None:
    """Keep a file at least until then: a batch reads it."""
    found = get(redis, ns, file_id)
    if found.expires_at < until:
        redis.hset(keys.file(ns, file_id), "expires_at", f"{until:.6f}")
        redis.zadd(keys.files_expiring(ns), {file_id: until}, xx=True, gt=True)


def drop(redis: Redis, ns: str, file_id: str) -> bool:
    """Delete a file and give its bytes back; False when there was none."""
    where = [
        keys.file(ns, file_id),
        keys.file_chunks(ns, file_id),
        keys.files_bytes(ns),
        keys.files(ns),
        keys.files_expiring(ns),
    ]
    return bool(run(redis, "file_drop", where, [file_id]))


def drop_expired(redis: Redis, ns: str, now: float) -> list[str]:
    """Delete the files whose time is over, and uploads that stopped; return their ids."""
    over = list(redis.zrangebyscore(keys.files_expiring(ns), "-inf", now, 0, PAGE))
    return [file_id for file_id in over if drop(redis, ns, file_id)]


def used_bytes(redis: Redis, ns: str) -> int:
    """Return what all files take, compressed."""
    return int(redis.get(keys.files_bytes(ns)) or 0)


def each(redis: Redis, ns: str, after: str | None, *, newest_first: bool) -> Iterator[StoredFile]:
    """Yield the files by time of creation, those after one of them.

    Raises:
        InvalidRequestError: there is no file `after`.
    """
    for file_ids in pages(redis, keys.files(ns), after, newest_first=newest_first):
        with redis.pipeline(transaction=False) as pipe:
            for file_id in file_ids:
                pipe.hgetall(keys.file(ns, file_id))
            yield from (decode(StoredFile, fields) for fields in pipe.execute() if fields)


def pages(redis: Redis, index: str, after: str | None, *, newest_first: bool) -> Iterator[list[str]]:
    """Yield the ids of a sorted set, some hundred at a time, those after one of them."""
    position, step = 0, redis.zrevrange if newest_first else redis.zrange
    if after is not None:
        rank: Any = redis.zrevrank(index, after) if newest_first else redis.zrank(index, after)
        if rank is None:
            raise InvalidRequestError(f"{after[:80]!r} is not the id of anything in this list", param="after")
        position = int(rank) + 1
    while found := list(step(index, position, position + PAGE - 1)):
        yield found
        position += PAGE
