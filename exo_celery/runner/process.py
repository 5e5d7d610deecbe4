"""The parent side of a runner: start the child, hear what it says, keep its deadlines, end it. No MLX here."""

import logging
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from exo_celery.errors import RunnerError
from exo_celery.runner.protocol import (
    ControlEvent,
    Exited,
    Failed,
    Link,
    Loaded,
    Message,
    Ping,
    Pong,
    Ready,
    ShardSpec,
    Start,
    Stop,
)
from exo_celery.runner.wire import Connection

log = logging.getLogger(__name__)

# Interpreter and imports take 3 s; a machine that swaps or compiles meanwhile needs far more.
IMPORT_SECONDS: Final = 90.0
# The slowest disk and the slowest first step we wait for, in bytes of weights per second.
SLOWEST_LOAD_BPS: Final = 10e6
SLOWEST_STEP_BPS: Final = 20e6
STOP_SECONDS: Final = 2.0
# How often a ready child is asked whether it still runs, and how long a machine that swaps may take to say so.
PULSE_SECONDS: Final = 15.0
SILENCE_SECONDS: Final = 60.0
BACKLOG: Final = 64

OnEvent = Callable[[ControlEvent], None]


def load_deadline_seconds(spec: ShardSpec) -> float:
    """Return how long a shard may take to load: from the bytes of its part of the files."""
    files_bytes = sum(path.stat().st_size for path in spec.model_dir.glob("*.safetensors"))
    share = (spec.end_layer - spec.start_layer) / spec.n_layers
    return IMPORT_SECONDS + files_bytes * share / SLOWEST_LOAD_BPS


def warm_deadline_seconds(weights_bytes: int, world: int) -> float:
    """Return how long linking and the first step may take: each rank reads its weights once, one after another."""
    return IMPORT_SECONDS / 3 + weights_bytes * world / SLOWEST_STEP_BPS


class RunnerProcess:
    """A running child that holds one shard.

    `on_event` is called from threads of this object, one call at a time, in order; the last event is `Exited`.
    """

    def __init__(self, spec: ShardSpec, on_event: OnEvent) -> None:
        self.spec = spec
        self._on_event = on_event
        self._emitting = threading.RLock()
        self._deadline: threading.Timer | None = None
        self._weights_bytes = 0
        self._ended, self._answered = threading.Event(), threading.Event()
        self._directory = Path(tempfile.mkdtemp(prefix="exo-runner-"))  # made with mode 0700
        self.socket_path = self._directory / "socket"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.socket_path))
            listener.listen(BACKLOG)
            sock = socket.socket(socket.AF_UNIX)
            # Connected before the child lives, so the first connection is the parent's for sure.
            sock.connect(str(self.socket_path))
            self._control = Connection(sock)
            self._process = self._spawn(listener)

    def _spawn(self, listener: socket.socket) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "exo_celery.runner.main", str(listener.fileno())]
        return subprocess.Popen(
            command,
            pass_fds=(listener.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    @classmethod
    def start(cls, spec: ShardSpec, ring_key: bytes, on_event: OnEvent) -> "RunnerProcess":
        """Start a child and let it load its shard.

        Raises:
            RunnerError: the child ended before it could be told what to load.
        """
        runner = cls(spec, on_event)
        runner._watch(load_deadline_seconds(spec), "load_timeout", "load its shard")
        threading.Thread(target=runner._relay_output, name=f"{runner._name}-log", daemon=True).start()
        threading.Thread(target=runner._read, name=runner._name, daemon=True).start()
        runner._control.send(Start(spec=spec, ring_key=ring_key.hex()))
        return runner

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The child's exit code; None while it lives."""
        return self._process.poll()

    @property
    def _name(self) -> str:
        return f"runner-{self.spec.instance}-{self.spec.rank}"

    def link(self, peers: Sequence[str]) -> None:
        """Let the loaded child form the ring; `peers` are `host:port` of all ranks in rank order.

        Raises:
            RunnerError: the child is gone, or the number of peers is not that of the ring.
        """
        if len(peers) != self.spec.world:
            raise RunnerError(f"a ring of {self.spec.world} needs as many addresses, got {len(peers)}")
        seconds = warm_deadline_seconds(self._weights_bytes, self.spec.world)
        self._watch(seconds, "warm_timeout", "link and run its first step")
        self._control.send(Link(peers=tuple(peers)))

    def stop(self) -> None:
        """End the child: ask first, kill what has not gone within two seconds. Returns when it is gone."""
        with suppress(RunnerError):  # gone already
            self._control.send(Stop())
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _watch(self, seconds: float, code: str, what: str) -> None:
        """Kill the child when it has not done `what` in time."""
        message = f"rank {self.spec.rank} did not {what} within {seconds:.0f} s"
        self._disarm()
        self._deadline = threading.Timer(seconds, self._expire, (code, message))
        self._deadline.daemon = True
        self._deadline.start()

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _expire(self, code: str, message: str) -> None:
        self._emit(Failed(code=code, message=message))
        self._process.kill()

    def _emit(self, event: ControlEvent) -> None:
        with self._emitting:
            self._on_event(event)

    def _read(self) -> None:
        """Hear the child out, then bury it."""
        try:
            while (message := self._control.receive()) is not None:
                self._hear(message)
        except RunnerError as error:
            self._emit(Failed(code=error.code, message=error.message))
        self._disarm()
        self._control.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        returncode = self._process.wait()
        self._ended.set()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._emit(Exited(returncode=returncode))

    def _hear(self, message: Message) -> None:
        if isinstance(message, Loaded):
            self._weights_bytes = message.weights_bytes
            self._disarm()
        elif isinstance(message, Ready):
            self._disarm()
            threading.Thread(target=self._feel_pulse, name=f"{self._name}-pulse", daemon=True).start()
        elif isinstance(message, Pong):
            self._answered.set()
            return
        if not isinstance(message, ControlEvent):
            raise RunnerError(f"rank {self.spec.rank} sent {message.type!r} to its parent")
        self._emit(message)

    def _feel_pulse(self) -> None:
        """Kill the child once it is silent: one that is stopped, not dead, hangs up on nobody."""
        while not self._ended.wait(PULSE_SECONDS):
            self._answered.clear()
            with suppress(RunnerError):  # gone: the reading thread sees it too
                self._control.send(Ping())
            if not self._answered.wait(SILENCE_SECONDS) and not self._ended.is_set():
                self._expire("silent", f"rank {self.spec.rank} has not answered for {SILENCE_SECONDS:.0f} s")

    def _relay_output(self) -> None:
        """Put what the child prints into our log."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            log.info("%s: %s", self._name, line.decode(errors="replace").rstrip())
        self._process.stdout.close()
