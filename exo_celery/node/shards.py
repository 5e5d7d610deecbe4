"""The shards of this node: a runner per rank it holds, and the serving worker beside a first rank.

Each step is asked for by `exo.load_shard` and taken from the instance's record: no runner yet → load; loaded and the
instance warming → link. Whatever a runner says goes into the rank's record, fenced by the epoch.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from exo_celery.errors import RunnerError
from exo_celery.node import machine
from exo_celery.node.addresses import bind_address
from exo_celery.node.serving_process import ServingProcess
from exo_celery.node.shard import Shard
from exo_celery.records.instance import Instance, InstanceStatus, Rank, RankState, RankStatus
from exo_celery.records.node import LinkRecord
from exo_celery.runner.process import RunnerProcess
from exo_celery.runner.protocol import ControlEvent, Exited, Failed, Loaded, Loading, Measured, Ready, ShardSpec
from exo_celery.settings import Settings
from exo_celery.store import client, downloads, instances, links
from exo_celery.store.client import Redis, RedisError

log = logging.getLogger(__name__)
MEASURABLE_SECONDS: Final = 0.01
HOLDS_RUNNERS: Final = frozenset({InstanceStatus.LOADING, InstanceStatus.WARMING, InstanceStatus.READY})


class Shards:
    """All shards of a node. Safe to call from any thread."""

    def __init__(
        self,
        settings: Settings,
        redis: Redis,
        node_id: str,
        boot_id: str,
        addresses: tuple[str, ...],
        ring_key: bytes,
        hint: Callable[[str], None],
        beat: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.redis = redis
        self.ns = settings.namespace
        self.node_id = node_id
        self.boot_id = boot_id
        self.addresses = addresses
        self.ring_key = ring_key
        self.hint = hint
        self.beat = beat
        self.held: dict[str, Shard] = {}
        self.ending: set[str] = set()
        self.lock = threading.RLock()
        self.stopped = False
        self.load_bps: float | None = None

    def advance(self, instance_id: str, epoch: int, rank_number: int) -> None:
        """Bring a shard one step on, as the instance's record says; asked twice, it does nothing the second time."""
        instance = instances.find(self.redis, self.ns, instance_id)
        if instance is None or instance.epoch != epoch or instance.status not in HOLDS_RUNNERS:
            return
        rank = next((r for r in instance.ring if r.rank == rank_number and r.node == self.node_id), None)
        if rank is None:
            return
        with self.lock:
            shard = self.current(instance)
            if shard is None and not self.stopped:
                self.load(instance, rank)
            elif shard and shard.state.status is RankStatus.LOADED and instance.status is InstanceStatus.WARMING:
                self.link(shard, instance)

    def current(self, instance: Instance) -> Shard | None:
        """Return the shard held for this epoch of an instance; one of an older epoch is ended."""
        shard = self.held.get(instance.id)
        if shard and shard.state.epoch != instance.epoch:
            self.drop(shard)
            return None
        return shard

    def load(self, instance: Instance, rank: Rank) -> None:
        """Start a runner for the rank."""
        state = RankState(epoch=instance.epoch, boot_id=self.boot_id, status=RankStatus.LOADING)
        shard = Shard(instance.id, instance.model, rank, len(instance.ring), state)
        self.held[instance.id] = shard
        try:
            spec = self.spec(instance, rank)
            self.say(shard, status=RankStatus.LOADING, address=self.addresses[0])
            with shard.lock:
                shard.runner = RunnerProcess.start(spec, self.ring_key, lambda event: self.heard(shard, event))
                self.serve(shard)
        except (RunnerError, OSError, ValueError) as error:
            self.fail(shard, str(error))

    def spec(self, instance: Instance, rank: Rank) -> ShardSpec:
        """Return what the runner is to hold.

        Raises:
            RunnerError: the model is no longer whole on this node.
        """
        download = downloads.get(self.redis, self.ns, self.node_id, instance.model)
        if download is None or not download.directory:
            raise RunnerError(f"{instance.model} is not on {self.node_id}")
        return ShardSpec(
            instance=instance.id,
            epoch=instance.epoch,
            rank=rank.rank,
            world=len(instance.ring),
            model_dir=Path(download.directory),
            start_layer=rank.start_layer,
            end_layer=rank.end_layer,
            n_layers=max(each.end_layer for each in instance.ring),
            sharding="tensor" if instance.sharding == "tensor" else "pipeline",
            host=bind_address(self.addresses),
            threads=self.settings.threads or 0,
            slots=self.settings.serve_slots,
            memory_bytes=machine.memory(self.settings.memory_limit, self.pids()).available_bytes,
        )

    def link(self, shard: Shard, instance: Instance) -> None:
        """Let the runner form the ring with the addresses that all ranks have published."""
        mine = links.every(self.redis, self.ns, [self.node_id])[self.node_id]
        peers = [peer_address(mine.get(rank.node), instance.ranks[rank.rank]) for rank in instance.ring]
        self.say(shard, status=RankStatus.WARMING)
        try:
            if shard.runner:
                shard.runner.link(peers)
        except RunnerError as error:
            self.fail(shard, str(error))

    def heard(self, shard: Shard, event: ControlEvent) -> None:
        """Take down what a runner says; called from the runner's own threads."""
        match event:
            case Loading(layers=layers):
                self.say(shard, loaded_layers=layers)
            case Loaded(port=port, weights_bytes=weights_bytes):
                self.load_bps = weights_bytes / max(time.monotonic() - shard.begun_at, MEASURABLE_SECONDS)
                self.say(shard, status=RankStatus.LOADED, port=port, weights_bytes=weights_bytes)
                self.hint(shard.instance)
            case Ready(slots=slots):
                self.say(shard, status=RankStatus.READY, slots=slots)
                self.hint(shard.instance)
            case Measured(figures=figures):
                self.say(shard, engine=figures)
            case Failed(message=message):
                self.fail(shard, message)
            case Exited(returncode=returncode):
                self.fail(shard, f"its runner ended with exit code {returncode}")

    def serve(self, shard: Shard) -> None:
        """Start the serving worker beside a first rank; it waits for the ring, so that its start costs nobody time."""
        with shard.lock:
            if shard.rank.rank == 0 and shard.runner and self.held.get(shard.instance) is shard:
                slots = self.settings.serve_slots
                shard.serving = ServingProcess.start(shard.instance, shard.model, shard.runner.socket_path, slots)

    def say(self, shard: Shard, **changes: Any) -> None:
        """Write a rank's state; while Redis is away it is kept, and written by the next check."""
        with shard.lock:
            shard.state = shard.state.evolve(**changes)
            with suppress(RedisError):
                now = client.now(self.redis)
                shard.state = shard.state.evolve(updated_at=now)
                instances.save_rank(self.redis, self.ns, shard.instance, shard.rank.rank, shard.state)

    def fail(self, shard: Shard, reason: str) -> None:
        """Note the first reason why a rank failed, end what is left of it, and ask for a look at the instance."""
        if shard.state.status is RankStatus.FAILED or self.held.get(shard.instance) is not shard:
            return
        log.warning("%s rank %d failed: %s", shard.instance, shard.rank.rank, reason)
        self.say(shard, status=RankStatus.FAILED, error=reason)
        self.end(shard)

    def unload(self, instance_id: str) -> None:
        """End this node's shard of an instance; where none is left, say so."""
        with self.lock:
            shard = self.held.get(instance_id)
            ending = instance_id in self.ending
            if shard:
                self.drop(shard)
        if not shard and not ending:
            self.say_unloaded(instance_id)
            self.hint(instance_id)

    def drop(self, shard: Shard) -> None:
        """Forget a shard and end its processes; what its runner says from now on is not heard."""
        self.held.pop(shard.instance, None)
        self.end(shard)

    def end(self, shard: Shard) -> None:
        """End the processes of a shard, then ask for a look at its instance: by then their memory is free again.

        In a thread of its own, since the runner may be the one who asks.
        """
        self.ending.add(shard.instance)

        def stop_then_hint() -> None:
            shard.stop()
            self.ending.discard(shard.instance)
            self.say_unloaded(shard.instance)
            self.hint(shard.instance)

        threading.Thread(target=stop_then_hint, name=f"end-{shard.instance}").start()

    def say_unloaded(self, instance_id: str) -> None:
        """Say of an instance that is to go that this node holds none of it, once its memory is measured without it.

        While Redis is away nothing is said; the instance's next look asks again.
        """
        with suppress(RedisError):
            instance = instances.find(self.redis, self.ns, instance_id)
            if instance is None or instance.status is not InstanceStatus.DRAINING:
                return
            self.beat()
            state = RankState(epoch=instance.epoch, boot_id=self.boot_id, status=RankStatus.WAITING)
            for rank in instance.ring:
                if rank.node == self.node_id:
                    instances.save_rank(self.redis, self.ns, instance_id, rank.rank, state)

    def check(self) -> None:
        """Hold the shards against their records: end what no longer belongs, write what could not be written."""
        with self.lock:
            for shard in list(self.held.values()):
                instance = instances.find(self.redis, self.ns, shard.instance)
                if instance is None or not self.belongs(shard, instance):
                    self.drop(shard)
                    continue
                if instance.ranks.get(shard.rank.rank) != shard.state:
                    instances.save_rank(self.redis, self.ns, shard.instance, shard.rank.rank, shard.state)
                    self.hint(shard.instance)
                self.keep_serving(shard)

    def belongs(self, shard: Shard, instance: Instance) -> bool:
        """Tell whether an instance, as it stands, still has this shard here."""
        return (
            instance.epoch == shard.state.epoch
            and instance.status in HOLDS_RUNNERS
            and any(rank == shard.rank for rank in instance.ring)
        )

    def keep_serving(self, shard: Shard) -> None:
        """Start the serving worker again where it has died though its runner lives."""
        ended = shard.serving.returncode if shard.serving else None
        if ended is not None and shard.state.status is not RankStatus.FAILED:
            log.warning("the serving worker of %s ended with exit code %d: starting it again", shard.instance, ended)
            self.serve(shard)

    def pids(self) -> list[int]:
        """Return the process ids of the runners, whose memory counts as this node's."""
        return [shard.runner.pid for shard in self.snapshot() if shard.runner]

    def describe(self) -> list[dict[str, Any]]:
        """Return the shards as `inspect shards` shows them."""
        return [shard.describe() for shard in self.snapshot()]

    def snapshot(self) -> list[Shard]:
        """Return the shards held now."""
        with self.lock:
            return list(self.held.values())

    def stop(self) -> None:
        """End all shards and wait until their processes are gone."""
        with self.lock:
            self.stopped = True
            shards = list(self.held.values())
            self.held.clear()
        for shard in shards:
            shard.stop()


def peer_address(link: LinkRecord | None, state: RankState) -> str:
    """Return `host:port` of a rank: at the address that answers us fastest, else the one that it published."""
    return f"{link.address if link else state.address}:{state.port}"
