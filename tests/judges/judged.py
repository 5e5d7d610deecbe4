"""The cluster that the judges ask, and the way to lose a node of it."""

import psutil
from live import Live

SPEAKS = "org/speaks"


class Judged(Live):
    """A running cluster with the demo model on two nodes and another one on the first."""

    def lose_a_node(self) -> int:
        """Kill -9 the last rank's runner of the demo model; return the epoch that was."""
        [epoch] = [one["epoch"] for one in self.get("/api/instances")["instances"] if one["model"] != SPEAKS]
        children = psutil.Process(self.facts["nodes"]["node-2"]["pid"]).children(recursive=True)
        [runner] = [child for child in children if "exo_celery.runner.main" in child.cmdline()]
        runner.kill()
        return int(epoch)

    def found_again(self, epoch: int) -> None:
        """Wait until the ring that was lost is formed anew."""
        [demo] = [one["id"] for one in self.get("/api/instances")["instances"] if one["model"] != SPEAKS]
        self.ready(demo, epoch + 1, seconds=120)
