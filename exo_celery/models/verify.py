"""Hash a model's files again and compare: what a disk may have done to them since they were fetched."""

import re
from pathlib import Path
from typing import Final

from exo_celery.errors import DownloadError
from exo_celery.models.digests import digest, listed_digest
from exo_celery.models.disk import size_of
from exo_celery.models.manifest import FileEntry, read_manifest
from exo_celery.models.stop import Stop

BLOB: Final = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")


def wrong_files(folder: Path, stop: Stop) -> list[str]:
    """Return the names of the files whose bytes are not those that were listed.

    Raises:
        DownloadError: no digest is known to compare with, or the disk does not give a file back.
        DownloadCancelledError: `stop` was set.
    """
    try:
        return compared(folder, stop)
    except OSError as error:
        raise DownloadError(f"{folder} cannot be verified, it cannot be read: {error}") from error


def compared(folder: Path, stop: Stop) -> list[str]:
    """Return the names of the wrong files, as above."""
    known = {name: entry for name, entry in listed_files(folder).items() if listed_digest(entry)}
    if not known:
        raise DownloadError(f"{folder} came without digests: there is nothing to verify it against")
    return [
        name
        for name, entry in sorted(known.items())
        if size_of(folder / name) != entry.size or digest(folder / name, entry, stop) != listed_digest(entry)
    ]


def listed_files(folder: Path) -> dict[str, FileEntry]:
    """Return lengths and digests by the manifest, else by the hub's cache, whose blobs are named by their digests."""
    manifest = read_manifest(folder)
    if manifest:
        return manifest.files
    blobs = {path.name: path.resolve() for path in folder.iterdir() if path.is_symlink() and path.is_file()}
    return {name: blob_entry(blob) for name, blob in blobs.items() if BLOB.fullmatch(blob.name)}


def blob_entry(blob: Path) -> FileEntry:
    """Return what the name of a blob says."""
    size = blob.stat().st_size
    return FileEntry(size=size, sha256=blob.name) if len(blob.name) == 64 else FileEntry(size=size, blob_id=blob.name)
