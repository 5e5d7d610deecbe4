"""What a node may hand to its peers: whole models, and whole files of models that are still coming."""

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exo_celery.errors import DownloadError, DownloadInterruptedError
from exo_celery.models.disk import size_of
from exo_celery.models.listing import Lister
from exo_celery.models.manifest import FileEntry, Manifest, read_manifest
from exo_celery.models.stop import Stop
from exo_celery.models.survey import ScanCache, places
from exo_celery.records.base import checked_model_id
from exo_celery.settings import Settings

log = logging.getLogger(__name__)
PATIENCE_SECONDS: Final = 2.0  # that a request waits for the listing that another one asked for


@dataclass(frozen=True)
class Served:
    """One file that may be handed out."""

    path: Path
    entry: FileEntry


class Shelf:
    """Finds what may be served by what the node's own scan sees; a name from outside is only ever looked up."""

    def __init__(self, settings: Settings, stop: Stop) -> None:
        self.settings = settings
        self.stop = stop
        self._cache = ScanCache()
        self._lister = Lister()
        self._listing = threading.Lock()

    def whole(self, model: str) -> tuple[Path, Manifest] | None:
        """Return a whole model's folder and listing, or None.

        Raises:
            DownloadInterruptedError: a model that came without digests is being hashed: ask again.
        """
        folders = self.folders(model)
        if not self._listing.acquire(timeout=PATIENCE_SECONDS):
            raise DownloadInterruptedError("the files of a model are being hashed", retry_after_seconds=5)
        try:
            return next((found for folder in folders if (found := self.listed(model, folder))), None)
        finally:
            self._listing.release()

    def listed(self, model: str, folder: Path) -> tuple[Path, Manifest] | None:
        """Return a folder and its listing if it holds the whole model."""
        try:
            if self._cache.scan(folder).complete:
                return folder, self._lister.list(model, folder, self.stop)
        except (OSError, DownloadError) as error:
            log.info("not served: %s", error)  # the node's own report tells it to everybody
        return None

    def files(self, model: str, revision: str) -> dict[str, Served]:
        """Return the files of a model at a revision that are whole here: all, or those that have come so far."""
        if whole := self.whole(model):
            folder, manifest = whole
            return self.served(folder, manifest) if manifest.revision == revision else {}
        for folder in self.folders(model):
            coming = read_manifest(folder)
            if coming and coming.revision == revision:
                return self.served(folder, coming)
        return {}

    def served(self, folder: Path, manifest: Manifest) -> dict[str, Served]:
        """Return the files in their places: there they are right, a download verifies before it puts one there."""
        inside = folder.resolve()
        home = inside.parent.parent if inside.parent.name == "snapshots" else inside  # blobs of the hub's cache
        paths = {name: folder / name for name in manifest.files}
        return {
            name: Served(path, manifest.files[name])
            for name, path in paths.items()
            if size_of(path) == manifest.files[name].size and path.resolve().is_relative_to(home)
        }

    def folders(self, model: str) -> list[Path]:
        """Return the folders of a model on this node."""
        try:
            checked_model_id(model)
        except ValueError:
            return []
        return [place.folder for place in places(self.settings) if place.model == model]
