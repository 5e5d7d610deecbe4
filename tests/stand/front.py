"""gunicorn with the front, as a process of its own."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
LISTENING = re.compile(r"Listening at: (http://\S+)")


@contextmanager
def served(log: list[str] | None = None, **environ: str) -> Iterator[str]:
    """Run the front on a free port and give its address; what it logs ends in `log`."""
    heard = [] if log is None else log
    command = [sys.executable, "-m", "gunicorn", "-c", "worker_config/gunicorn.conf.py", "web:create_app()"]
    env = os.environ | {"EXO_WEB_PROCESSES": "1"} | environ | {"EXO_WEB_PORT": "0"}
    process = subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    try:
        address = next(found[1] for line in process.stderr if (found := LISTENING.search(line)))
        drain = threading.Thread(target=heard.extend, args=(process.stderr,), daemon=True)
        drain.start()
        yield address
    finally:
        process.terminate()
        process.wait(20)
        drain.join(5)
        process.stderr.close()


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Run the worker's part beside the client's, and let its failures be the test's."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join(20)
        if failures:
            raise failures[0]


def eventually(true: Callable[[], bool], seconds: float = 5.0) -> bool:
    until = time.monotonic() + seconds
    while not (held := true()) and time.monotonic() < until:
        time.sleep(0.02)
    return held
