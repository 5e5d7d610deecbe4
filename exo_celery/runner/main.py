"""The runner's child process: `python -m exo_celery.runner.main FD`, started by process.py and by nobody else.

The first connection at the inherited socket is the parent's. When it ends, the child ends at once; so does it on any
error: a ring is never repaired.
"""

import logging
import os
import queue
import socket
import sys
import threading
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn

from exo_celery import settings
from exo_celery.errors import ExoError, RunnerError
from exo_celery.runner import blas
from exo_celery.runner.protocol import Failed, Link, Ping, Pong, Start
from exo_celery.runner.wire import Connection

log = logging.getLogger("exo_celery.runner")

FAILED: Final = 1


def hear_parent(control: Connection, peers: "queue.SimpleQueue[tuple[str, ...]]") -> None:
    """Answer the parent's pings and pass on its peers; end the process when it says so or is gone."""
    with suppress(RunnerError):  # gone
        while isinstance(message := control.receive(), Link | Ping):
            if isinstance(message, Link):
                peers.put(message.peers)
            else:
                control.send(Pong())
    os._exit(0)


def main(fd: int) -> NoReturn:
    """Be one rank of a ring until the parent is gone or something fails."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    listener = socket.socket(fileno=fd)
    control = Connection(listener.accept()[0])
    # Whatever goes wrong in any thread ends the process: a rank that lost a thread would hold up its ring.
    threading.excepthook = lambda args: give_up(control, args.exc_value)
    sys.excepthook = lambda kind, error, trace: give_up(control, error)
    be_rank(control, listener)


def be_rank(control: Connection, listener: socket.socket) -> NoReturn:
    """Learn what to be, put BLAS in place, be it."""
    start = control.receive()
    if not isinstance(start, Start):
        raise RunnerError("the parent did not say what to load")
    peers: queue.SimpleQueue[tuple[str, ...]] = queue.SimpleQueue()
    threading.Thread(target=hear_parent, args=(control, peers), name="parent", daemon=True).start()
    log.info("BLAS: %s", blas.load(settings.load().cache_dir, start.spec.threads))
    # Model folders are local; without this transformers asks the hub about each of them.
    os.environ["HF_HUB_OFFLINE"] = "1"
    from exo_celery.runner import child  # noqa: PLC0415 (MLX must find BLAS in place)

    child.run(start.spec, bytes.fromhex(start.ring_key), control, peers, listener, partial(give_up, control))
    raise RunnerError("the rank ended without a reason")


def give_up(control: Connection, error: BaseException | None) -> NoReturn:
    """Tell the parent why, and end at once: nothing of a broken ring is worth cleaning up."""
    if not isinstance(error, ExoError):
        log.error("the runner failed", exc_info=error)
        error = RunnerError(f"{type(error).__name__}: {error}")
    log.error("%s", error.message)
    with suppress(RunnerError):  # the parent is gone too
        control.send(Failed(code=error.code, message=error.message))
    sys.stderr.flush()
    os._exit(FAILED)


if __name__ == "__main__":
    main(int(sys.argv[1]))
