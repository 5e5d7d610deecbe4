"""/api/nodes, downloads, models, placements, instances and events: what the nodes have, and what is placed on them."""

from typing import Annotated, Any, Final

from flask import Blueprint, Response
from pydantic import Field

from exo_celery import cluster
from exo_celery.records.base import ModelId, Request
from exo_celery.records.download import Download
from exo_celery.records.instance import PlacementRequest
from exo_celery.records.model import AddModel, ModelCard
from exo_celery.settings import NODE_ID
from web.answers import Accepted, Deleting, Downloads, Events, Instances, InstanceView, Models, Nodes, Placed, Preview
from web.context import the_cluster
from web.operation import json_response, operation

blueprint: Final = Blueprint("nodes", __name__, url_prefix="/api")


class DownloadRequest(Request):
    """Which model is wanted on which node."""

    node: Annotated[str, Field(pattern=f"^{NODE_ID.pattern}$")]
    model: ModelId


class EventsQuery(Request):
    """How many events to list."""

    limit: int = Field(50, ge=1, le=500)


@blueprint.get("/events")
@operation(Events, query=EventsQuery, errors=(503,))
def events(query: EventsQuery) -> dict[str, Any]:
    """List what happened: placements and why, unloads, batches, models that became known."""
    return {"events": cluster.latest_events(the_cluster(), query.limit)}


@blueprint.get("/nodes")
@operation(Nodes, errors=(503,))
def nodes() -> Nodes:
    """List the nodes, those that are away included."""
    return Nodes(nodes=cluster.nodes(the_cluster()))


@blueprint.get("/downloads")
@operation(Downloads, errors=(503,))
def downloads() -> Downloads:
    """List what each live node has of each model."""
    return Downloads(downloads=cluster.downloads(the_cluster()))


@blueprint.post("/downloads")
@operation(Download, status=202, body=DownloadRequest, errors=(404, 409, 503))
def start_download(body: DownloadRequest) -> Download:
    """Want a model on a node; its agent downloads what is missing."""
    return cluster.start_download(the_cluster(), body.node, body.model)


@blueprint.post("/downloads/<node_id:node>/<model_id:model>/cancel")
@operation(Download, status=202, errors=(404, 405, 409, 503))
def cancel_download(node: str, model: str) -> Download:
    """Stop a download; the bytes that are there are kept."""
    return cluster.cancel_download(the_cluster(), node, model)


@blueprint.post("/downloads/<node_id:node>/<model_id:model>/verify")
@operation(Download, status=202, errors=(404, 405, 409, 503))
def verify_download(node: str, model: str) -> Download:
    """Hash a whole model on a node again; wrong files are removed there, and the download tells which."""
    return cluster.verify_download(the_cluster(), node, model)


@blueprint.delete("/downloads/<node_id:node>/<model_id:model>")
@operation(Deleting, status=202, errors=(404, 409, 503))
def delete_download(node: str, model: str) -> Deleting:
    """Delete a model from a node, a running download of it included."""
    cluster.delete_download(the_cluster(), node, model)
    return Deleting(node=node, model=model)


@blueprint.get("/models")
@operation(Models, errors=(503,))
def models() -> Models:
    """List the known models."""
    return Models(models=cluster.models(the_cluster()))


@blueprint.post("/models")
@operation(ModelCard, status=201, body=AddModel, errors=(404, 409, 503))
def add_model(body: AddModel) -> ModelCard:
    """Make a model known."""
    return cluster.add_model(the_cluster(), body)


@blueprint.get("/models/<path:model>")
@operation(ModelCard, errors=(404, 503))
def model(model: str) -> ModelCard:
    """Show a model's card."""
    return cluster.model(the_cluster(), model)


@blueprint.get("/placements/preview")
@operation(Preview, query=PlacementRequest, errors=(404, 409, 503))
def preview(query: PlacementRequest) -> dict[str, Any]:
    """Show where a model and its replicas would be placed, and why, without placing them."""
    return cluster.preview(the_cluster(), query)


@blueprint.post("/instances")
@operation(Placed, status=202, body=PlacementRequest, errors=(404, 409, 503))
def create_instances(body: PlacementRequest) -> Response:
    """Place a model, all replicas or none; what placement refuses is a 409 with the numbers."""
    placed = [Accepted(id=one.id, status=one.status) for one in cluster.create_instances(the_cluster(), body)]
    first = placed[0]
    response = json_response(Placed(id=first.id, status=first.status, replicas=placed), 202)
    response.headers["Location"] = f"/api/instances/{first.id}"
    return response


@blueprint.get("/instances")
@operation(Instances, errors=(503,))
def instances() -> dict[str, Any]:
    """List the placed models."""
    return {"instances": cluster.instances(the_cluster())}


@blueprint.get("/instances/<record_id:instance_id>")
@operation(InstanceView, errors=(404, 503))
def instance(instance_id: str) -> dict[str, Any]:
    """Show a placed model: each rank's state, and why this ring."""
    return cluster.instance(the_cluster(), instance_id)


@blueprint.delete("/instances/<record_id:instance_id>")
@operation(Accepted, status=202, errors=(404, 409, 503))
def delete_instance(instance_id: str) -> dict[str, Any]:
    """Unload a placed model; its jobs wait in the queue for another instance."""
    return cluster.delete_instance(the_cluster(), instance_id)
