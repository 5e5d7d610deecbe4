"""All models on this machine's disks: the writable folders, the read-only ones, and the hub's own cache.

Cheap when nothing changed: a folder is scanned again only when a name, length or time of its files is another.
"""

import logging
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from exo_celery.models.disk import OnDisk, scan
from exo_celery.models.folders import LOCK, model_of
from exo_celery.records.download import DISK, HF_CACHE, Download, DownloadStatus
from exo_celery.settings import Settings

log = logging.getLogger(__name__)
PROBLEMS_SHOWN: Final = 3

Signature = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Place:
    """One model's folder, and whether it may be written to."""

    model: str
    folder: Path
    read_only: bool
    source: str


@dataclass
class ScanCache:
    """What the last survey saw, by folder."""

    seen: dict[Path, tuple[Signature, OnDisk]] = field(default_factory=dict)

    def scan(self, folder: Path) -> OnDisk:
        """Scan a folder, or answer from memory when none of its files changed."""
        now = signature(folder)
        known = self.seen.get(folder)
        if known is None or known[0] != now:
            known = self.seen[folder] = (now, scan(folder))
        return known[1]

    def keep(self, folders: Collection[Path]) -> None:
        """Forget the folders that are gone."""
        for folder in self.seen.keys() - set(folders):
            del self.seen[folder]


def survey(
    settings: Settings, node: str, cache: ScanCache | None = None, skip: Collection[str] = ()
) -> tuple[Download, ...]:
    """Report every model on this machine's disks, the best copy of each, sorted by model id.

    `skip` names models that are being downloaded: their folders are left alone. A folder that cannot be read becomes a
    `failed` download with the reason, and hides nothing else.
    """
    memory = cache or ScanCache()
    best: dict[str, Download] = {}
    everywhere = list(places(settings))
    for place in everywhere:
        found = None if place.model in skip else report(place, node, memory)
        if found and (place.model not in best or worth(found) > worth(best[place.model])):
            best[place.model] = found
    memory.keep({place.folder for place in everywhere})
    return tuple(best[model] for model in sorted(best))


def find(settings: Settings, node: str, model: str, cache: ScanCache) -> Download:
    """Report one model; one that is nowhere is pending with 0 bytes."""
    there = [report(place, node, cache) for place in places(settings) if place.model == model]
    return max(filter(None, there), key=worth, default=Download(node=node, model=model))


def worth(download: Download) -> tuple[bool, bool, int]:
    """Order copies of one model: complete before partial, continuable before read-only, more bytes before fewer."""
    return (
        download.status is DownloadStatus.COMPLETED,
        not download.read_only,
        download.downloaded_bytes,
    )


def report(place: Place, node: str, memory: ScanCache) -> Download | None:
    """Report one folder; None for an incomplete one of the hub's cache, which is the hub client's to finish."""
    found = Download(
        node=node,
        model=place.model,
        directory=str(place.folder),
        read_only=place.read_only,
        source=place.source,
    )
    try:
        disk = memory.scan(place.folder)
    except OSError as error:
        return found.evolve(status=DownloadStatus.FAILED, error=f"{place.folder} cannot be read: {error}")
    if place.source == HF_CACHE and not disk.complete:
        return None
    return found.evolve(
        status=DownloadStatus.COMPLETED if disk.complete else DownloadStatus.PENDING,
        # Nobody continues a partial copy in a read-only folder, so its bytes are worth nothing.
        downloaded_bytes=disk.have_bytes if disk.complete or not place.read_only else 0,
        total_bytes=disk.total_bytes,
        completed_files=disk.completed_files,
        total_files=disk.total_files,
        revision=disk.revision or (place.folder.name if place.source == HF_CACHE else ""),
        error="; ".join(disk.problems[:PROBLEMS_SHOWN]),
    )


def places(settings: Settings) -> Iterator[Place]:
    """Find the model folders, the writable ones first."""
    for directory in settings.writable_dirs:
        yield from folders_in(directory, read_only=False)
    for directory in settings.models_read_only_dirs:
        yield from folders_in(directory, read_only=True)
    yield from hub_cache(settings.hub_cache)


def folders_in(directory: Path, *, read_only: bool) -> Iterator[Place]:
    """Find the folders `<org>--<name>`. One that is a link is read, never written to or deleted."""
    for path in children(directory):
        model = model_of(path.name)
        if model and not path.is_file():
            yield Place(model, path, read_only or path.is_symlink(), DISK)


def hub_cache(cache: Path) -> Iterator[Place]:
    """Find the snapshots of the hub's cache: `models--<org>--<name>/snapshots/<commit>`."""
    for repo in children(cache):
        model = model_of(repo.name.removeprefix("models--"))
        snapshot = current_snapshot(repo) if model and repo.name.startswith("models--") else None
        if model and snapshot:
            yield Place(model, snapshot, True, HF_CACHE)


def current_snapshot(repo: Path) -> Path | None:
    """Return the snapshot of `main`, else the newest."""
    try:
        named = repo / "snapshots" / (repo / "refs" / "main").read_text().strip()
        if named.is_dir():
            return named
    except (OSError, ValueError):
        pass  # no such ref: a snapshot fetched by its commit has none
    snapshots = [path for path in children(repo / "snapshots") if path.is_dir()]
    return max(snapshots, key=lambda path: path.stat().st_mtime_ns, default=None)


def children(directory: Path) -> list[Path]:
    """List a folder in order; one that is missing has none, one that cannot be read is told in the log."""
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        log.warning("models folder %s cannot be read: %s", directory, error)
        return []


def signature(folder: Path) -> Signature:
    """Return names, lengths and times of the files in a folder: equal as long as nothing was written."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name != LOCK:
                try:
                    stat = entry.stat()
                except FileNotFoundError:  # a link that leads nowhere, or a file that was just moved
                    continue
                found.append((entry.name, stat.st_size, stat.st_mtime_ns))
    return tuple(sorted(found))
