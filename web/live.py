"""Live pages: one stream per tab carries every part that changed, and on a job's page its text as it grows."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import Final

from flask import Blueprint, Response, current_app, render_template, request, stream_with_context
from markupsafe import escape

from exo_celery import cluster
from exo_celery.records.job import TokenEvent
from web import sse
from web.api_jobs import last_event_id
from web.context import the_cluster
from web.errors import OUTAGES
from web.operation import read_query
from web.panels import PAGES, JobsFilter, Panels, Render, job_page, jobs_page

blueprint: Final = Blueprint("live", __name__, url_prefix="/live")

LOOK_SECONDS: Final = 1.0
SHARED_SECONDS: Final = 0.5
QUIET_SECONDS: Final = 10.0  # without a change for that long, a comment keeps the connection


def part(target: str, html: str, how: str = "innerMorph") -> str:
    """Return HTML for one element of a page, as htmx takes it; morphing keeps focus, scroll and open details."""
    return f'<hx-partial hx-target="#{target}" hx-swap="{how}">{html}</hx-partial>'


class Lookout:
    """Looks for all tabs that show the same page: however many there are, the store is read twice a second at most."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.seen: dict[str, tuple[float, Panels]] = {}

    def look(self, page: str, render: Render) -> Panels:
        """Return a page's parts, at most half a second old."""
        with self.lock:
            seen_at, panels = self.seen.get(page, (-math.inf, {}))
            if time.monotonic() - seen_at >= SHARED_SECONDS:
                panels = render()
                self.seen[page] = time.monotonic(), panels
            return panels


class Board:
    """What one tab has been sent, so that only changes go out."""

    def __init__(self, render: Render) -> None:
        self.render = render
        self.sent: Panels = {}
        self.looked_at = self.spoke_at = 0.0

    def news(self) -> Iterator[str]:
        """Look, at most once a second, and give one frame if something changed."""
        now = time.monotonic()
        if now - self.looked_at < LOOK_SECONDS:
            return
        self.looked_at = now
        shown = self.look()
        changed = {target: html for target, html in shown.items() if self.sent.get(target) != html}
        self.sent |= changed
        if changed or now - self.spoke_at >= QUIET_SECONDS:
            self.spoke_at = now
            parts = "".join(part(target, html) for target, html in changed.items())
            yield sse.frame(parts) if parts else sse.KEEP_ALIVE

    def look(self) -> Panels:
        """Return the parts as they are now; in an outage the last known stay, under a line that says so."""
        try:
            return self.render() | {"outage": ""}
        except OUTAGES:
            return {"outage": render_template("panels/outage.html")}


def watch(board: Board, gone: Callable[[], bool], texts: Iterable[str] = ()) -> Iterator[str]:
    """Give changes, and texts as they come, until the client has gone."""
    yield from board.news()
    for text in texts:
        yield text
        yield from board.news()
        if gone():
            return
    while not gone():
        time.sleep(LOOK_SECONDS)
        yield from board.news()


@blueprint.get("/<any(cluster, models, instances, batches):name>")
def page(name: str) -> Response:
    """Stream the changes of a page."""
    c, lookout, render = the_cluster(), the_lookout(), PAGES[name]
    return started(Board(lambda: lookout.look(name, lambda: render(c))))


@blueprint.get("/jobs")
def jobs() -> Response:
    """Stream the changes of the list of jobs."""
    c, lookout, state = the_cluster(), the_lookout(), read_query(JobsFilter).state
    return started(Board(lambda: lookout.look(f"jobs {state}", lambda: jobs_page(c, state))))


@blueprint.get("/jobs/<record_id:job_id>")
def job(job_id: str) -> Response:
    """Stream a job's state, and its text unless the page that asks came with all of it."""
    c, after = the_cluster(), last_event_id()
    texts = () if request.args.get("whole") else written(cluster.follow(c, job_id, after))
    return started(Board(lambda: job_page(c, job_id)), texts)


def the_lookout() -> Lookout:
    """Return the lookout of the application that answers the current request."""
    lookout: Lookout = current_app.extensions.setdefault("exo_lookout", Lookout())
    return lookout


def started(board: Board, texts: Iterable[str] = ()) -> Response:
    """Answer with a live stream."""
    return sse.stream(stream_with_context(watch(board, sse.client_watch(), texts)))


def written(events: Iterator[TokenEvent | None]) -> Iterator[str]:
    """Write a job's text into its page: a new attempt empties it, a delta goes to its end."""
    for event in events:
        if event is None:
            yield sse.KEEP_ALIVE
        elif event.kind == "attempt":
            yield sse.frame(part("answer", "", "innerHTML"), event_id=event.id)
        elif event.kind == "delta":
            text = str(escape(event.text)).replace("\r", "")
            yield sse.frame(part("answer", text, "beforeend"), event_id=event.id)
        else:
            yield sse.frame("", event_id=event.id)
