"""Memory truth: the least of machine, cgroup and the user's cap."""

import os
import subprocess
import sys
from pathlib import Path

from exo_celery.node import machine

MIB = 2**20


def cgroup(level: Path, limit: str, used: int, inactive: int = 0) -> None:
    level.mkdir(parents=True, exist_ok=True)
    (level / "memory.max").write_text(f"{limit}\n")
    (level / "memory.current").write_text(f"{used}\n")
    (level / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\n")


def membership(folder: Path, path: str) -> Path:
    file = folder / "membership"
    file.write_text(f"0::{path}\n")
    return file


def test_the_tightest_cgroup_above_the_process_counts(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    cgroup(root / "box", "1000", 100)
    cgroup(root / "box" / "worker", "5000", 100)
    found = machine.cgroup_memory(root, membership(tmp_path, "/box/worker"))
    assert found == machine.Memory(1000, 900)


def test_file_pages_that_can_be_dropped_are_free(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    cgroup(root / "box", "1000", 700, inactive=300)
    assert machine.cgroup_memory(root, membership(tmp_path, "/box")) == machine.Memory(1000, 600)


def test_no_limit_is_no_bound(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    cgroup(root / "box", "max", 700)
    assert machine.cgroup_memory(root, membership(tmp_path, "/box")) is None
    assert machine.cgroup_memory(root, tmp_path / "absent") is None


def test_a_cap_counts_what_the_runners_hold() -> None:
    held = machine.resident_bytes([os.getpid()])
    assert held > MIB
    capped = machine.memory(held + 5 * MIB, [os.getpid()])
    assert capped.total_bytes == held + 5 * MIB
    assert 0 < capped.available_bytes <= 8 * MIB
    assert machine.memory(1, [os.getpid()]).available_bytes == 0


def test_a_runner_that_has_ended_holds_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert machine.resident_bytes([child.pid]) == 0


def test_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert machine.disk_free_bytes([tmp_path / "a" / "b"]) > 0
