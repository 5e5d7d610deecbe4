"""The parts of pages that change: each is rendered the same way for the first answer and for every live update."""

from collections.abc import Callable
from typing import Final

from flask import render_template

from exo_celery import batches, cluster
from exo_celery.cluster import Cluster
from exo_celery.records.base import Request
from exo_celery.records.download import Download, DownloadStatus
from exo_celery.records.job import TERMINAL, JobState
from exo_celery.records.node import NodeView
from web import matrix
from web.drawing import picture

Panels = dict[str, str]
Render = Callable[[], Panels]
JOBS_SHOWN: Final = 50
BATCHES_SHOWN: Final = 50
EVENTS_READ: Final = 200
EVENTS_SHOWN: Final = 6
EVENTS_OF_INSTANCES: Final = ("auto_place", "unload")  # what happened without anybody's doing


class JobsFilter(Request):
    """Which jobs a page shows."""

    state: JobState | None = None


def strip(c: Cluster, nodes: list[NodeView], downloads: list[Download]) -> Panels:
    """Render the strip on top of every page: nodes, jobs, and the one operation to know of."""
    counts = cluster.job_counts(c)
    alive = sum(node.alive for node in nodes)
    shown = render_template(
        "panels/strip.html",
        alive=alive,
        nodes=len(nodes),
        queued=counts[JobState.QUEUED],
        running=counts[JobState.RUNNING],
        operation=operation(downloads),
    )
    return {"strip": shown}


def operation(downloads: list[Download]) -> Download | None:
    """Return the download to know of: one that failed, else the slowest that runs."""
    failed = [one for one in downloads if one.status is DownloadStatus.FAILED]
    ongoing = [one for one in downloads if one.status is DownloadStatus.ONGOING]
    return failed[0] if failed else min(ongoing, key=lambda one: one.speed_bps, default=None)


def cluster_page(c: Cluster) -> Panels:
    """Render the nodes and the rings through them."""
    nodes, downloads, placed = cluster.nodes(c), cluster.downloads(c), cluster.instances(c)
    work: dict[str, list[str]] = {}
    for one in placed:
        for rank in one["ring"]:
            span = f"{one['model']}, layers {rank['start_layer']}–{rank['end_layer'] - 1}"
            work.setdefault(rank["node"], []).append(span)
    shown = {"picture": picture(nodes, placed), "nodes": nodes, "work": work, "now": cluster.clock(c)}
    return strip(c, nodes, downloads) | {"cluster": render_template("panels/cluster.html", **shown)}


def models_page(c: Cluster) -> Panels:
    """Render the matrix of models and nodes."""
    nodes, downloads = cluster.nodes(c), cluster.downloads(c)
    alive = [node for node in nodes if node.alive]
    rows = matrix.rows(cluster.models(c), downloads, [node.id for node in alive])
    shown = render_template("panels/matrix.html", nodes=alive, rows=rows, away=len(nodes) - len(alive))
    return strip(c, nodes, downloads) | {"matrix": shown}


def instances_page(c: Cluster) -> Panels:
    """Render each placed model, its ranks and why they are where they are."""
    nodes, downloads, placed = cluster.nodes(c), cluster.downloads(c), cluster.instances(c)
    for one in placed:
        one["layers"] = max((rank["end_layer"] for rank in one["ring"]), default=0)
    told = [one for one in cluster.latest_events(c, EVENTS_READ) if one["kind"] in EVENTS_OF_INSTANCES][:EVENTS_SHOWN]
    now = cluster.clock(c)
    shown = render_template("panels/instances.html", instances=placed, events=told, now=now)
    return strip(c, nodes, downloads) | {"instances": shown}


def jobs_page(c: Cluster, state: JobState | None = None) -> Panels:
    """Render the newest jobs, of one state or of all."""
    jobs, more = cluster.jobs(c, state=state, limit=JOBS_SHOWN)
    shown = {"jobs": jobs, "more": more, "counts": cluster.job_counts(c), "state": state, "now": cluster.clock(c)}
    tables = {"jobs": render_template("panels/jobs.html", states=list(JobState), **shown)}
    return strip(c, cluster.nodes(c), cluster.downloads(c)) | tables


def job_page(c: Cluster, job_id: str) -> Panels:
    """Render what is known of one job besides its text, which streams."""
    job = cluster.job(c, job_id)
    shown = {"job": job, "over": job.state in TERMINAL, "now": cluster.clock(c)}
    head = {"job": render_template("panels/job.html", **shown)}
    return strip(c, cluster.nodes(c), cluster.downloads(c)) | head


def batches_page(c: Cluster) -> Panels:
    """Render the newest batches and how far they are."""
    found, more = batches.batches(c, limit=BATCHES_SHOWN)
    table = render_template("panels/batches.html", batches=found, more=more, now=cluster.clock(c))
    return strip(c, cluster.nodes(c), cluster.downloads(c)) | {"batches": table}


PAGES: Final[dict[str, Callable[[Cluster], Panels]]] = {
    "cluster": cluster_page,
    "models": models_page,
    "instances": instances_page,
    "batches": batches_page,
}
