"""One running download of this node: what it was asked for, how far it is, how fast it goes."""

import threading
from collections import deque
from typing import Final

from exo_celery.models.progress import Progress
from exo_celery.models.stop import Stop
from exo_celery.records.download import Download, DownloadStatus, Wish

WINDOW: Final = 10  # samples, one a second, that the speed is taken over


class Transfer:
    """The state of one download, written by its own threads and read by whoever tells of it."""

    def __init__(self, found: Download, wish: Wish) -> None:
        self.found = found
        self.wish = wish
        self.stop = Stop()
        self.thread: threading.Thread | None = None
        self.source = ""
        self._first: Progress | None = None
        self._latest: Progress | None = None
        self._samples: deque[tuple[float, int]] = deque(maxlen=WINDOW)

    def heard(self, progress: Progress) -> None:
        """Take down how far it is; called very often, so it does no more."""
        self._first = self._first or progress
        self._latest = progress

    @property
    def brought_bytes(self) -> bool:
        """Whether there is more now than when it began."""
        return bool(self._first and self._latest and self._latest.downloaded_bytes > self._first.downloaded_bytes)

    @property
    def files(self) -> dict[str, int]:
        """Bytes of each file that are here."""
        return dict(self._latest.files) if self._latest else {}

    def sample(self, clock: float) -> None:
        """Measure for the speed, about once a second by any steady clock."""
        if self._latest:
            self._samples.append((clock, self._latest.downloaded_bytes))

    def standing(self) -> Download:
        """Return the download as it stands; one that is only verified stays what it is."""
        if self.wish.action == "verify":
            return self.found
        seen = self._latest
        ongoing = self.found.evolve(
            status=DownloadStatus.ONGOING, error="", read_only=False, source=self.source or self.found.source
        )
        if seen is None:
            return ongoing
        speed = self._speed()
        return ongoing.evolve(
            downloaded_bytes=seen.downloaded_bytes,
            total_bytes=seen.total_bytes,
            completed_files=seen.completed_files,
            total_files=seen.total_files,
            speed_bps=speed,
            eta_seconds=(seen.total_bytes - seen.downloaded_bytes) / speed if speed else None,
        )

    def _speed(self) -> float:
        if len(self._samples) < 2:
            return 0.0
        (first, had), (last, have) = self._samples[0], self._samples[-1]
        return max(0.0, (have - had) / (last - first)) if last > first else 0.0
