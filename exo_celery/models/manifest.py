"""The manifest of a model's folder: which files belong to it, how long they are, and their digests.

It is written when a download starts, so that the total is known without network from then on.
"""

import os
import threading
from pathlib import Path

from pydantic import Field, ValidationError

from exo_celery.models.folders import MANIFEST
from exo_celery.records.base import Record


class FileEntry(Record):
    """One file. `sha256` for large files, git's `blob_id` for small ones; empty where the source tells neither."""

    size: int = Field(ge=0)
    sha256: str = ""
    blob_id: str = ""


class Manifest(Record):
    """The files of a model at one revision."""

    model: str
    source: str = ""
    revision: str = ""
    files: dict[str, FileEntry] = Field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files.values())


def read_manifest(folder: Path) -> Manifest | None:
    """Return the folder's manifest, or None when there is none or it is not readable as one."""
    try:
        return Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest atomically."""
    fresh = folder / f"{MANIFEST}.{os.getpid()}.{threading.get_ident()}"
    fresh.write_text(manifest.model_dump_json(indent=1) + "\n")
    fresh.replace(folder / MANIFEST)
