"""The cluster of the demo: `exo-celery up` as a process of its own, on a folder made anew, and gone afterwards."""

import json
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from exo_celery.errors import ConflictError, UnavailableError
from exo_celery.local import leash
from exo_celery.local.child import tail
from exo_celery.local.supervisor import GRACE_SECONDS, up_file
from exo_celery.settings import load
from exo_celery.store.client import connect

TICK_SECONDS: Final = 5
READY_SECONDS: Final = 120.0
LOOK_SECONDS: Final = 0.1
MARK: Final = ".exo-celery-demo"  # lies in folders that the demo may remove
UP: Final = Path(sys.executable).with_name("exo-celery")


@contextmanager
def running(data_dir: Path, env: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Run a fresh cluster and give what its `up.json` says.

    Raises:
        ConflictError: the folder exists, and is not one of ours.
        UnavailableError: the cluster does not get ready, or something of it outlives it.
    """
    make_anew(data_dir)
    log = data_dir / "logs" / "up.log"
    log.parent.mkdir()
    with log.open("wb") as out:
        process = leash.spawn((str(UP), "up", "--data-dir", str(data_dir), "--port", "0"), out, env)
    wrote = False
    try:
        wait_until(lambda: is_ready(process, log), READY_SECONDS, "the cluster to get ready")
        wrote = True
        yield json.loads(up_file(data_dir).read_text())
    finally:
        end(process)
        if wrote and env.get("EXO_REDIS_URL"):
            forget(env)


def make_anew(data_dir: Path) -> None:
    """Make an empty folder, in place of an earlier demo's."""
    if data_dir.exists() and not (data_dir / MARK).exists():
        raise ConflictError(f"{data_dir} exists and is not a demo's folder, so it is not removed: name another")
    shutil.rmtree(data_dir, ignore_errors=True)
    data_dir.mkdir(parents=True, mode=0o700)
    (data_dir / MARK).touch()


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the cluster's environment: a quick tick, nothing from the user's hub cache, keys of its own."""
    env = {name: text for name, text in environ.items() if name not in ("HF_HOME", "HF_HUB_CACHE")}
    env["EXO_REPORT_SECONDS"] = str(TICK_SECONDS)
    if environ.get("EXO_REDIS_URL"):
        env["EXO_NAMESPACE"] = f"demo-{uuid.uuid4().hex[:8]}"
    return env


def is_ready(process: "subprocess.Popen[bytes]", log: Path) -> bool:
    """Tell if `up` has said that it is ready.

    Raises:
        UnavailableError: it has ended.
    """
    if process.poll() is not None:
        raise UnavailableError(f"exo-celery up ended with exit code {process.returncode}")
    return any(line.startswith("ready ") for line in log.read_text(errors="replace").splitlines())


def wait_until(met: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for a condition.

    Raises:
        UnavailableError: it was not met in time.
    """
    deadline = time.monotonic() + seconds
    while not met():
        if time.monotonic() > deadline:
            raise UnavailableError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(LOOK_SECONDS)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Tell the cluster to end, and see to it that nothing of it is left.

    Raises:
        UnavailableError: something was left; it has been killed.
    """
    family: list[psutil.Process] = []
    if process.poll() is None:
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        try:
            process.wait(3 * GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    _, left = psutil.wait_procs(family, timeout=GRACE_SECONDS)
    for one in left:
        one.kill()
    if left:
        raise UnavailableError(f"outlived the cluster and were killed: {', '.join(map(str, left))}")


def forget(env: Mapping[str, str]) -> None:
    """Remove the demo's keys from a server that is not its own."""
    settings = load(env)
    redis = connect(settings)
    for key in redis.scan_iter(match=f"{settings.namespace}:*", count=1000):
        redis.delete(key)


def last_words(data_dir: Path) -> str:
    """Return the ends of all logs of a cluster."""
    logs = sorted((data_dir / "logs").glob("*.log"))
    return "\n".join(f"--- {log}\n{text}" for log in logs if (text := tail(log)))
