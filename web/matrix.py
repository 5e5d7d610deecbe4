"""The matrix of models and nodes: one cell per download, and what may be done about it. PURE."""

from dataclasses import dataclass
from typing import Final

from exo_celery.records.download import Download, DownloadStatus
from exo_celery.records.model import ModelCard

ACTIONS: Final = {
    "complete": ("verify", "delete"),
    "partial": ("resume", "delete"),
    "ongoing": ("cancel",),
    "failed": ("retry", "delete"),
    "absent": ("download",),
}


@dataclass(frozen=True)
class Cell:
    """One model on one node."""

    download: Download

    @property
    def state(self) -> str:
        """The word for it: a pending download is partial or absent."""
        if self.download.status is DownloadStatus.COMPLETED:
            return "complete"
        if self.download.status is not DownloadStatus.PENDING:
            return self.download.status.value
        return "partial" if self.download.downloaded_bytes else "absent"

    @property
    def actions(self) -> tuple[str, ...]:
        """What a person may do now; nothing is deleted from a read-only folder."""
        allowed = ACTIONS[self.state]
        return tuple(one for one in allowed if not (one == "delete" and self.download.read_only))


@dataclass(frozen=True)
class Row:
    """One model on all live nodes; `card` is None where only its files are known."""

    model: str
    card: ModelCard | None
    cells: tuple[Cell, ...]


def rows(cards: list[ModelCard], downloads: list[Download], nodes: list[str]) -> list[Row]:
    """Return a row per model, its cells in the order of the nodes."""
    by_id = {card.id: card for card in cards}
    held = {(one.node, one.model): one for one in downloads}
    known = sorted(by_id.keys() | {one.model for one in downloads})
    nothing = {(node, model): Download(node=node, model=model) for node in nodes for model in known}
    filled = nothing | held
    return [Row(model, by_id.get(model), tuple(Cell(filled[node, model]) for node in nodes)) for model in known]
