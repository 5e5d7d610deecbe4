"""The running sum of one download: what is there of each file, and how fast it grows."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from exo_celery.models.manifest import Manifest


@dataclass(frozen=True)
class Progress:
    """Where a download stands. `files` are bytes by name, for those who want the detail."""

    downloaded_bytes: int
    total_bytes: int
    completed_files: int
    total_files: int
    files: Mapping[str, int]


class Ledger:
    """Bytes by file, told on in order to one listener.

    The sum never falls, except by bytes that were dropped because they were wrong.
    """

    def __init__(self, manifest: Manifest, listener: Callable[[Progress], None]) -> None:
        self.manifest = manifest
        self.listener = listener
        self._guard = threading.Lock()
        self._have = dict.fromkeys(manifest.files, 0)
        self._done: set[str] = set()

    def start(self, have: Mapping[str, int], done: set[str]) -> None:
        """Take over what lies on disk already."""
        with self._guard:
            self._have.update(have)
            self._done |= done
            self._tell()

    def put(self, name: str, have: int, *, done: bool = False) -> None:
        """Note how much of a file is there now; a source that begins again at 0 takes nothing back."""
        with self._guard:
            self._have[name] = max(self._have[name], min(have, self.manifest.files[name].size))
            if done:
                self._done.add(name)
            self._tell()

    def drop(self, name: str) -> None:
        """Take back what was counted of a file: its bytes were wrong."""
        with self._guard:
            self._have[name] = 0
            self._tell()

    @property
    def missing_bytes(self) -> int:
        """What has yet to come."""
        return self.manifest.total_bytes - sum(self._have.values())

    def _tell(self) -> None:
        self.listener(
            Progress(
                downloaded_bytes=sum(self._have.values()),
                total_bytes=self.manifest.total_bytes,
                completed_files=len(self._done),
                total_files=len(self._have),
                files=dict(self._have),
            )
        )
