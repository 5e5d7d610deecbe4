"""One look at a batch: what is due from its record, and that is done."""

from collections import Counter

from exo_celery.context import Context
from exo_celery.pump import results, window
from exo_celery.pump.validation import validate
from exo_celery.pump.work import Work
from exo_celery.records.batch import ENDED, Batch, BatchError, BatchStatus, Cursor
from exo_celery.store import batches, cards, client, files, instances


def step(cluster: Context, batch_id: str) -> None:
    """Bring a batch on as far as it goes now.

    Raises:
        NotFoundError: there is no such batch.
    """
    batch = batches.get(cluster.redis, cluster.ns, batch_id)
    if batch.over:
        return
    file = files.find(cluster.redis, cluster.ns, batch.input_file_id)
    if file is None:
        give_up(cluster, batch)
        return
    work = Work(cluster, batch, file)
    if batch.ending:
        finish(work)
    elif batch.status is BatchStatus.VALIDATING:
        begin(work)
    else:
        go_on(work)


def give_up(cluster: Context, batch: Batch) -> None:
    """Fail a batch whose input is gone, which nothing of ours does while it runs: the records were damaged."""
    error = BatchError(code="input_file_missing", message=f"{batch.input_file_id} is gone: upload it again")
    told = [error.model_dump(mode="json")]
    batches.move(cluster.redis, cluster.ns, batch, set(BatchStatus) - ENDED, BatchStatus.FAILED, {"errors": told})


def again(work: Work) -> None:
    """Look at the batch once more: it has just come to another status."""
    step(work.cluster, work.batch.id)


def begin(work: Work) -> None:
    """Validate the file; a valid batch goes on at once."""
    redis, ns, batch = work.cluster.redis, work.cluster.ns, work.batch

    def sign_of_life() -> None:
        batches.renew(redis, ns, batch.id)

    known = cards.ids(redis, ns)
    allowed = known.intersection(batch.allowed_models) if batch.allowed_models else known
    found = validate(work.lines(Cursor()), batch.endpoint, allowed, sign_of_life)
    if found.errors:
        batches.refuse(redis, ns, batch, found.errors)
    elif batches.begin(redis, ns, batch, found.lines):
        again(work)


def go_on(work: Work) -> None:
    """Gather results; then take more lines, or close the batch when there is nothing more to come."""
    redis, ns, batch = work.cluster.redis, work.cluster.ns, work.batch
    ending = ending_of(batch, client.now(redis))
    in_work = work.gather(batches.flights(redis, ns, batch.id), results.UNRUN_CODES.get(ending, "") if ending else "")
    if ending is None:
        take_more(work, Counter(flight.model for flight in in_work))
        ending = BatchStatus.COMPLETED if is_done(batches.get(redis, ns, batch.id)) else None
    if ending is not None and batches.close(redis, ns, batch, ending):
        again(work)


def ending_of(batch: Batch, now: float) -> BatchStatus | None:
    """Return how a batch ends that may not go on, None for one that may."""
    if batch.status is BatchStatus.CANCELLING:
        return BatchStatus.CANCELLED
    return BatchStatus.EXPIRED if now >= batch.expires_at else None


def is_done(batch: Batch) -> bool:
    """Tell whether every line has its result."""
    return batch.completed + batch.failed == batch.total


def take_more(work: Work, in_work: Counter[str]) -> None:
    """Fill the batch's share of each model's slots."""
    cluster = work.cluster
    active = batches.active(cluster.redis, cluster.ns)
    placed = instances.every(cluster.redis, cluster.ns)
    for model in work.batch.lines:
        available = window.room(placed, model, cluster.settings.serve_slots)
        work.fill(model, in_work[model], window.share(available, model, work.batch.id, active))


def finish(work: Work) -> None:
    """Write the files of a closed batch and end it."""
    redis, ns, batch = work.cluster.redis, work.cluster.ns, work.batch
    output, errors = results.write(work, lambda: batches.renew(redis, ns, batch.id))
    batches.end(redis, ns, batch, output, errors)
