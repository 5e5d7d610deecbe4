"""The place dialog: what a person wants, where it would go and why, before anything is done."""

import json
from dataclasses import dataclass
from typing import Any, Final

from flask import Blueprint, render_template, request
from pydantic import ValidationError
from werkzeug.datastructures import MultiDict

from exo_celery import cluster
from exo_celery.errors import ExoError
from exo_celery.invalid import invalid
from exo_celery.records.instance import PlacementRequest
from exo_celery.records.node import NodeView
from web.context import the_cluster

blueprint: Final = Blueprint("place", __name__, url_prefix="/place")

CHOICE: Final = "node:"  # name of a node's choice in the form: node:<id> = may | must | not


@dataclass(frozen=True)
class Wanted:
    """A filled-in dialog."""

    request: PlacementRequest

    @classmethod
    def read(cls, form: "MultiDict[str, str]") -> "Wanted":
        """Read the dialog's fields; what is empty keeps its default.

        Raises:
            InvalidRequestError: a field is wrong; `param` names it.
        """
        choices = {name.removeprefix(CHOICE): text for name, text in form.items() if name.startswith(CHOICE)}
        plain = {name: text for name, text in form.items() if text and not name.startswith(CHOICE)}
        chosen = {
            "required_nodes": [node for node, choice in choices.items() if choice == "must"],
            "excluded_nodes": [node for node, choice in choices.items() if choice == "not"],
        }
        values: dict[str, Any] = plain | {name: nodes for name, nodes in chosen.items() if nodes}
        try:
            return cls(PlacementRequest.model_validate(values, strict=False))
        except ValidationError as error:
            raise invalid(error, values) from error

    @property
    def as_curl(self) -> str:
        """The same wish on the command line."""
        body = json.dumps(self.request.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False)
        quoted = body.replace("'", "'\\''")
        return f"curl -H 'Content-Type: application/json' -d '{quoted}' {request.host_url}api/instances"


@blueprint.get("/")
def dialog() -> str:
    """Show the dialog for a model."""
    c = the_cluster()
    alive = [node for node in cluster.nodes(c) if node.alive]
    return render_template("place.html", models=cluster.models(c), nodes=alive, chosen=request.args.get("model", ""))


@blueprint.get("/preview")
def preview() -> str:
    """Show where the model would go, the next best rings, and why; or which rule leaves no ring, in numbers."""
    c = the_cluster()
    try:
        wanted = Wanted.read(request.args)
        found = cluster.preview(c, wanted.request)
    except ExoError as refusal:
        return render_template("panels/refusal.html", error=refusal)
    held = {one.node: one for one in cluster.downloads(c) if one.model == wanted.request.model}
    nodes = cluster.nodes(c)
    for one in found["replicas"]:
        one["ring"] = [with_facts(rank, nodes, held, one["fetch"]) for rank in one["ring"]]
        one["layers"] = max(rank["end_layer"] for rank in one["ring"])
    return render_template("panels/preview.html", found=found, curl=wanted.as_curl)


def with_facts(
    rank: dict[str, Any], nodes: list[NodeView], held: dict[str, Any], fetch: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return a rank with what its node has free, has of the model and must get."""
    free = {node.id: node.ram_available_bytes for node in nodes}
    gets = {one["node"]: one for one in fetch}
    node = rank["node"]
    return rank | {"free": free.get(node), "download": held.get(node), "fetch": gets.get(node)}
