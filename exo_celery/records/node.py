"""Nodes: one machine each, known by its node id."""

from pydantic import Field

from exo_celery.records.base import Record


class Node(Record):
    """What a node's agent writes about its machine. Bytes; times are Redis time in seconds."""

    id: str
    hostname: str = ""
    worker: str = ""
    boot_id: str = ""
    pid: int = 0
    addresses: tuple[str, ...] = ()
    ram_total_bytes: int = 0
    ram_available_bytes: int | None = None
    disk_free_bytes: int = 0
    backends: tuple[str, ...] = ()
    rdma_enabled: bool = False
    versions: dict[str, str] = Field(default_factory=dict)
    labels: tuple[str, ...] = ()
    models_dirs: tuple[str, ...] = ()
    seen_at: float = 0.0


class NodeView(Node):
    """A node as callers see it: the record, and whether it lives."""

    alive: bool = False
