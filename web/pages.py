"""The admin UI: every page is rendered here and kept true by its live stream."""

import hmac
import secrets
from typing import Any, Final

from flask import Blueprint, Flask, Response, g, make_response, render_template, request
from markupsafe import Markup

from exo_celery import cluster
from exo_celery.errors import AccessError, ExoError
from exo_celery.records.job import TERMINAL
from web import panels
from web.context import the_cluster
from web.errors import OUTAGES, unavailable
from web.operation import read_query
from web.panels import JobsFilter, Panels
from web.reading import FILTERS

blueprint: Final = Blueprint("pages", __name__)

COOKIE: Final = "exo_csrf"
HEADER: Final = "X-CSRF-Token"
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",  # pico draws its arrows and ticks so
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
TITLES: Final = {
    "cluster": "Cluster",
    "models": "Models & downloads",
    "instances": "Instances",
    "jobs": "Jobs",
    "batches": "Batches",
}


def install(app: Flask) -> None:
    """Teach templates our numbers, and browsers what pages may do."""
    app.jinja_env.filters.update(FILTERS)
    app.after_request(harden)


def harden(response: Response) -> Response:
    """Forbid browsers everything that our pages do not need: inline script above all."""
    response.headers["Content-Security-Policy"] = POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "same-origin"
    return response


@blueprint.get("/")
def home() -> Response:
    """Show the nodes and the rings through them."""
    return page("cluster", panels.cluster_page(the_cluster()), live="/live/cluster")


@blueprint.get("/models")
def models() -> Response:
    """Show what each node has of each model."""
    return page("models", panels.models_page(the_cluster()), live="/live/models")


@blueprint.get("/instances")
def instances() -> Response:
    """Show the placed models."""
    return page("instances", panels.instances_page(the_cluster()), live="/live/instances")


@blueprint.get("/jobs")
def jobs() -> Response:
    """Show the newest jobs."""
    chosen = read_query(JobsFilter)
    live = f"/live/jobs?state={chosen.state}" if chosen.state else "/live/jobs"
    models = cluster.servable_models(the_cluster())
    return page("jobs", panels.jobs_page(the_cluster(), chosen.state), live=live, models=models)


@blueprint.get("/batches")
def batches() -> Response:
    """Show the newest batches."""
    return page("batches", panels.batches_page(the_cluster()), live="/live/batches")


@blueprint.get("/jobs/<record_id:job_id>")
def job(job_id: str) -> Response:
    """Show one job; while it runs its text grows."""
    shown = cluster.job(the_cluster(), job_id)
    whole = "?whole=1" if shown.state in TERMINAL else ""
    parts = panels.job_page(the_cluster(), job_id)
    return page("job", parts, live=f"/live/jobs/{job_id}{whole}", shown=shown, whole=whole, section="jobs")


def page(name: str, parts: Panels, *, live: str, section: str = "", **facts: Any) -> Response:
    """Render a page around its changing parts, and give the browser its token for writes."""
    token = request.cookies.get(COOKIE) or secrets.token_urlsafe(24)
    shown = {target: Markup(html) for target, html in parts.items()}  # noqa: S704 (rendered by our own templates)
    section = section or name
    html = render_template(f"{name}.html", parts=shown, live=live, section=section, titles=TITLES, token=token, **facts)
    response = make_response(html)
    response.headers["Cache-Control"] = "no-store"
    response.set_cookie(COOKIE, token, httponly=True, samesite="Strict")
    return response


def check_token() -> None:
    """Let a write of one of our pages pass: only they know what is in the browser's cookie.

    Raises:
        AccessError: the token is missing or another one.
    """
    cookie, header = request.cookies.get(COOKIE, ""), request.headers.get(HEADER, "")
    if not cookie or not hmac.compare_digest(cookie.encode(), header.encode()):
        raise AccessError("this write did not come from one of our pages: load the page again")


@blueprint.errorhandler(ExoError)
def show_error(error: ExoError) -> tuple[str, int]:
    """Show what went wrong as a page; what is asked by a script gets it in JSON as ever."""
    return render_template("error.html", error=error, request_id=g.request_id, titles=TITLES), error.status


def show_outage(error: Exception) -> tuple[str, int]:
    """Show that Redis is away, as a page."""
    return show_error(unavailable(error))


for outage in OUTAGES:
    blueprint.register_error_handler(outage, show_outage)
