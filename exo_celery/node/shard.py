"""One rank that this node holds, with its processes."""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from exo_celery.node.serving_process import ServingProcess
from exo_celery.records.instance import Rank, RankState
from exo_celery.runner.process import RunnerProcess


@dataclass
class Shard:
    """One rank held by this node: its runner, and what was last said of it."""

    instance: str
    model: str
    rank: Rank
    world: int
    state: RankState
    runner: RunnerProcess | None = None
    serving: ServingProcess | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)
    begun_at: float = field(default_factory=time.monotonic)

    def stop(self) -> None:
        """End its processes and wait until they are gone; the serving worker first, it hands its jobs back."""
        with self.lock:
            serving, runner = self.serving, self.runner
        if serving:
            serving.stop()
        if runner:
            runner.stop()

    def describe(self) -> dict[str, Any]:
        """Return it as `inspect shards` shows it."""
        runner, serving = self.runner, self.serving
        facts = {
            "instance": self.instance,
            "model": self.model,
            "rank": self.rank.rank,
            "layers": [self.rank.start_layer, self.rank.end_layer],
            "ring_size": self.world,
            "pid": runner.pid if runner else None,
            "serving_pid": serving.pid if serving else None,
        }
        return facts | self.state.model_dump(mode="json", exclude={"boot_id"})
