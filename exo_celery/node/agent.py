"""The agent of a node: it claims the id, beats, reports at boot, and looks after downloads and shards.

Its threads are its own: the worker's timer stands still during a reconnect and a warm shutdown, the agent does not.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable
from os import getpid
from pathlib import Path
from typing import Final

from celery import Celery

from exo_celery import queues
from exo_celery import settings as configuration
from exo_celery.errors import ModelFolderError
from exo_celery.models import catalog
from exo_celery.node import fit, identity, machine, trust
from exo_celery.node.addresses import bind_address, own_addresses
from exo_celery.node.bell import Bell
from exo_celery.node.downloads import Downloads
from exo_celery.node.links import Links
from exo_celery.node.shards import Shards
from exo_celery.records.download import Download, DownloadStatus
from exo_celery.records.node import Node
from exo_celery.settings import Settings
from exo_celery.store import cards, instances, keys, nodes
from exo_celery.store.client import RedisError, connect, uptime_seconds

log = logging.getLogger(__name__)
RETRY_SECONDS: Final = 1


class Agent:
    """Everything a node worker does besides taking tasks."""

    def __init__(self, settings: Settings, app: Celery, worker: str) -> None:
        self.settings = settings
        self.app = app
        self.worker = worker
        self.ns = settings.namespace
        self.node_id = configuration.node_id(settings)
        self.boot_id = uuid.uuid4().hex
        self.redis = connect(settings)
        self.secret = trust.cluster_secret(settings, self.redis)
        self.addresses = own_addresses(settings)
        listen_at = bind_address(self.addresses)
        self.downloads = Downloads(settings, self.redis, self.node_id, self.model_changed, listen_at)
        ring_key = trust.purpose_key(self.secret, "ring")
        self.shards = Shards(
            settings, self.redis, self.node_id, self.boot_id, self.addresses, ring_key, self.hint, self.beat
        )
        bell_key = trust.purpose_key(self.secret, "bell")
        self.links = Links(self.redis, self.ns, self.node_id, bell_key)
        self.bell = Bell(listen_at, self.node_id, bell_key, self.links.rung)
        self.stopping = threading.Event()
        self.beat_now = threading.Event()
        self.connected_at = time.monotonic()
        self.threads: list[threading.Thread] = []

    def start(self) -> None:
        """Claim the node id and begin to live.

        Raises:
            ConfigurationError: another live process has this node id, or this node does not fit the cluster.
        """
        identity.claim(self.redis, self.ns, self.node_id, self.boot_id)
        fit.check(self.settings, self.redis, trust.proof(self.secret))
        self.beat()
        self.run(self.live, "heartbeat")
        self.run(self.links.run, "links")

    def boot_report(self) -> None:
        """Report what the disk holds, then go on with what is wanted; called once the worker takes tasks."""
        self.run(self.first_report, "boot-report")

    def run(self, target: Callable[[], None], name: str) -> None:
        """Start a thread of the agent."""
        thread = threading.Thread(target=target, name=f"agent-{name}", daemon=True)
        self.threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """End runners and downloads (bytes are kept) and leave the cluster at once."""
        self.stopping.set()
        self.beat_now.set()
        self.links.stop()
        self.bell.close()
        self.downloads.stop()
        self.shards.stop()
        for thread in self.threads:
            thread.join(timeout=keys.HEARTBEAT)
        try:
            nodes.leave(self.redis, self.ns, self.node_id, self.boot_id)
        except RedisError as error:
            log.warning("could not leave the cluster, the heartbeat's end will tell: %s", error)

    def live(self) -> None:
        """Beat and look after the shards until the end."""
        while not self.stopping.is_set():
            self.beat_now.wait(keys.HEARTBEAT)
            self.beat_now.clear()
            if self.stopping.is_set():
                return
            try:
                self.beat()
                self.shards.check()
            except RedisError as error:
                self.connected_at = time.monotonic()
                log.warning("heartbeat: Redis does not answer, trying again: %s", error)
                self.stopping.wait(RETRY_SECONDS)
                self.beat_now.set()
            except Exception:  # the outermost loop: a node that takes tasks but has stopped beating helps nobody
                log.exception("heartbeat: going on")

    def beat(self) -> None:
        """Write this node's record and renew its life."""
        nodes.heartbeat(self.redis, self.ns, self.describe())

    def describe(self) -> Node:
        """Return this node's record, measured now."""
        memory = machine.memory(self.settings.memory_limit, self.shards.pids())
        return Node(
            id=self.node_id,
            hostname=machine.hostname(),
            worker=self.worker,
            boot_id=self.boot_id,
            pid=getpid(),
            addresses=self.addresses,
            port=self.bell.port,
            peer_port=self.downloads.peering.port,
            links_at=self.links.measured_at,
            unreached=self.links.unreached,
            secret_proof=trust.proof(self.secret),
            ram_total_bytes=memory.total_bytes,
            ram_available_bytes=memory.available_bytes,
            disk_free_bytes=machine.disk_free_bytes(self.settings.writable_dirs),
            load_bps=self.shards.load_bps,
            backends=machine.backends(),
            versions=machine.versions(),
            labels=self.settings.labels,
            models_dirs=tuple(str(folder) for folder in self.settings.writable_dirs),
        )

    def first_report(self) -> None:
        """Report until Redis has it."""
        while not self.stopping.is_set():
            try:
                self.report()
                self.downloads.work_off()
            except RedisError as error:
                log.warning("boot report: Redis does not answer, trying again: %s", error)
                self.stopping.wait(RETRY_SECONDS)
            else:
                return

    def report(self) -> list[Download]:
        """Write cards for whole models nobody knew, then the download hashes: what is completed can be placed."""
        known = cards.ids(self.redis, self.ns)
        for download in self.downloads.on_disk():
            if download.status is DownloadStatus.COMPLETED and download.model not in known:
                self.introduce(download)
        return self.downloads.report()

    def introduce(self, download: Download) -> None:
        """Write the card of a model that was found on this disk."""
        try:
            card = catalog.card_from_folder(download.model, Path(download.directory))
        except ModelFolderError as error:
            log.warning("%s has no card: %s", download.model, error)
            return
        cards.save(self.redis, self.ns, card)

    def model_changed(self, model: str) -> None:
        """Tell the instances of a model that its download on this node moved."""
        for instance in instances.every(self.redis, self.ns):
            if instance.model == model:
                self.hint(instance.id)

    def hint(self, instance_id: str) -> None:
        """Ask for a look at an instance now instead of at the next tick; memory is measured anew before."""
        self.beat_now.set()
        queues.hint(self.app, "exo.reconcile_instance", instance_id, queue=queues.CLUSTER)

    def in_grace(self) -> bool:
        """Tell whether Redis, or our way to it, came back less than one node life ago: nothing is lost yet."""
        ours = time.monotonic() - self.connected_at
        return min(ours, uptime_seconds(self.redis)) < keys.GRACE
