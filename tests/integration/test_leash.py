"""A leashed process has the pid it was started with, and dies with its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from exo_celery.local import leash

PARENT = """
import pathlib, sys, time
from exo_celery.local import leash
with open(sys.argv[1], "wb") as log:
    child = leash.spawn([sys.executable, "-c", "import time; time.sleep(60)"], log)
pathlib.Path(sys.argv[2]).write_text(str(child.pid))
time.sleep(60)
"""


def gone(pid: int) -> bool:
    """Tell if no such process runs (a dead one whose parent has not looked yet counts as gone)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return Path("/proc").exists()


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while not gone(pid):
        assert time.monotonic() < deadline, f"process {pid} outlives its parent"
        time.sleep(0.01)


def test_the_process_becomes_the_command(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        process = leash.spawn([sys.executable, "-c", "import os; print(os.getpid())"], log)
    assert process.wait(10) == 0
    assert int((tmp_path / "log").read_text()) == process.pid


def test_a_command_that_does_not_exist_fails(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        process = leash.spawn([str(tmp_path / "none")], log)
    assert process.wait(10) != 0
    assert "No such file" in (tmp_path / "log").read_text()


def test_it_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path / "log"), str(told)])
    deadline = time.monotonic() + 10
    while not (told.exists() and told.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child = int(told.read_text())
    assert not gone(child)
    parent.kill()
    parent.wait()
    wait_until_gone(child)


def test_the_watcher_of_other_platforms_passes_the_end_on() -> None:
    """What macOS uses, run here: the target is the watcher's parent, as after the fork in `main`."""
    read_end, write_end = os.pipe()
    code = (
        "import os, sys, time; from exo_celery.local import leash\n"
        "fd = int(sys.argv[1]); me = os.getpid()\n"
        "if os.fork() == 0: leash.watch(me, 15, fd)\n"
        "time.sleep(60)"
    )
    target = subprocess.Popen([sys.executable, "-c", code, str(read_end)], pass_fds=(read_end,))
    os.close(read_end)
    time.sleep(0.3)
    assert target.poll() is None
    os.close(write_end)
    assert target.wait(10) == -signal.SIGTERM
