"""One child process that is kept running: five times back at once, then with growing pauses."""

import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exo_celery.local import leash

AT_ONCE: Final = 5  # restarts without a pause
LONGEST_PAUSE_SECONDS: Final = 60.0
SETTLED_SECONDS: Final = 300.0  # whoever ran so long has earned his restarts anew
TAIL_LINES: Final = 15


@dataclass(frozen=True)
class Spec:
    """How to start a child, and where its output goes."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path
    death_signal: signal.Signals = signal.SIGKILL


def pause_seconds(restarts: int) -> float:
    """Return how long to wait before the next start, after so many restarts."""
    return 0.0 if restarts < AT_ONCE else min(LONGEST_PAUSE_SECONDS, 2.0 ** (restarts - AT_ONCE))


class Child:
    """A child process and its restarts."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.process = self.spawn()
        self.started_at = time.monotonic()
        self.restarts = 0
        self.ended_at: float | None = None

    def spawn(self) -> "subprocess.Popen[bytes]":
        """Start the process; its output is appended to its log."""
        self.spec.log.parent.mkdir(parents=True, exist_ok=True)
        with self.spec.log.open("ab") as log:
            return leash.spawn(self.spec.argv, log, self.spec.env, self.spec.death_signal)

    @property
    def pid(self) -> int:
        """The process that runs now, or the last one that did."""
        return self.process.pid

    def restart_if_due(self) -> bool:
        """Start the process again when it has ended and its pause is over; tell if a new one was started."""
        if self.process.poll() is None:
            return False
        now = time.monotonic()
        if self.ended_at is None:
            self.ended_at = now
            if now - self.started_at > SETTLED_SECONDS:
                self.restarts = 0
        if now < self.ended_at + pause_seconds(self.restarts):
            return False
        self.process, self.started_at, self.ended_at = self.spawn(), now, None
        self.restarts += 1
        return True

    def stop(self, deadline: float) -> None:
        """Wait until a process that was told to end has ended, and end it hard at the deadline (monotonic)."""
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def tail(self) -> str:
        """Return the last lines of the child's output."""
        return tail(self.spec.log)


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a log, or an empty text when there is none."""
    if not log.exists():
        return ""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
