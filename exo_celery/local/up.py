"""What `exo-celery up` is asked for, checked and prepared, before the supervisor takes over."""

import dataclasses
import errno
import fcntl
import os
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exo_celery.errors import ConflictError
from exo_celery.local import redis_server, show
from exo_celery.local.join import invite
from exo_celery.local.layout import Layout, private
from exo_celery.local.seed import seed
from exo_celery.local.supervisor import Supervisor, up_file
from exo_celery.models.demo import demo_dir, ensure_demo_model
from exo_celery.node import machine
from exo_celery.settings import Settings, load

PORTS_TRIED: Final = 100


@dataclass(frozen=True)
class Wanted:
    """The options of `up`. `port` None takes the first free one from the setting on, 0 any.

    `host` is the address of this machine at which other machines reach the embedded server and the nodes.
    """

    data_dir: Path
    nodes: int = 3
    port: int | None = None
    demo_model: bool = True
    host: str = redis_server.LOOPBACK


def up(
    wanted: Wanted, environ: Mapping[str, str], say: Callable[[str], None], ready: Callable[[str], None]
) -> signal.Signals:
    """Run a cluster on this machine until a signal ends it, and return that signal.

    `say` hears of children that had to be started again, `ready` the web's address once everything works.

    Raises:
        ConflictError: another `up` runs on the data dir, or the port is taken.
        UnavailableError: a server does not answer, or a child does not stay up.
        DownloadError: the demo model cannot be made.
    """
    wanted.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = lock_file(wanted.data_dir)
    settings = load(environ)
    port = web_port(wanted.port, settings.web_port)
    folder = wanted.data_dir / "redis"
    server = None if environ.get("EXO_REDIS_URL") else redis_server.prepare(folder, host=wanted.host)
    layout = Layout(
        data_dir=wanted.data_dir,
        redis_url=server.url if server else settings.redis_url,
        web_port=port,
        nodes=wanted.nodes,
        memory_bytes=machine.memory(settings.memory_limit, ()).total_bytes,
        source_dirs=settings.source_dirs,
    )
    if wanted.demo_model:
        layout = with_demo_model(layout, settings)

    def works(url: str) -> None:
        ready(url)
        if server and server.host != redis_server.LOOPBACK:
            say(f"other machines join with: {invite(load(layout.environ(environ)))}")

    try:
        return Supervisor(layout, server, environ, say).run(works)
    finally:
        os.close(lock)


def with_demo_model(layout: Layout, settings: Settings) -> Layout:
    """Make the demo model, give the nodes their parts of it, and return a layout whose nodes may copy the rest."""
    with show.progress() as say:
        model = ensure_demo_model(settings.cache_dir, say)
    seed([layout.models_dir(node) for node in layout.node_ids], model)
    return dataclasses.replace(layout, source_dirs=(*layout.source_dirs, demo_dir(settings.cache_dir)))


def lock_file(data_dir: Path) -> int:
    """Return a descriptor that holds the data dir for this process; the lock ends with it, however it ends.

    Raises:
        ConflictError: another process holds it.
    """
    descriptor = private(str(data_dir / "up.lock"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ConflictError(
            f"another exo-celery up runs on {data_dir} (see {up_file(data_dir)}): stop it, or name another --data-dir"
        ) from error
    return descriptor


def web_port(asked: int | None, first: int) -> int:
    """Return the port for the web: the one that was asked for (0: any), else the first free one.

    Raises:
        ConflictError: the port that was asked for is taken, or all that were tried are.
    """
    if asked == 0:
        return redis_server.free_port()
    if asked is not None:
        if is_free(asked):
            return asked
        raise ConflictError(f"port {asked} of 127.0.0.1 is taken by another program: stop it, or name another --port")
    tried = range(first, first + PORTS_TRIED)
    free = next((port for port in tried if is_free(port)), None)
    if free is None:
        raise ConflictError(f"ports {tried[0]} to {tried[-1]} of 127.0.0.1 are all taken: name another --port")
    return free


def is_free(port: int) -> bool:
    """Tell if a port of the loopback interface can be listened on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True
