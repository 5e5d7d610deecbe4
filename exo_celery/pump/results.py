"""The output and the error file of a batch, in the order of its lines."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from pydantic_core import from_json

from exo_celery.openai.lines import Line, unrun_line
from exo_celery.pump.work import Work
from exo_celery.records.batch import BatchStatus, Cursor, StoredFile
from exo_celery.store import batches, files

GROUP: Final = 200  # results fetched at once
UNRUN_CODES: Final = {BatchStatus.EXPIRED: "batch_expired", BatchStatus.CANCELLED: "batch_cancelled"}


def write(work: Work, sign_of_life: Callable[[], None]) -> tuple[str | None, str | None]:
    """Write the files of a closed batch and return their ids, None for one that would be empty.

    Every line of the input stands in one of the two. What they hold is settled, so writing them again is harmless.
    """
    batch = work.batch
    output = save(work, "output", good=True, sign_of_life=sign_of_life) if batch.completed else None
    errors = save(work, "errors", good=False, sign_of_life=sign_of_life) if batch.total > batch.completed else None
    return output, errors


def save(work: Work, kind: str, *, good: bool, sign_of_life: Callable[[], None]) -> str:
    """Write one of the files. It is not refused for the quota: the work is done, only new uploads have to wait."""
    batch = work.batch
    record = StoredFile(
        id=batch.file_id(kind), purpose="batch_output", filename=f"{batch.id}_{kind}.jsonl", owner=batch.owner
    )
    pieces = texts(work, good=good, sign_of_life=sign_of_life)
    saved = files.write(work.cluster.redis, work.cluster.ns, record, pieces, batch.output_keep_seconds, None)
    return saved.id


def texts(work: Work, *, good: bool, sign_of_life: Callable[[], None]) -> Iterator[bytes]:
    """Yield the lines of one file, some hundred at a time."""
    asked = (line for line in work.lines(Cursor()) if line.text)
    while group := list(islice(asked, GROUP)):
        sign_of_life()
        numbers = [line.number for line in group]
        found = batches.results(work.cluster.redis, work.cluster.ns, work.batch.id, numbers)
        told = [
            result.text if result else unrun(work, line)
            for line, result in zip(group, found, strict=True)
            if (result is not None and result.good) == good
        ]
        yield "".join(f"{text}\n" for text in told).encode()


def unrun(work: Work, line: Line) -> str:
    """Return the line for a request that was not taken from the file before the batch ended."""
    custom_id = from_json(line.text)["custom_id"]
    return unrun_line(work.batch, line.number, custom_id, UNRUN_CODES[BatchStatus(work.batch.ending)])
