"""One node's downloads beside a hub, and a caller of its cluster: what most tests of downloads need."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from flask.testing import FlaskClient

from exo_celery import cluster as asked
from exo_celery.cli import main
from exo_celery.context import Context, open_context
from exo_celery.node.downloads import Downloads
from exo_celery.records.download import Download, DownloadStatus
from exo_celery.records.instance import Instance, InstanceStatus, PlacementRequest, Rank
from exo_celery.records.job import Job, JobRequest
from exo_celery.records.model import AddModel
from exo_celery.records.node import Node
from exo_celery.settings import Settings
from exo_celery.store import downloads as store
from exo_celery.store import instances, jobs, nodes
from lookalike.checkpoints import write_model
from lookalike.hub import Hub
from web import create_app

MODEL = "org/tiny"
WEIGHTS = "model.safetensors"
HERE = f"/api/downloads/n1/{MODEL}"


@contextmanager
def opened(root: Path, redis_url: str, namespace: str) -> Iterator["Lab"]:
    """Let a hub have the model, and a node live that has nothing."""
    write_model(root / "upstream", hidden=64)
    with Hub({MODEL: root / "upstream"}) as hub:
        settings = Settings(
            redis_url=redis_url,
            namespace=namespace,
            models_dirs=(root / "n1",),
            hf_home=root / "hf",
            hf_endpoint=hub.url,
        )
        made = Lab(root, hub, open_context(settings))
        yield made
        made.node.stop()
        made.cluster.redis.close()


class Lab:
    """One node's downloads beside a hub, and a caller of the cluster."""

    def __init__(self, root: Path, hub: Hub, cluster: Context) -> None:
        self.root, self.hub, self.cluster = root, hub, cluster
        self.boot()
        self.web: FlaskClient = create_app(cluster.settings).test_client()

    def boot(self, **settings: Any) -> None:
        """Start the node (again), as it would start with these settings."""
        given = self.cluster.settings.model_copy(update=settings)
        self.node = Downloads(given, self.cluster.redis, "n1", lambda model: None)
        nodes.heartbeat(self.cluster.redis, self.cluster.ns, Node(id="n1", boot_id="b1"))

    @property
    def folder(self) -> Path:
        return self.root / "n1" / "org--tiny"

    def hash(self) -> Download:
        return asked.download(self.cluster, "n1", MODEL)

    def wishes(self) -> dict[str, str]:
        wanted = store.wishes(self.cluster.redis, self.cluster.ns, "n1")
        return {model: wish.action for model, wish in wanted.items()}

    def post(self, path: str, **body: Any) -> tuple[int, Any]:
        answer = self.web.post(path, json=body) if body else self.web.post(path)
        return answer.status_code, answer.json

    def delete(self) -> tuple[int, Any]:
        answer = self.web.delete(HERE)
        return answer.status_code, answer.json

    def run(self, *words: str) -> Result:
        given = self.cluster.settings
        return CliRunner(env={"EXO_REDIS_URL": given.redis_url, "EXO_NAMESPACE": given.namespace}).invoke(main, words)

    def until(self, what: Callable[[], object], seconds: float = 10) -> None:
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, f"not within {seconds} s; the hash is {self.hash()}"
            time.sleep(0.02)

    def whole(self) -> None:
        """Let the node have the model, and everybody know it."""
        shutil.copytree(self.root / "upstream", self.folder)
        asked.add_model(self.cluster, AddModel(model=MODEL, path=str(self.folder)))
        self.node.report()

    def coming(self) -> None:
        """Let the node be in the middle of its download."""
        self.hub.rate = 20_000
        self.want()
        self.until(lambda: self.hash().status is DownloadStatus.ONGOING and self.hash().downloaded_bytes > 0)

    def place(self) -> Instance:
        """Let an instance have its one rank on the node."""
        rank = Rank(node="n1", rank=0, start_layer=0, end_layer=4)
        request = PlacementRequest(model=MODEL)
        placed = Instance(id="i1", model=MODEL, request=request, status=InstanceStatus.DOWNLOADING, ring=(rank,))
        return instances.save(self.cluster.redis, self.cluster.ns, placed)

    def want(self) -> None:
        """Wish for the model as a user does, and let the node begin."""
        asked.add_model(self.cluster, AddModel(model=MODEL))
        self.want_again()

    def want_again(self) -> None:
        """Wish for the model, which is known, and let the node begin."""
        asked.start_download(self.cluster, "n1", MODEL)
        self.node.work_off()

    def submit(self) -> None:
        """Let a job wait for the model."""
        job = Job(id="j1", model=MODEL, request=JobRequest(model=MODEL, prompt="x"))
        jobs.submit(self.cluster.redis, self.cluster.ns, job)
