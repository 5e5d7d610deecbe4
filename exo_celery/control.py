"""Commands of `celery -A exo_celery inspect` and `control`.

Handlers run in the worker's event loop: they answer from memory, at once, however busy the threads are.
"""

from typing import Any

from celery.worker.control import control_command, inspect_command

from exo_celery.node import report


@inspect_command(default_timeout=1.0)
def downloads(state: Any, **_: Any) -> dict[str, Any]:
    """Models on this node: status, bytes, speed, reason."""
    return report.downloads()


@inspect_command(default_timeout=1.0)
def node(state: Any, **_: Any) -> dict[str, Any]:
    """This node: memory, disk, addresses, backends, versions."""
    return report.node()


@inspect_command(default_timeout=1.0)
def shards(state: Any, **_: Any) -> dict[str, Any]:
    """Shards this node holds: instance, rank, layers, state."""
    return report.shards()


@control_command(default_timeout=1.0)
def refresh_downloads(state: Any, **_: Any) -> dict[str, str]:
    """Look at the disks now and write the download hashes."""
    return {"ok": report.refresh()}
