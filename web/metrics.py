"""Figures in Prometheus's text format, computed from the records at each scrape. PURE.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from exo_celery.records.download import Download
from exo_celery.records.node import NodeView

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
Samples = Iterable[tuple[dict[str, str], float]]


def exposition(nodes: list[NodeView], downloads: list[Download], instances: list[dict[str, Any]]) -> str:
    """Return all figures; sizes in bytes."""
    live = [node for node in nodes if node.alive]
    states = Counter((placed["model"], placed["status"]) for placed in instances)
    families = [
        gauge("node_up", "1 while the node's heartbeat is heard.", by_node(nodes, "alive")),
        gauge("node_memory_bytes", "Memory of a live node.", by_node(live, "ram_total_bytes")),
        gauge("node_memory_available_bytes", "Memory free for models.", by_node(live, "ram_available_bytes")),
        gauge("node_disk_free_bytes", "Disk free for models.", by_node(live, "disk_free_bytes")),
        gauge("download_bytes", "Bytes of a model that a node has.", by_download(downloads, "downloaded_bytes")),
        gauge("download_total_bytes", "Bytes of the whole model.", by_download(downloads, "total_bytes")),
        gauge(
            "instances",
            "Placed models by status.",
            [({"model": model, "status": status}, count) for (model, status), count in sorted(states.items())],
        ),
    ]
    return "".join(families)


def by_node(nodes: list[NodeView], field: str) -> Samples:
    """Return one figure of each node that has it."""
    found = [(node.id, getattr(node, field)) for node in nodes]
    return [({"node": node}, float(value)) for node, value in found if value is not None]


def by_download(downloads: list[Download], field: str) -> Samples:
    """Return one figure of each download."""
    return [({"node": one.node, "model": one.model}, float(getattr(one, field))) for one in downloads]


def gauge(name: str, meaning: str, samples: Samples) -> str:
    """Return one metric with all its samples."""
    full = f"exo_celery_{name}"
    lines = [f"# HELP {full} {meaning}", f"# TYPE {full} gauge"]
    for labels, value in samples:
        pairs = ",".join(f'{label}="{escaped(text)}"' for label, text in labels.items())
        lines.append(f"{full}{{{pairs}}} {value:.17g}")
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Return a label's value as the format wants it."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
