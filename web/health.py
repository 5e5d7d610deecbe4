"""/healthz, /readyz, /metrics and /openapi.json: what machines ask."""

from typing import Any, Final

from flask import Blueprint, Response, current_app

from exo_celery import cluster
from exo_celery.records.base import Record
from web import metrics as exposition
from web.context import the_cluster
from web.openapi import document
from web.operation import json_response, operation

blueprint: Final = Blueprint("health", __name__)


class Alive(Record):
    """The process answers."""

    status: str = "ok"


class Readiness(Record):
    """Whether jobs can be taken now, and if not, why."""

    ready: bool
    reasons: list[str]


@blueprint.get("/healthz")
@operation(Alive)
def healthz() -> Alive:
    """Tell that the process lives; asks nobody else."""
    return Alive()


@blueprint.get("/readyz")
@operation(Readiness, errors=(503,))
def readyz() -> Response:
    """Tell whether Redis answers and a live node has been heard."""
    ready, reasons = cluster.readiness(the_cluster())
    facts: dict[str, Any] = {"ready": ready, "reasons": reasons}
    if ready:
        return json_response(facts)
    error = {"message": "; ".join(reasons), "type": "server_error", "param": None, "code": "not_ready"}
    return json_response({"error": error} | facts, 503)


@blueprint.get("/metrics")
@operation(str, errors=(503,), media_type="text/plain")
def metrics() -> Response:
    """Show the cluster's figures for Prometheus, read at this moment."""
    c = the_cluster()
    families = [
        *exposition.of_nodes(cluster.nodes(c), cluster.downloads(c)),
        *exposition.of_jobs(cluster.job_counts(c), cluster.waiting_jobs(c)),
        *exposition.of_instances(cluster.instances(c)),
    ]
    text = "".join(families)
    return Response(text, mimetype="text/plain", headers={"Content-Type": exposition.CONTENT_TYPE})


@blueprint.get("/openapi.json")
@operation(dict[str, Any])
def openapi() -> dict[str, Any]:
    """Describe every JSON route, from the same declarations that check requests."""
    return document(current_app)
