"""Downloads: the tick that has every node report, and what a node does about its own."""

from exo_celery import queues
from exo_celery.celery import app
from exo_celery.node import hosted
from exo_celery.store import nodes, ticks
from exo_celery.tasks.here import context


@app.task(name="exo.tick_downloads")
def tick_downloads() -> None:
    """Send each live node one `report_downloads`; what is not taken until the next tick expires."""
    cluster = context()
    seconds = cluster.settings.report_seconds
    if not ticks.take(cluster.redis, cluster.ns, "tick_downloads", seconds, hosted.agent().node_id):
        return
    for node in nodes.live_boots(cluster.redis, cluster.ns):
        queues.send(cluster.app, "exo.report_downloads", queue=queues.node_queue(node), expires=seconds)


@app.task(name="exo.report_downloads")
def report_downloads() -> None:
    """Write this node's download hashes from its disk, and go on with what is wanted."""
    hosted.agent().report()
    hosted.agent().downloads.work_off()


@app.task(name="exo.work_off_wanted")
def work_off_wanted() -> None:
    """Start, stop or delete what the wishes for this node say."""
    hosted.agent().downloads.work_off()
