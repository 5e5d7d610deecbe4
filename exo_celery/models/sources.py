"""Where a model can come from. A source lists a model's files, and streams each from any offset."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from exo_celery.errors import DownloadError, DownloadInterruptedError
from exo_celery.models.digests import CHUNK_BYTES
from exo_celery.models.disk import scan
from exo_celery.models.folders import folder_name
from exo_celery.models.listing import Lister
from exo_celery.models.manifest import Manifest
from exo_celery.models.stop import Stop

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stream:
    """Bytes of a file. `start` is where they begin: 0 when the source could not begin where it was asked to."""

    start: int
    chunks: Iterator[bytes]


class WrongBytesError(DownloadError):
    """What arrives is not what was listed: drop it and begin again, once."""


class Source(Protocol):
    """A place that has models; `label` is how a download names it."""

    label: str

    def offers(self, model: str, revision: str) -> bool:
        """Whether it is worth asking this source for the model; without asking it."""

    def manifest(self, model: str, revision: str, stop: Stop) -> Manifest:
        """List the model's wanted files with lengths and digests.

        Raises:
            DownloadError: the source does not have the model, or may not give it.
            DownloadInterruptedError: the source cannot be reached now.
        """

    def open(self, manifest: Manifest, name: str, offset: int, stop: Stop) -> AbstractContextManager[Stream]:
        """Stream a file from an offset on; setting `stop` ends a wait inside at once.

        Raises:
            DownloadError, DownloadInterruptedError: as above, here or while the chunks are read.
        """


class FolderSource:
    """A folder of complete model folders, on this machine or mounted."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.label = f"folder {directory}"
        self._lister = Lister()

    def offers(self, model: str, revision: str) -> bool:
        """Whether the folder holds the whole model, at that revision if one is asked for."""
        try:
            disk = scan(self.directory / folder_name(model))
            return disk.complete and revision in ("", disk.revision)
        except OSError as error:
            log.warning("source folder %s cannot be read: %s", self.directory, error)
            return False

    def manifest(self, model: str, revision: str, stop: Stop) -> Manifest:
        """List the files; one whose digest nobody told is hashed, once."""
        listed = self._lister.list(model, self.directory / folder_name(model), stop)
        if revision not in ("", listed.revision):
            raise DownloadError(f"{model} is at revision {listed.revision} in {self.directory}, asked was {revision}")
        return listed

    @contextmanager
    def open(self, manifest: Manifest, name: str, offset: int, stop: Stop) -> Iterator[Stream]:
        """Read a file from an offset on."""
        path = self.directory / folder_name(manifest.model) / name
        try:
            file = path.open("rb")
        except FileNotFoundError as error:
            raise DownloadInterruptedError(f"{path}, which {manifest.model} comes from, is gone") from error
        with file:
            file.seek(offset)
            yield Stream(offset, iter(lambda: file.read(CHUNK_BYTES), b""))


def choose(sources: Sequence[Source], model: str, revision: str = "") -> Source:
    """Return the first source that offers the model.

    Raises:
        DownloadError: none does; the message says what to do.
    """
    for source in sources:
        if source.offers(model, revision):
            return source
    raise DownloadError(
        f"{model} {revision} is in none of this node's source folders nor whole on another live node, "
        "and the hub may not be asked (offline). "
        f"Put its complete folder {folder_name(model)} into a models folder of this node, or go online"
    )
