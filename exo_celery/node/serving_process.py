"""The serving worker as a child process: started beside a first rank, it ends with its runner or when told to."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from exo_celery.node import machine
from exo_celery.queues import model_queue

STOP_SECONDS: Final = 3.0


class ServingProcess:
    """A Celery worker that takes `exo.generate` from one model's queue and hands it to one runner."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    @classmethod
    def start(cls, instance: str, model: str, socket_path: Path, slots: int) -> "ServingProcess":
        """Start the worker with a thread per slot of the engine."""
        name = f"serve-{instance}@{machine.hostname()}"
        command = [sys.executable, "-m", "celery", "-A", "exo_celery", "worker", "--loglevel", "INFO"]
        command += ["--hostname", name, "--queues", model_queue(model), "--concurrency", str(slots)]
        told = {"EXO_SERVE_INSTANCE": instance, "EXO_SERVE_MODEL": model, "EXO_SERVE_SOCKET": str(socket_path)}
        return cls(subprocess.Popen(command, env=os.environ | told, stdin=subprocess.DEVNULL))

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The worker's exit code; None while it lives."""
        return self._process.poll()

    def stop(self) -> None:
        """Ask the worker to hand its jobs back and end; kill it if it has not within three seconds."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
