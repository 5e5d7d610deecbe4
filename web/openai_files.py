"""/v1/files: the files that batches read and write, as OpenAI's clients know them."""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Annotated, Any, Final, Literal

from flask import Blueprint, Response, request
from pydantic import Field, WithJsonSchema, model_validator
from werkzeug.datastructures import FileStorage

from exo_celery import batches
from exo_celery.errors import InvalidRequestError, TooLargeError
from exo_celery.openai.batches import Id, Seconds, V1File, V1FileDeleted, V1Files
from exo_celery.records.base import Request
from exo_celery.records.batch import Purpose
from web import access
from web.context import the_cluster
from web.operation import operation

blueprint: Final = Blueprint("openai_files", __name__, url_prefix="/v1/files")

# A file that is somewhat too large is read to its end, so that its sender hears why instead of a reset connection.
MAX_UPLOAD_BYTES: Final = batches.FILE_BYTES + 2**26
PIECE_BYTES: Final = 2**18
NAME_LENGTH: Final = 255
Content = Annotated[Any, WithJsonSchema({"type": "string", "format": "binary"})]


class Upload(Request):
    """A file of requests, one a line."""

    file: Content
    purpose: Literal["batch"]
    anchor: Literal["created_at"] | None = Field(None, alias="expires_after[anchor]")
    seconds: Seconds | None = Field(None, alias="expires_after[seconds]")

    @model_validator(mode="after")
    def whole_expiry(self) -> "Upload":
        """Refuse half an expiry."""
        if (self.anchor is None) != (self.seconds is None):
            raise ValueError("expires_after needs both anchor and seconds")
        return self


class FilesQuery(Request):
    """Which files to list."""

    purpose: Purpose | None = None
    limit: int = Field(10_000, ge=1, le=10_000)
    after: Id | None = None
    order: Literal["asc", "desc"] = "desc"


@blueprint.before_request
def take_large_bodies() -> None:
    """Let a file be larger than any other request."""
    request.max_content_length = MAX_UPLOAD_BYTES


@blueprint.post("")
@operation(V1File, form=Upload, errors=(503, 507))
def upload(form: Upload) -> V1File:
    """Upload a file of requests for a batch, up to 200 MB."""
    file = form.file
    if not isinstance(file, FileStorage):
        raise InvalidRequestError("file: must be sent as a file, with a filename", param="file")
    size = file.stream.seek(0, 2)
    file.stream.seek(0)
    if size > batches.FILE_BYTES:
        raise TooLargeError(
            f"file: {size} bytes, at most {batches.FILE_BYTES} are taken: split it into several batches", param="file"
        )
    name = PurePath(file.filename or "").name[:NAME_LENGTH]
    keep_seconds = form.seconds or batches.KEEP_SECONDS
    return V1File.of(batches.save_file(the_cluster(), name, pieces(file), access.owner(), keep_seconds))


def pieces(file: FileStorage) -> Iterator[bytes]:
    """Read an upload piece by piece."""
    while piece := file.stream.read(PIECE_BYTES):
        yield piece


@blueprint.get("")
@operation(V1Files, query=FilesQuery, errors=(503,))
def page(query: FilesQuery) -> V1Files:
    """List files by time of creation."""
    found, more = batches.files(
        the_cluster(),
        after=query.after,
        limit=query.limit,
        newest_first=query.order == "desc",
        purpose=query.purpose,
        owner=seen(),
    )
    ends = (found[0].id, found[-1].id) if found else (None, None)
    return V1Files(data=[V1File.of(one) for one in found], first_id=ends[0], last_id=ends[1], has_more=more)


@blueprint.get("/<record_id:file_id>")
@operation(V1File, errors=(404, 503))
def show(file_id: str) -> V1File:
    """Show a file."""
    return V1File.of(batches.file(the_cluster(), file_id, seen()))


@blueprint.get("/<record_id:file_id>/content")
@operation(str, errors=(404, 503), media_type="application/octet-stream")
def content(file_id: str) -> Response:
    """Download a file's content."""
    found = batches.file(the_cluster(), file_id, seen())
    response = Response(batches.file_content(the_cluster(), found), mimetype="application/octet-stream")
    response.content_length = found.bytes
    return response


@blueprint.delete("/<record_id:file_id>")
@operation(V1FileDeleted, errors=(404, 409, 503))
def delete(file_id: str) -> V1FileDeleted:
    """Delete a file; one that a batch still reads is kept."""
    batches.delete_file(the_cluster(), file_id, seen())
    return V1FileDeleted(id=file_id)


def seen() -> str | None:
    """Return whose files and batches the caller sees; None is everybody's."""
    return access.owner_to_list() or None
