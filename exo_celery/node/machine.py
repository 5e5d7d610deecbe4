"""What this machine is and has, measured now: memory, disk, backends, versions."""

import platform
import shutil
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

import psutil

CGROUP: Final = Path("/sys/fs/cgroup")
SHOWN_PACKAGES: Final = ("exo_celery", "celery", "mlx", "mlx-lm")


@dataclass(frozen=True)
class Memory:
    """Bytes of memory that runners of this node may fill in all, and those still free."""

    total_bytes: int
    available_bytes: int


def memory(limit_bytes: int | None, runner_pids: Iterable[int]) -> Memory:
    """Return what the machine, its cgroup and the user's cap leave to this node, whichever is least.

    The cap (`EXO_MEMORY_LIMIT`) counts what this node's runners hold; the other two count everybody.
    """
    machine = psutil.virtual_memory()
    bounds = [Memory(machine.total, machine.available)]
    if inside := cgroup_memory():
        bounds.append(inside)
    if limit_bytes is not None:
        bounds.append(Memory(limit_bytes, limit_bytes - resident_bytes(runner_pids)))
    least = min(bound.available_bytes for bound in bounds)
    return Memory(min(bound.total_bytes for bound in bounds), max(0, least))


def resident_bytes(pids: Iterable[int]) -> int:
    """Return the resident memory of these processes; one that has ended counts nothing."""
    total = 0
    for pid in pids:
        try:
            total += psutil.Process(pid).memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def cgroup_memory(root: Path = CGROUP, membership: Path = Path("/proc/self/cgroup")) -> Memory | None:
    """Return the tightest limit of the cgroups (version 2) that this process is in, None without one.

    What the kernel could drop at once (inactive file pages) counts as free, as container tools count it.
    """
    if not membership.exists():
        return None
    line = next((text for text in membership.read_text().splitlines() if text.startswith("0::")), "0::/")
    own = root / line[3:].lstrip("/")
    levels = [own, *own.parents]
    limits = [found for level in levels if level.is_relative_to(root) and (found := cgroup_limit(level))]
    return min(limits, key=lambda limit: limit.available_bytes, default=None)


def cgroup_limit(level: Path) -> Memory | None:
    """Return the limit of one cgroup folder, None where it sets none."""
    try:
        top = (level / "memory.max").read_text().strip()
        used = int((level / "memory.current").read_text())
        stat = dict(line.split() for line in (level / "memory.stat").read_text().splitlines())
    except FileNotFoundError:
        return None
    if top == "max":
        return None
    return Memory(int(top), int(top) - used + int(stat.get("inactive_file", 0)))


def disk_free_bytes(folders: Iterable[Path]) -> int:
    """Return the free bytes of the roomiest of these folders' disks (of the nearest parent, where one is missing)."""
    return max((shutil.disk_usage(existing(folder)).free for folder in folders), default=0)


def existing(folder: Path) -> Path:
    """Return the folder or its nearest parent that exists."""
    return next(path for path in (folder, *folder.resolve().parents) if path.exists())


@cache
def backends() -> tuple[str, ...]:
    """Return the MLX backends of this machine, found without importing MLX."""
    if sys.platform == "darwin":
        return ("MlxMetal", "MlxCpu") if platform.machine() == "arm64" else ("MlxCpu",)
    # A distribution that is being installed right now has no name yet.
    cuda = any((dist.metadata["Name"] or "").startswith("mlx-cuda") for dist in metadata.distributions())
    return ("MlxCuda", "MlxCpu") if cuda else ("MlxCpu",)


@cache
def versions() -> dict[str, str]:
    """Return the versions that matter when two machines disagree."""
    found = {name: metadata.version(name) for name in SHOWN_PACKAGES}
    return found | {"python": platform.python_version(), "os": f"{platform.system()} {platform.machine()}"}


def hostname() -> str:
    """Return this machine's short name."""
    return socket.gethostname()
