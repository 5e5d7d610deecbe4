"""Which tasks ran where, from Celery's own events: what `celery events` and Flower see too."""

import threading
from collections import Counter
from types import TracebackType
from typing import Any, Self

from exo_celery.queues import sender
from exo_celery.settings import Settings


class TaskLog:
    """A listener in a thread; knows queue and worker of every task that was sent while it listened."""

    def __init__(self, settings: Settings) -> None:
        self.app = sender(settings)
        self.queues: dict[str, str] = {}  # task id → queue
        self.taken: dict[str, tuple[str, str]] = {}  # task id → name and worker
        handlers = {"task-sent": self.sent, "task-received": self.received}
        self.receiver = self.app.events.Receiver(self.app.connection_for_read(), handlers)
        self.thread = threading.Thread(target=self.listen, name="task-log", daemon=True)

    def __enter__(self) -> Self:
        """Start to listen."""
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Stop."""
        self.receiver.should_stop = True
        self.thread.join()
        self.app.close()

    def listen(self) -> None:
        """Take events until told to stop."""
        self.receiver.capture(limit=None, timeout=None, wakeup=False)

    def sent(self, event: dict[str, Any]) -> None:
        """Note a task's queue."""
        self.queues[event["uuid"]] = event["queue"]

    def received(self, event: dict[str, Any]) -> None:
        """Note a task's name and worker."""
        self.taken[event["uuid"]] = (event["name"], event["hostname"])

    def rows(self) -> list[dict[str, Any]]:
        """Return task, queue, its workers and how often, by task and queue."""
        counted: dict[tuple[str, str], Counter[str]] = {}
        for task, (name, worker) in list(self.taken.items()):
            if task in self.queues:
                counted.setdefault((name, self.queues[task]), Counter())[worker] += 1
        return [
            {"task": name, "queue": queue, "workers": sorted(workers), "times": workers.total()}
            for (name, queue), workers in sorted(counted.items())
        ]

    def has(self, task: str, queue: str) -> bool:
        """Tell if a task was taken from a queue."""
        return any(row["task"] == task and row["queue"] == queue for row in self.rows())
