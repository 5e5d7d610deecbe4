"""The listing of a whole model that lies in a folder: what a copy of it has to be."""

import hashlib
import json
from pathlib import Path

from exo_celery.errors import DownloadError
from exo_celery.models.digests import digest, listed_digest
from exo_celery.models.disk import scan
from exo_celery.models.folders import is_wanted, is_weights
from exo_celery.models.manifest import FileEntry, Manifest
from exo_celery.models.stop import Stop
from exo_celery.models.verify import listed_files


class Lister:
    """Lists whole models, and remembers what it had to hash for that."""

    def __init__(self) -> None:
        self._digests: dict[tuple[Path, int, int], str] = {}

    def list(self, model: str, folder: Path, stop: Stop) -> Manifest:
        """List a whole model's files with lengths and digests.

        A folder that tells no revision gets one made from its listing, so that the same files have the same.

        Raises:
            DownloadError: the folder cannot be read, or does not hold the whole model.
            DownloadCancelledError: `stop` was set while a file was hashed.
        """
        try:
            disk = scan(folder)
            if not disk.complete:
                raise DownloadError(f"{model} is not whole in {folder}: {'; '.join(disk.problems) or 'nothing there'}")
            known = listed_files(folder)
            paths = sorted(path for path in folder.iterdir() if is_wanted(path.name) and path.is_file())
            files = {path.name: self.entry(path, known.get(path.name), stop) for path in paths}
        except OSError as error:
            raise DownloadError(f"{model} cannot be read from {folder}: {error}") from error
        snapshot = folder.name if folder.parent.name == "snapshots" else ""
        revision = disk.revision or snapshot or made_revision(files)
        return Manifest(model=model, source=str(folder), revision=revision, files=files)

    def entry(self, path: Path, known: FileEntry | None, stop: Stop) -> FileEntry:
        """Return a file's length and digest, the known one of weights: anything else may have been edited since."""
        stat = path.stat()
        if known and known.size == stat.st_size and listed_digest(known) and is_weights(path.name):
            return known
        key = (path, stat.st_size, stat.st_mtime_ns)
        if key not in self._digests:
            self._digests[key] = digest(path, FileEntry(size=stat.st_size), stop)
        return FileEntry(size=stat.st_size, sha256=self._digests[key])


def made_revision(files: dict[str, FileEntry]) -> str:
    """Return a revision made from a listing, in the form of a commit."""
    text = json.dumps({name: [entry.size, listed_digest(entry)] for name, entry in files.items()}, sort_keys=True)
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
