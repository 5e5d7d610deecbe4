"""`exo-celery up`: a whole cluster on this machine, kept running until it is told to end.

One thread, one loop: children must be started by the main thread (see leash), and nothing here ever waits long.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final

from exo_celery.errors import ConfigurationError, UnavailableError
from exo_celery.local.child import AT_ONCE, Child, Spec
from exo_celery.local.layout import Layout, private
from exo_celery.local.readiness import Readiness
from exo_celery.local.redis_server import RedisServer, wait_until_answers

LOOK_SECONDS: Final = 0.1
GRACE_SECONDS: Final = 10.0  # a worker stops its runners and tells Redis that it leaves
REDIS: Final = "redis"
EX_CONFIG: Final = 78  # a child that ends so would end so again

Say = Callable[[str], None]


class Supervisor:
    """The children of one cluster, and the file that tells others of them."""

    def __init__(self, layout: Layout, server: RedisServer | None, environ: Mapping[str, str], say: Say) -> None:
        self.layout = layout
        self.server = server
        self.environ = environ
        self.say = say
        self.children: dict[str, Child] = {}
        self.told_to_end: signal.Signals | None = None
        self.readiness: Readiness | None = None

    def run(self, ready: Callable[[str], None]) -> signal.Signals:
        """Start everything, call `ready` with the web's address once it works, and keep it running.

        Returns the signal that ended it.

        Raises:
            UnavailableError: a child keeps ending before the cluster was ready; the message shows its last words.
            ConfigurationError: a child may not run as it is set up.
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.end)
        try:
            self.start()
            self.keep_running(ready)
        finally:
            self.stop()
        return self.told_to_end or signal.SIGTERM

    def end(self, number: int, _: FrameType | None) -> None:
        """Remember that we were told to end; told twice, end hard."""
        if self.told_to_end is not None:
            for child in self.children.values():
                child.process.kill()
        self.told_to_end = signal.Signals(number)

    def start(self) -> None:
        """Start all children; Redis first, because all others need it."""
        if self.server:
            spec = Spec(REDIS, self.server.argv, self.environ, self.layout.log(REDIS), signal.SIGTERM)
            self.children[REDIS] = Child(spec)
            wait_until_answers(self.server, self.children[REDIS].process, spec.log)
        self.readiness = Readiness(self.layout, self.environ)
        specs = [self.layout.beat(self.environ), self.layout.web(self.environ)]
        specs += [self.layout.node(node, self.environ) for node in self.layout.node_ids]
        for spec in specs:
            self.children[spec.name] = Child(spec)
        self.tell()

    def keep_running(self, ready: Callable[[str], None]) -> None:
        """Restart what ends, until we are told to end."""
        while self.told_to_end is None:
            for child in self.children.values():
                self.look_after(child)
            if self.readiness and self.readiness.reached({name: one.pid for name, one in self.children.items()}):
                ready(self.layout.web_url)
                self.readiness = None
            time.sleep(LOOK_SECONDS)

    def look_after(self, child: Child) -> None:
        """Start a child again that has ended; before the cluster was ready, give up where that cannot help."""
        ended_with = child.process.poll()
        if self.readiness and ended_with == EX_CONFIG:
            raise ConfigurationError(f"{child.spec.name} may not run:\n{child.tail()}")
        if not child.restart_if_due():
            return
        self.tell()
        self.say(f"{child.spec.name} ended ({ended_with}) and was started again; its last lines:\n{child.tail()}")
        if self.readiness and child.restarts > AT_ONCE:
            raise UnavailableError(f"{child.spec.name} does not stay up; its last lines:\n{child.tail()}")

    def tell(self) -> None:
        """Write `up.json` (0600) anew, atomically."""
        pids = {name: {"pid": child.pid} for name, child in self.children.items()}
        nodes = {node: pids[node] | {"models_dir": str(self.layout.models_dir(node))} for node in self.layout.node_ids}
        facts: dict[str, Any] = {
            "web_url": self.layout.web_url,
            "redis_url": self.layout.redis_url,
            "redis": pids.get(REDIS),
            "beat": pids["beat"],
            "web": pids["web"],
            "nodes": nodes,
        }
        fresh = up_file(self.layout.data_dir).with_suffix(".fresh")
        fresh.unlink(missing_ok=True)
        with open(fresh, "x", opener=private) as file:
            json.dump(facts, file, indent=2)
        fresh.replace(up_file(self.layout.data_dir))

    def stop(self) -> None:
        """End all children, Redis last, and whatever they left behind."""
        up_file(self.layout.data_dir).unlink(missing_ok=True)
        for names in ([name for name in self.children if name != REDIS], [REDIS]):
            children = [self.children[name] for name in names if name in self.children]
            for child in children:
                child.process.terminate()
            deadline = time.monotonic() + GRACE_SECONDS
            for child in children:
                child.stop(deadline)
                end_group(child.pid)


def end_group(pid: int) -> None:
    """Kill what is left of a child's process group (each child leads its own)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: a group of zombies is not permitted
        os.killpg(pid, signal.SIGKILL)


def up_file(data_dir: Path) -> Path:
    """Return the file that tells of a running cluster."""
    return data_dir / "up.json"
