"""Start processes that cannot outlive their parent, however it ends.

`spawn()` starts `python leash.py <parent pid> <signal> <fd> command…`, and that process becomes the
command, with the same pid. Before, on Linux, it asks the kernel for a signal at the parent's death;
elsewhere it leaves a watcher behind that holds the read end of a pipe whose write end only the parent has.
Standard library only: it is run by its path.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

PR_SET_PDEATHSIG = 1  # linux/prctl.h
WATCH_SECONDS = 1.0


def spawn(
    argv: Sequence[str],
    log: IO[bytes],
    env: Mapping[str, str] | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
    cwd: Path | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a command in its own session; it gets `death_signal` when this process dies.

    Call it in the main thread: Linux takes the end of the thread that forked for the end of the parent.
    """
    read_end = pipe()[0]
    leash = (sys.executable, "-I", __file__, str(os.getpid()), str(int(death_signal)), str(read_end))
    return subprocess.Popen(
        [*leash, *argv],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=env,
        cwd=cwd,
        pass_fds=(read_end,),
        start_new_session=True,
    )


PIPES: list[tuple[int, int]] = []


def pipe() -> tuple[int, int]:
    """Return this process's pipe: it is never written to, its end of file is this process's end."""
    if not PIPES:
        PIPES.append(os.pipe())
    return PIPES[0]


def main(parent: int, death_signal: int, pipe_fd: int, argv: Sequence[str]) -> None:
    """Tie this process to its parent, then become the command."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)
    elif os.fork() == 0:
        watch(os.getppid(), death_signal, pipe_fd)
    os.close(pipe_fd)
    os.execvp(argv[0], list(argv))  # noqa: S606  # no shell is wanted


def watch(target: int, death_signal: int, pipe_fd: int) -> None:
    """Wait for the parent's end and pass it on; leave when the target has ended by itself."""
    while os.getppid() == target:
        if select.select([pipe_fd], [], [], WATCH_SECONDS)[0]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(target, death_signal)
            break
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
