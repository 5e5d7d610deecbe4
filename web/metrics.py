"""Figures in Prometheus's text format, computed from the records at each scrape. PURE.

Of nodes, models and instances; never of one job, and never what a prompt or an answer says.
Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Final

from exo_celery.records.download import Download
from exo_celery.records.engine import BOUNDS_SECONDS, EngineFigures
from exo_celery.records.job import JobState
from exo_celery.records.node import NodeView

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
Labels = dict[str, str]
Samples = Iterable[tuple[Labels, float]]
ENGINE_GAUGES: Final = {
    "running": "Requests that the engine computes.",
    "waiting": "Requests that wait for a place in the engine.",
    "lanes": "Micro-batches in flight.",
    "tokens_per_second": "Tokens computed per second in the latest seconds with work; 0 while nothing runs.",
}
ENGINE_COUNTERS: Final = {
    "steps": "Steps of all ranks; engine_rows_total over this is the mean batch.",
    "rows": "Tokens computed.",
    "prompt_tokens": "Prompt tokens of admitted requests.",
    "cached_tokens": "Prompt tokens that were known from earlier prompts.",
    "cache_hits": "Requests that found a beginning of their prompt known.",
}
ENGINE_DURATIONS: Final = {
    "queue_seconds": "From a request's arrival at the engine to its admission.",
    "first_token_seconds": "From a request's arrival at the engine to its first token.",
    "inter_token_seconds": "Between two tokens of a request.",
}


def of_nodes(nodes: list[NodeView], downloads: list[Download]) -> list[str]:
    """Return the figures of nodes and their disks; sizes in bytes."""
    live = [node for node in nodes if node.alive]
    return [
        gauge("node_up", "1 while the node's heartbeat is heard.", by_node(nodes, "alive")),
        gauge("node_memory_bytes", "Memory of a live node.", by_node(live, "ram_total_bytes")),
        gauge("node_memory_available_bytes", "Memory free for models.", by_node(live, "ram_available_bytes")),
        gauge("node_disk_free_bytes", "Disk free for models.", by_node(live, "disk_free_bytes")),
        gauge("download_bytes", "Bytes of a model that a node has.", by_download(downloads, "downloaded_bytes")),
        gauge("download_total_bytes", "Bytes of the whole model.", by_download(downloads, "total_bytes")),
    ]


def of_jobs(states: Mapping[JobState, int], waiting: Mapping[str, int]) -> list[str]:
    """Return how many jobs are in each state, and how many wait for each model."""
    return [
        gauge("jobs", "Jobs by state.", [({"state": state.value}, count) for state, count in states.items()]),
        gauge("queued_jobs", "Jobs that wait for a model.", [({"model": m}, count) for m, count in waiting.items()]),
    ]


def of_instances(instances: list[dict[str, Any]]) -> list[str]:
    """Return how many instances are in each status, and what their engines have measured."""
    states = Counter((placed["model"], placed["status"]) for placed in instances)
    by_status = [({"model": model, "status": status}, count) for (model, status), count in sorted(states.items())]
    measured = [
        ({"instance": placed["id"], "model": placed["model"]}, EngineFigures.model_validate(placed["engine"]))
        for placed in instances
        if placed.get("engine")
    ]
    return [gauge("instances", "Placed models by status.", by_status), *of_engines(measured)]


def of_engines(measured: list[tuple[Labels, EngineFigures]]) -> list[str]:
    """Return the engines' figures; counters begin anew with each forming of a ring."""
    ended = [
        (labels | {"reason": reason}, count)
        for labels, figures in measured
        for reason, count in sorted(figures.requests.items())
    ]
    return [
        *(gauge(f"engine_{name}", meaning, by_engine(measured, name)) for name, meaning in ENGINE_GAUGES.items()),
        *(counter(f"engine_{name}", meaning, by_engine(measured, name)) for name, meaning in ENGINE_COUNTERS.items()),
        counter("engine_requests", "Ended requests by how they ended.", ended),
        *(histogram(f"engine_{name}", meaning, name, measured) for name, meaning in ENGINE_DURATIONS.items()),
    ]


def by_node(nodes: list[NodeView], field: str) -> Samples:
    """Return one figure of each node that has it."""
    found = [(node.id, getattr(node, field)) for node in nodes]
    return [({"node": node}, float(value)) for node, value in found if value is not None]


def by_download(downloads: list[Download], field: str) -> Samples:
    """Return one figure of each download."""
    return [({"node": one.node, "model": one.model}, float(getattr(one, field))) for one in downloads]


def by_engine(measured: list[tuple[Labels, EngineFigures]], field: str) -> Samples:
    """Return one figure of each engine."""
    return [(labels, float(getattr(figures, field))) for labels, figures in measured]


def gauge(name: str, meaning: str, samples: Samples) -> str:
    """Return a metric that rises and falls."""
    return family(name, meaning, "gauge", [("", *sample) for sample in samples])


def counter(name: str, meaning: str, samples: Samples) -> str:
    """Return a metric that only rises."""
    return family(f"{name}_total", meaning, "counter", [("", *sample) for sample in samples])


def histogram(name: str, meaning: str, field: str, measured: list[tuple[Labels, EngineFigures]]) -> str:
    """Return durations as cumulative counts by upper bound."""
    lines: list[tuple[str, Labels, float]] = []
    for labels, figures in measured:
        durations = getattr(figures, field)
        bounds = [f"{bound:g}" for bound in BOUNDS_SECONDS] + ["+Inf"]
        for bound, count in zip(bounds, accumulate(durations.counts), strict=True):
            lines.append(("_bucket", labels | {"le": bound}, count))
        lines += [("_sum", labels, durations.sum_seconds), ("_count", labels, durations.count)]
    return family(name, meaning, "histogram", lines)


def family(name: str, meaning: str, kind: str, samples: Iterable[tuple[str, Labels, float]]) -> str:
    """Return one metric with all its samples (suffix, labels, value)."""
    full = f"exo_celery_{name}"
    lines = [f"# HELP {full} {meaning}", f"# TYPE {full} {kind}"]
    for suffix, labels, value in samples:
        pairs = ",".join(f'{label}="{escaped(text)}"' for label, text in labels.items())
        lines.append(f"{full}{suffix}{{{pairs}}} {value:.17g}")
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Return a label's value as the format wants it."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
