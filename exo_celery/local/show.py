"""How the commands show things: tables, progress bars, an answer of placement in words."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

LONGEST_CELL: Final = 120


def table(columns: Sequence[str], rows: Sequence[dict[str, Any]], console: Console | None = None) -> None:
    """Print some fields of records as a table."""
    shown = Table()
    for name in columns:
        shown.add_column(name.removesuffix("_bytes").replace("_", " "), overflow="fold")
    for row in rows:
        shown.add_row(*(Text(cell(name, row.get(name))) for name in columns))
    (console or Console()).print(shown)


def cell(name: str, value: Any) -> str:
    """Return a field as people read it."""
    if value is None:
        return "-"
    if name == "ring":
        return ", ".join(f"{rank['node']} [{rank['start_layer']}, {rank['end_layer']})" for rank in value)
    if name.endswith("_bytes"):
        return size(value)
    if name == "at" or name.endswith("_at"):  # 0 is never
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value)) if value else ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = ", ".join(value) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"


def size(number: float) -> str:
    """Return bytes with a unit of a thousand."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Give a function that shows how far a step is, in bytes, on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        steps: dict[str, TaskID] = {}

        def say(step: str, done: int, total: int) -> None:
            if step not in steps:
                steps[step] = bars.add_task(step, total=total)
            bars.update(steps[step], completed=done, total=total)

        yield say


def answer(found: dict[str, Any]) -> str:
    """Return an answer of placement in one or two lines."""
    name = f"{found['case']}: " if "case" in found else ""
    if not found["ok"]:
        return f"{name}refused, {found['error']['code']}: {found['error']['message']}"
    layers = ", ".join(f"{node} {found['layer_counts'][node]}" for node in found["nodes"])
    return f"{name}{found['sharding']}, layers: {layers}\n  {found['why']}"


def rings(found: dict[str, Any]) -> str:
    """Return where a model and its replicas go, a line for each, with its id where it was placed."""
    return "\n".join(f"{one.get('id', '')} {one['why']}".strip() for one in found["replicas"])
