"""Digests of files: sha256 as the hub lists it for large files, git's blob id as it does for small ones."""

import hashlib
from pathlib import Path
from typing import Final, Protocol

from exo_celery.models.manifest import FileEntry
from exo_celery.models.stop import Stop

CHUNK_BYTES: Final = 1 << 20


class Hasher(Protocol):
    """What hashlib's objects can do, as far as we need it."""

    def update(self, data: bytes, /) -> None:
        """Take in more bytes."""

    def hexdigest(self) -> str:
        """Return the digest of all bytes so far."""


def hasher(entry: FileEntry) -> Hasher:
    """Return a fresh hasher for a file, of the kind its entry was listed with."""
    if entry.blob_id and not entry.sha256:
        return hashlib.sha1(b"blob %d\0" % entry.size, usedforsecurity=False)
    return hashlib.sha256()


def listed_digest(entry: FileEntry) -> str:
    """Return the digest that the file must have, or '' when the source told none."""
    return entry.sha256 or entry.blob_id


def take_in(path: Path, into: Hasher, stop: Stop) -> None:
    """Feed a whole file to a hasher.

    Raises:
        DownloadCancelledError: `stop` was set meanwhile.
    """
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            stop.check()
            into.update(chunk)


def digest(path: Path, entry: FileEntry, stop: Stop) -> str:
    """Return the digest of a file, of the kind its entry was listed with."""
    found = hasher(entry)
    take_in(path, found, stop)
    return found.hexdigest()
