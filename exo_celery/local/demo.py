"""`exo-celery demo`: the main job on real parts, told step by step. It asks what any user could ask, over REST."""

import http.client
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from exo_celery import queues
from exo_celery.errors import ExoError, UnavailableError
from exo_celery.local import demo_cluster, show
from exo_celery.local.demo_cluster import LOOK_SECONDS, TICK_SECONDS, wait_until
from exo_celery.local.rest import Rest
from exo_celery.local.task_log import TaskLog
from exo_celery.models.demo import MODEL, ensure_demo_model
from exo_celery.settings import Settings, load

QUESTION: Final = "What is the capital of France?"
MIN_NODES: Final = 2
READY_SECONDS: Final = 180.0
EVENTS_SECONDS: Final = 3.0 * TICK_SECONDS


def demo(data_dir: Path, environ: Mapping[str, str]) -> None:
    """Run the demo in a folder of its own; a step that fails ends it with exit code 1, the reason and the logs."""
    console = Console()
    try:
        Demo(console).run(data_dir, environ)
    except (ExoError, OSError, http.client.HTTPException) as error:
        console.print(escape(demo_cluster.last_words(data_dir)))
        console.print(f"[red]The demo failed:[/red] {escape(str(error))}")
        raise SystemExit(1) from error


class Demo:
    """One run and where it tells of it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.begun_at = time.monotonic()

    def step(self, text: str) -> None:
        """Tell of the next step, with the seconds since the start."""
        self.console.print(f"\n[bold]{time.monotonic() - self.begun_at:5.1f} s  {escape(text)}[/bold]")

    def run(self, data_dir: Path, environ: Mapping[str, str]) -> None:
        """Do everything.

        Raises:
            ExoError: a step failed.
        """
        self.step(f"The demo model, {MODEL}")
        with show.progress() as say:
            folder = ensure_demo_model(load(environ).cache_dir, say)
        self.console.print(f"complete in {folder}")
        self.step("Starting Redis, beat, the web and three node workers on this machine")
        env = demo_cluster.environment(environ)
        with demo_cluster.running(data_dir, env) as told:
            self.console.print(f"{told['web_url']}; beat ticks every {TICK_SECONDS} s here, every 300 s by default")
            rest = Rest(told["web_url"], load(environ).api_key)
            with TaskLog(Settings(redis_url=told["redis_url"], namespace=load(env).namespace)) as tasks:
                self.show_nodes(rest)
                instance = self.place(rest)
                self.follow(rest, instance["id"])
                self.ask(rest)
                self.show_tasks(tasks, list(told["nodes"]), [rank["node"] for rank in instance["ring"]])
        self.step("Done, and nothing of it runs any more")

    def show_nodes(self, rest: Rest) -> None:
        """Show what each node has of the model."""
        self.step("What the nodes have on their disks")
        downloads = [one for one in rest.get("/api/downloads")["downloads"] if one["model"] == MODEL]
        columns = ("node", "status", "downloaded_bytes", "total_bytes", "directory")
        show.table(columns, downloads, self.console)

    def place(self, rest: Rest) -> dict[str, Any]:
        """Place the model, show the ring, and return the instance."""
        self.step(f"Placing it on at least {MIN_NODES} nodes")
        found: dict[str, Any] = rest.post("/api/instances", {"model": MODEL, "min_nodes": MIN_NODES})
        path = f"/api/instances/{found['id']}"

        def placed() -> bool:
            found.update(rest.get(path))
            return bool(found["ring"]) or found["status"] == "failed"

        wait_until(placed, READY_SECONDS, "a ring")
        self.console.print(f"instance {found['id']}: {escape(found['why'])}")
        show.table(("rank", "node", "start_layer", "end_layer"), found["ring"], self.console)
        return found

    def follow(self, rest: Rest, instance_id: str) -> None:
        """Show downloads and ranks until the instance is ready.

        Raises:
            UnavailableError: it failed, or took too long.
        """
        self.step("Bringing the rest of the model, then loading each rank's layers")
        seen: dict[str, str] = {}
        deadline = time.monotonic() + READY_SECONDS
        with Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), console=self.console) as bars:
            shown: dict[str, TaskID] = {}
            while True:
                found = rest.get(f"/api/instances/{instance_id}")
                show_bytes(
                    bars, shown, rest.get("/api/downloads")["downloads"], [rank["node"] for rank in found["ring"]]
                )
                self.tell_changes(found, seen)
                if found["status"] == "ready":
                    return
                if found["status"] == "failed" or time.monotonic() > deadline:
                    raise UnavailableError(f"the instance is {found['status']}: {found['error'] or 'it took too long'}")
                time.sleep(LOOK_SECONDS)

    def tell_changes(self, found: dict[str, Any], seen: dict[str, str]) -> None:
        """Tell which ranks, and whether the instance, came to another state."""
        for rank in found["ring"]:
            layers = f"{rank['node']}, layers {rank['start_layer']} to {rank['end_layer'] - 1}"
            self.tell_change(layers, rank["status"], seen)
        self.tell_change("instance", found["status"], seen)

    def tell_change(self, what: str, status: str, seen: dict[str, str]) -> None:
        """Tell of a state that was not seen last."""
        if seen.get(what) != status:
            seen[what] = status
            self.console.print(f"{time.monotonic() - self.begun_at:5.1f} s  {what}: {status}")

    def ask(self, rest: Rest) -> None:
        """Send a job through the queue, show its answer as it comes, and its speed.

        Raises:
            UnavailableError: the job did not succeed.
        """
        self.step(f"A job: {QUESTION}")
        messages = [{"role": "user", "content": QUESTION}]
        asked = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 64}
        job_id = rest.post("/api/jobs", asked)["id"]
        for event, data in rest.stream(f"/api/jobs/{job_id}/stream"):
            if event == "delta":
                self.console.print(escape(data["text"]), end="", style="green")
        self.console.print()
        job = rest.get(f"/api/jobs/{job_id}")
        if job["state"] != "succeeded":
            raise UnavailableError(f"job {job_id} is {job['state']}: {job['error']}")
        usage = job["usage"]
        self.console.print(
            f"{usage['completion_tokens']} tokens, {usage['tokens_per_second']:.1f} tokens/s; first token after "
            f"{job['first_token_at'] - job['created_at']:.2f} s; ring {' → '.join(job['ring'])}"
        )

    def show_tasks(self, tasks: TaskLog, nodes: list[str], ring: list[str]) -> None:
        """Show which tasks ran where; each step must have gone through its queue.

        Raises:
            UnavailableError: one did not.
        """
        self.step("The tasks that did it, from Celery's own events")
        expected = [("exo.report_downloads", queues.node_queue(node)) for node in nodes]
        expected += [("exo.place_model", queues.CLUSTER)]
        expected += [("exo.load_shard", queues.node_queue(node)) for node in ring]
        expected += [("exo.generate", queues.model_queue(MODEL))]
        wait_until(lambda: all(tasks.has(*one) for one in expected), EVENTS_SECONDS, f"the tasks {expected}")
        show.table(("task", "queue", "workers", "times"), tasks.rows(), self.console)


def show_bytes(bars: Progress, shown: dict[str, TaskID], downloads: list[dict[str, Any]], ring: list[str]) -> None:
    """Move the bars of the ring's nodes to the bytes that they have."""
    for one in downloads:
        node = one["node"]
        if one["model"] == MODEL and node in ring:
            if node not in shown:
                shown[node] = bars.add_task(f"{node} has", total=one["total_bytes"])
            bars.update(shown[node], completed=one["downloaded_bytes"])
