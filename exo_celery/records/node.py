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
    # Where others reach it: its own networks' addresses, the way to Redis first, and the port of its doorbell.
    addresses: tuple[str, ...] = ()
    port: int = 0
    links_at: float = 0.0
    # Live peers whose doorbell does not answer us: a sentence each, with the cure.
    unreached: tuple[str, ...] = ()
    secret_proof: str = ""
    ram_total_bytes: int = 0
    ram_available_bytes: int | None = None
    disk_free_bytes: int = 0
    # How fast its last shard was loaded, None before the first.
    load_bps: float | None = None
    backends: tuple[str, ...] = ()
    rdma_enabled: bool = False
    versions: dict[str, str] = Field(default_factory=dict)
    labels: tuple[str, ...] = ()
    models_dirs: tuple[str, ...] = ()
    peer_port: int = 0
    seen_at: float = 0.0


class LinkRecord(Record):
    """How a node reaches a peer: the fastest of the peer's addresses, and when it last answered there."""

    address: str
    rtt_ms: float = Field(ge=0)
    checked_at: float = 0.0


class NodeView(Node):
    """A node as callers see it: the record, and whether it lives."""

    alive: bool = False
