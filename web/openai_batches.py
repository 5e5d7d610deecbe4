"""/v1/batches: files of requests that are worked off beside everything else, as OpenAI's clients know them."""

from typing import Final

from flask import Blueprint
from pydantic import Field

from exo_celery import batches
from exo_celery.openai.batches import BatchRequest, Id, V1Batch, V1Batches
from exo_celery.records.base import Request
from web import access
from web.context import the_cluster
from web.openai_files import seen
from web.operation import idempotency_key, operation

blueprint: Final = Blueprint("openai_batches", __name__, url_prefix="/v1/batches")


class BatchesQuery(Request):
    """Which batches to list."""

    limit: int = Field(20, ge=1, le=100)
    after: Id | None = None


@blueprint.post("")
@operation(V1Batch, body=BatchRequest, errors=(404, 422, 503))
def create(body: BatchRequest) -> V1Batch:
    """Start a batch, durable once this answers. The same Idempotency-Key again answers the same batch."""
    kept = body.output_expires_after
    wanted = batches.Wanted(
        input_file_id=body.input_file_id,
        endpoint=body.endpoint,
        completion_window=body.completion_window,
        window_seconds=body.window_seconds,
        metadata=body.metadata,
        output_keep_seconds=kept.seconds if kept else batches.KEEP_SECONDS,
        idempotency_key=idempotency_key(),
    )
    key = access.caller()
    models = key.models if key else ()
    return V1Batch.of(batches.create_batch(the_cluster(), wanted, access.owner(), seen(), models))


@blueprint.get("")
@operation(V1Batches, query=BatchesQuery, errors=(503,))
def page(query: BatchesQuery) -> V1Batches:
    """List batches, newest first."""
    found, more = batches.batches(the_cluster(), after=query.after, limit=query.limit, owner=seen())
    ends = (found[0].id, found[-1].id) if found else (None, None)
    return V1Batches(data=[V1Batch.of(one) for one in found], first_id=ends[0], last_id=ends[1], has_more=more)


@blueprint.get("/<record_id:batch_id>")
@operation(V1Batch, errors=(404, 503))
def show(batch_id: str) -> V1Batch:
    """Show a batch: its status, counts and files."""
    return V1Batch.of(batches.batch(the_cluster(), batch_id, seen()))


@blueprint.post("/<record_id:batch_id>/cancel")
@operation(V1Batch, errors=(404, 409, 503))
def cancel(batch_id: str) -> V1Batch:
    """Cancel a batch; it answers `cancelling` at once, and what was answered so far ends in the output file."""
    return V1Batch.of(batches.cancel_batch(the_cluster(), batch_id, seen()))
