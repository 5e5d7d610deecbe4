"""What people do on the pages. Each has its twin in /api, and both call the same function of `cluster`."""

from typing import Final, TypeVar

from flask import Blueprint, Response, make_response, render_template, request
from pydantic import Field, ValidationError

from exo_celery import batches, cluster
from exo_celery.errors import ExoError
from exo_celery.invalid import invalid
from exo_celery.records.base import ModelId, Request
from exo_celery.records.job import JobRequest, Message
from exo_celery.records.model import AddModel
from web import access
from web.api_nodes import DownloadRequest
from web.context import the_cluster
from web.errors import OUTAGES, unavailable
from web.live import part
from web.pages import check_token
from web.place import Wanted

blueprint: Final = Blueprint("actions", __name__, url_prefix="/actions")
blueprint.before_request(check_token)

F = TypeVar("F", bound=Request)


class Target(Request):
    """The one thing to act on."""

    id: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")


class Question(Request):
    """A job as a person writes it."""

    model: ModelId
    text: str = Field(min_length=1)
    max_tokens: int = Field(256, ge=1, le=1_000_000)


def read_form(model: type[F]) -> F:
    """Read a form; an empty field counts as not filled in.

    Raises:
        InvalidRequestError: as for a JSON body.
    """
    values = {name: text for name, text in request.form.items() if text}
    try:
        return model.model_validate(values, strict=False)
    except ValidationError as error:
        raise invalid(error, values) from error


def notice(text: str, *, bad: bool = False, clear_dialog: bool = False) -> str:
    """Return the line that tells how it went."""
    shown = part("notice", render_template("panels/notice.html", text=text, bad=bad), "innerHTML")
    return shown + (part("dialog", "", "innerHTML") if clear_dialog else "")


@blueprint.errorhandler(ExoError)
def tell(error: ExoError) -> tuple[str, int]:
    """Tell what went wrong, on the page."""
    return notice(error.message, bad=True), error.status


def tell_outage(error: Exception) -> tuple[str, int]:
    """Tell that Redis is away, on the page."""
    return tell(unavailable(error))


for outage in OUTAGES:
    blueprint.register_error_handler(outage, tell_outage)


@blueprint.post("/download")
def download() -> str:
    """Want a model on a node."""
    asked = read_form(DownloadRequest)
    cluster.start_download(the_cluster(), asked.node, asked.model)
    return notice(f"{asked.node} gets {asked.model}")


@blueprint.post("/cancel-download")
def cancel_download() -> str:
    """Stop a download and keep its bytes."""
    asked = read_form(DownloadRequest)
    cluster.cancel_download(the_cluster(), asked.node, asked.model)
    return notice(f"{asked.node} stops getting {asked.model}; what it has is kept")


@blueprint.post("/verify-download")
def verify_download() -> str:
    """Hash a whole model on a node again."""
    asked = read_form(DownloadRequest)
    cluster.verify_download(the_cluster(), asked.node, asked.model)
    return notice(f"{asked.node} hashes {asked.model} again; the matrix tells what it finds")


@blueprint.post("/delete-download")
def delete_download() -> str:
    """Delete a model from a node."""
    asked = read_form(DownloadRequest)
    cluster.delete_download(the_cluster(), asked.node, asked.model)
    return notice(f"{asked.node} deletes {asked.model}")


@blueprint.post("/add-model")
def add_model() -> str:
    """Make a model known."""
    card = cluster.add_model(the_cluster(), read_form(AddModel))
    return notice(f"{card.id} is known now")


@blueprint.post("/place")
def place() -> str:
    """Place a model as the dialog says."""
    wanted = Wanted.read(request.form).request
    placed = cluster.create_instances(the_cluster(), wanted)
    ids = ", ".join(one.id for one in placed)
    return notice(f"{wanted.model} is being placed as {ids}", clear_dialog=True)


@blueprint.post("/unload")
def unload() -> str:
    """Unload a placed model."""
    gone = cluster.delete_instance(the_cluster(), read_form(Target).id)
    return notice(f"{gone['id']} is {gone['status']}")


@blueprint.post("/cancel-job")
def cancel_job() -> str:
    """Cancel a job."""
    job = cluster.cancel_job(the_cluster(), read_form(Target).id)
    return notice(f"{job.id} is {job.state}")


@blueprint.post("/cancel-batch")
def cancel_batch() -> str:
    """Cancel a batch."""
    batch = batches.cancel_batch(the_cluster(), read_form(Target).id)
    return notice(f"{batch.id} is {batch.status}")


@blueprint.post("/submit-job")
def submit_job() -> Response:
    """Submit a job and go to its page."""
    asked = read_form(Question)
    turn = Message(role="user", content=asked.text)
    job = access.submit(JobRequest(model=asked.model, messages=(turn,), max_tokens=asked.max_tokens))
    response = make_response()
    response.headers["HX-Redirect"] = f"/jobs/{job.id}"
    return response
