"""When a local cluster is ready: each node has written its downloads, the web answers, and nobody has ended."""

import http.client
from collections.abc import Mapping
from typing import Final

from exo_celery.errors import UnavailableError
from exo_celery.local.layout import Layout
from exo_celery.models.survey import places
from exo_celery.records.download import HF_CACHE
from exo_celery.settings import load
from exo_celery.store import downloads, nodes
from exo_celery.store.client import TRANSIENT, connect, now

PATIENCE_SECONDS: Final = 1.0


class Readiness:
    """A question that is asked until the answer is yes. Make it before the nodes are started.

    Raises:
        UnavailableError: Redis does not answer.
    """

    def __init__(self, layout: Layout, environ: Mapping[str, str]) -> None:
        self.layout = layout
        self.settings = {node: load(layout.node(node, environ).env) for node in layout.node_ids}
        self.ns = load(layout.environ(environ)).namespace
        self.redis = connect(load(layout.environ(environ)), retries=0, timeout_seconds=PATIENCE_SECONDS)
        try:
            self.since = now(self.redis)
        except TRANSIENT as error:
            raise UnavailableError(f"Redis does not answer: {error}; is EXO_REDIS_URL right?") from error

    def reached(self, pids: Mapping[str, int]) -> bool:
        """Tell if the cluster of these processes is ready."""
        try:
            reported = all(self.has_reported(node, pids[node]) for node in self.layout.node_ids)
        except TRANSIENT:
            return False
        return reported and self.web_answers()

    def has_reported(self, node: str, pid: int) -> bool:
        """Tell if this node's worker lives, and what its disk holds stands in Redis as of now."""
        record, life = nodes.record(self.redis, self.ns, node), nodes.life(self.redis, self.ns, node)
        if record is None or life is None or (record.pid, record.boot_id) != (pid, life.boot_id):
            return False
        told = {one.model: one.updated_at >= self.since for one in downloads.every(self.redis, self.ns, [node])}
        on_disk = {place.model for place in places(self.settings[node]) if place.source != HF_CACHE}
        return on_disk <= told.keys() and all(told.values())

    def web_answers(self) -> bool:
        """Ask the web if it lives."""
        link = http.client.HTTPConnection("127.0.0.1", self.layout.web_port, timeout=PATIENCE_SECONDS)
        try:
            link.request("GET", "/healthz")
            return link.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            link.close()
