"""What a caller may ask about files and batches: the web and the command line call these and nothing below.

`owner` is whose files and batches are seen: another's do not exist for them; None sees all.
"""

import hashlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from exo_celery.context import Context
from exo_celery.errors import ConflictError, IdempotencyError, InvalidRequestError
from exo_celery.records.batch import Batch, BatchStatus, Endpoint, StoredFile
from exo_celery.store import batches as batch_store
from exo_celery.store import client, events
from exo_celery.store import files as file_store

T = TypeVar("T")
FILE_BYTES: Final = 200_000_000
KEEP_SECONDS: Final = 30 * 86_400
AFTER_BATCH_SECONDS: Final = 86_400  # an input outlives its batch, so that people can compare


@dataclass(frozen=True)
class Wanted:
    """A batch as a caller asks for it; `window_seconds` is what `completion_window` says.

    With an idempotency key the same wish again is the same batch, for as long as its record is kept.
    """

    input_file_id: str
    endpoint: Endpoint
    completion_window: str
    window_seconds: int
    metadata: dict[str, str] | None = None
    output_keep_seconds: int = KEEP_SECONDS
    idempotency_key: str = ""

    def batch_id(self, owner: str) -> str:
        """Return the id of a new batch: made from its idempotency key and owner, so that it can exist only once."""
        if not self.idempotency_key:
            return f"batch_{uuid.uuid4().hex}"
        named = f"{owner}\n{self.idempotency_key}".encode()
        return f"batch_{hashlib.sha256(named).hexdigest()[:32]}"

    def is_for(self, batch: Batch) -> bool:
        """Tell whether a batch is what is asked for."""
        names = ("input_file_id", "endpoint", "completion_window", "metadata", "output_keep_seconds")
        return all(getattr(self, name) == getattr(batch, name) for name in names)


# Files


def save_file(
    cluster: Context, filename: str, pieces: Iterable[bytes], owner: str = "", keep_seconds: int = KEEP_SECONDS
) -> StoredFile:
    """Keep a file of requests; it can be read once this returns.

    Raises:
        StorageFullError: it does not fit into the quota of all files.
    """
    record = StoredFile(id=f"file-{uuid.uuid4().hex}", filename=filename, owner=owner)
    quota = cluster.settings.files_quota
    saved = file_store.write(cluster.redis, cluster.ns, record, pieces, keep_seconds, quota)
    events.add(cluster.redis, cluster.ns, "file", f"{saved.id} has {saved.bytes} bytes", file=saved.id)
    return saved


def file(cluster: Context, file_id: str, owner: str | None = None) -> StoredFile:
    """Return a file's record, or raise NotFoundError."""
    found = file_store.get(cluster.redis, cluster.ns, file_id)
    if owner not in (None, found.owner):
        raise file_store.missing(file_id)
    return found


def file_content(cluster: Context, found: StoredFile) -> Iterator[bytes]:
    """Yield a file's content, piece by piece."""
    return file_store.read(cluster.redis, cluster.ns, found)


def files(
    cluster: Context,
    *,
    after: str | None = None,
    limit: int = 10_000,
    newest_first: bool = True,
    purpose: str | None = None,
    owner: str | None = None,
) -> tuple[list[StoredFile], bool]:
    """Return a page of files by time of creation, and whether there are more.

    Raises:
        InvalidRequestError: there is no file `after`.
    """
    every = file_store.each(cluster.redis, cluster.ns, after, newest_first=newest_first)
    fitting = (one for one in every if purpose in (None, one.purpose) and owner in (None, one.owner))
    return page(fitting, limit)


def delete_file(cluster: Context, file_id: str, owner: str | None = None) -> None:
    """Delete a file.

    Raises:
        NotFoundError: there is no such file.
        ConflictError: a batch reads it.
    """
    found = file(cluster, file_id, owner)
    readers = [one.id for one in batch_store.active(cluster.redis, cluster.ns) if one.input_file_id == found.id]
    if readers:
        raise ConflictError(f"{found.id} is read by {', '.join(readers)}: cancel the batch first, or wait for its end")
    file_store.drop(cluster.redis, cluster.ns, found.id)


# Batches


def create_batch(
    cluster: Context, wanted: Wanted, owner: str = "", sees: str | None = None, models: Sequence[str] = ()
) -> Batch:
    """Take a batch: it is validated and run whatever happens from now on.

    `sees` is whose files may be its input, `models` what it may ask of; none means all.

    Raises:
        InvalidRequestError: the input is no file of requests.
        NotFoundError: there is no such file.
        IdempotencyError: the owner has used the key for another batch.
    """
    known = batch_store.many(cluster.redis, cluster.ns, [wanted.batch_id(owner)]) if wanted.idempotency_key else []
    made = known[0] if known else new_batch(cluster, wanted, owner, sees, models)
    if not wanted.is_for(made):
        raise IdempotencyError(
            f"Idempotency-Key {wanted.idempotency_key[:80]!r} was used for another batch, which is {made.id}: "
            "take a new key for a new batch"
        )
    cluster.hint("exo.pump_batch", made.id)
    return made


def new_batch(cluster: Context, wanted: Wanted, owner: str, sees: str | None, models: Sequence[str]) -> Batch:
    """Write a batch, and have its input kept for longer than it runs; errors as of `create_batch`."""
    found = file(cluster, wanted.input_file_id, sees)
    if found.purpose != "batch":
        raise InvalidRequestError(
            f"input_file_id: {found.id} has purpose {found.purpose!r}: upload the requests with purpose 'batch'",
            param="input_file_id",
        )
    until = client.now(cluster.redis) + wanted.window_seconds + AFTER_BATCH_SECONDS
    file_store.keep(cluster.redis, cluster.ns, found.id, until)
    batch = Batch(
        id=wanted.batch_id(owner),
        endpoint=wanted.endpoint,
        input_file_id=found.id,
        completion_window=wanted.completion_window,
        metadata=wanted.metadata,
        output_keep_seconds=wanted.output_keep_seconds,
        owner=owner,
        allowed_models=tuple(models),
    )
    return batch_store.create(cluster.redis, cluster.ns, batch, wanted.window_seconds)


def batch(cluster: Context, batch_id: str, owner: str | None = None) -> Batch:
    """Return a batch, or raise NotFoundError."""
    found = batch_store.get(cluster.redis, cluster.ns, batch_id)
    if owner not in (None, found.owner):
        raise batch_store.missing(batch_id)
    return found


def batches(
    cluster: Context, *, after: str | None = None, limit: int = 20, owner: str | None = None
) -> tuple[list[Batch], bool]:
    """Return a page of batches, newest first, and whether there are more.

    Raises:
        InvalidRequestError: there is no batch `after`.
    """
    every = batch_store.each(cluster.redis, cluster.ns, after)
    return page((one for one in every if owner in (None, one.owner)), limit)


def cancel_batch(cluster: Context, batch_id: str, owner: str | None = None) -> Batch:
    """Begin to cancel a batch: what has been answered is kept, the rest ends in the error file.

    Raises:
        NotFoundError: there is no such batch.
        ConflictError: it has ended, or is about to.
    """
    found = batch(cluster, batch_id, owner)
    if found.status is BatchStatus.CANCELLING:
        return found
    if not batch_store.cancel(cluster.redis, cluster.ns, found):
        now = batch(cluster, batch_id, owner)
        raise ConflictError(f"{batch_id} is {now.status}: there is nothing left to cancel")
    cluster.hint("exo.pump_batch", batch_id)
    return batch(cluster, batch_id, owner)


def page(every: Iterator[T], limit: int) -> tuple[list[T], bool]:
    """Return so many, and whether there are more."""
    found = list(islice(every, limit + 1))
    return found[:limit], len(found) > limit
