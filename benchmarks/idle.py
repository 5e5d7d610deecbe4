"""What a cluster costs while nobody asks anything: CPU and disk reads of each of its processes.

    python benchmarks/idle.py [--nodes 2] [--seconds 60] [--json FILE]

`exo-celery up` runs with the demo model placed on a ring of all its nodes, and ready. CPU is in percent of one core;
disk reads are what the kernel had to bring from the disk.
"""

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path

import psutil
from servers import stack

SETTLE_SECONDS = 10.0  # after loading
# By words of the command line; the first that fits.
ROLES = (
    ("runner", "exo_celery.runner"),
    ("serving worker", "serve-"),
    ("beat", " beat "),
    ("node worker", " worker "),
    ("web", "gunicorn"),
    ("redis", "redis-server"),
    ("up", " up "),
)
AT_MOST = {"runner": 1.0, "node worker": 2.0, "serving worker": 2.0}


def role(process: psutil.Process) -> str:
    """Return what a process is for."""
    line = " ".join(process.cmdline())
    return next((name for name, word in ROLES if word in line), line)


def used(pid: int) -> dict[int, tuple[str, float, int]]:
    """Return for each process of a tree its role, the CPU seconds it took so far, and the bytes it read from disk."""
    root = psutil.Process(pid)
    return {
        one.pid: (role(one), sum(one.cpu_times()[:2]), one.io_counters().read_bytes)
        for one in (root, *root.children(recursive=True))
    }


def measure(nodes: int, seconds: float) -> list[dict[str, str | float]]:
    """Return a row for each process: percent of a core, bytes read."""
    with stack(nodes, min_nodes=nodes) as server:
        time.sleep(SETTLE_SECONDS)
        before, began = used(server.pid), time.perf_counter()
        time.sleep(seconds)
        after, took = used(server.pid), time.perf_counter() - began
    assert before.keys() == after.keys(), "no process came or went"
    return [
        {"what": name, "CPU %": 100 * (cpu - before[pid][1]) / took, "bytes read": read - before[pid][2]}
        for pid, (name, cpu, read) in after.items()
    ]


def verdict(name: str, cpus: list[float]) -> str:
    """Say whether a role keeps within its bound, if it has one."""
    if name not in AT_MOST:
        return ""
    together = name == "runner"
    figure, most = sum(cpus) if together else max(cpus), AT_MOST[name]
    return f"  wanted <= {most} {'together' if together else 'each'}: {'met' if figure <= most else 'MISSED'}"


def show(rows: list[dict[str, str | float]]) -> None:
    """Print the processes, and the sums of those with a bound: runners together, the others each."""
    groups = defaultdict(list)
    for row in rows:
        groups[row["what"]].append(row)
    for name, some in groups.items():
        cpus = [float(row["CPU %"]) for row in some]
        print(f"{name:<16} CPU % {', '.join(f'{cpu:.2f}' for cpu in cpus)}{verdict(str(name), cpus)}")
    print(f"all together     CPU % {sum(float(row['CPU %']) for row in rows):.2f}")
    print(f"bytes read from disk: {sum(float(row['bytes read']) for row in rows):.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    wanted = parser.parse_args()
    rows = measure(wanted.nodes, wanted.seconds)
    show(rows)
    if wanted.json:
        wanted.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
