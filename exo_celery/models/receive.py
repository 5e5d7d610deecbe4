"""Receive one file after the other into its `.partial`, hash it on the way, and give it its name when it is right."""

import logging
import os
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Final

from exo_celery.errors import DownloadError, DownloadInterruptedError
from exo_celery.models.digests import Hasher, hasher, listed_digest, take_in
from exo_celery.models.disk import size_of
from exo_celery.models.folders import partial
from exo_celery.models.manifest import FileEntry, Manifest
from exo_celery.models.progress import Ledger
from exo_celery.models.rate import Rate
from exo_celery.models.sources import Source, WrongBytesError
from exo_celery.models.stop import Stop

log = logging.getLogger(__name__)
# Waits between tries of one file that bring no byte; the sum, about half a minute, outlasts a restart of the source.
WAITS_SECONDS: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0)
LONGEST_WAIT_SECONDS: Final = 300.0


@dataclass(frozen=True)
class Receiver:
    """What receiving needs to know. Used by several threads, one file each."""

    folder: Path
    manifest: Manifest
    source: Source
    ledger: Ledger
    rate: Rate

    def receive(self, name: str, stop: Stop) -> None:
        """Bring one file into its place, unless it is there.

        Raises:
            DownloadCancelledError: `stop` was set.
            DownloadInterruptedError: the source failed too often in a row without a byte.
            DownloadError: it cannot be had; or it was wrong twice.
        """
        path, entry = self.folder / name, self.manifest.files[name]
        if size_of(path) == entry.size:  # `fetch.prepare` left only right files in their places
            return
        tries = Tries()
        while True:
            stop.check()
            try:
                self.attempt(name, path, entry, stop)
            except WrongBytesError as error:
                tries.wrong(error)
                partial(path).unlink(missing_ok=True)
                self.ledger.drop(name)
            except DownloadInterruptedError as error:
                tries.interrupted(error, size_of(partial(path)) or 0, stop)
            else:
                self.ledger.put(name, entry.size, done=True)
                return

    def attempt(self, name: str, path: Path, entry: FileEntry, stop: Stop) -> None:
        """Continue a file to its end, verify it, and put it into its place."""
        part = partial(path)
        if (size_of(part) or 0) > entry.size:
            raise WrongBytesError(f"{name}: the partial is longer than the file")
        found = hasher(entry)
        if part.exists():
            take_in(part, found, stop)
        if (size_of(part) or 0) < entry.size or not part.exists():
            found = self.stream(name, part, entry, found, stop)
        if listed_digest(entry) not in ("", found.hexdigest()):
            raise WrongBytesError(
                f"{name} of {self.manifest.model} has the digest {found.hexdigest()}, listed is {listed_digest(entry)}"
            )
        part.replace(path)

    def stream(self, name: str, part: Path, entry: FileEntry, found: Hasher, stop: Stop) -> Hasher:
        """Append what is missing to the partial; return the hasher over all its bytes."""
        have = size_of(part) or 0
        # No O_APPEND: the source may begin at 0. O_NOFOLLOW: a link must not lead the bytes elsewhere.
        target = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(target, "r+b", buffering=0) as file, self.source.open(self.manifest, name, have, stop) as stream:
            if stream.start != have:
                found, have = hasher(entry), 0
                file.truncate()  # and only here: ext4 writes a file that was cut to nothing out when it is closed
            file.seek(have)
            for chunk in stream.chunks:
                have += len(chunk)
                if have > entry.size:
                    raise WrongBytesError(f"{name}: more than the listed {entry.size} bytes arrive")
                write_all(file, chunk)
                found.update(chunk)
                self.ledger.put(name, have)
                if pause := self.rate.turn(len(chunk)):
                    stop.wait(pause)
                stop.check()
        stop.check()
        if have < entry.size:
            raise DownloadInterruptedError(f"{name}: the source ended after {have} of {entry.size} bytes")
        return found


def write_all(file: RawIOBase, data: bytes) -> None:
    """Hand all bytes to the system at once, so that none is lost with this process."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) or 0 :]


class Tries:
    """The patience for one file: waits that grow, and start anew with every byte that arrives."""

    def __init__(self) -> None:
        self.fruitless = 0
        self.wrongs = 0
        self.most_bytes = -1

    def interrupted(self, error: DownloadInterruptedError, have: int, stop: Stop) -> None:
        """Wait before the next try, or pass the error on when too many brought nothing."""
        if have > self.most_bytes >= 0:
            self.fruitless = 0
        self.most_bytes = max(have, self.most_bytes)
        if self.fruitless >= len(WAITS_SECONDS):
            raise error
        asked = error.numbers.get("retry_after_seconds") or 0.0
        seconds = max(WAITS_SECONDS[self.fruitless], min(asked, LONGEST_WAIT_SECONDS))
        self.fruitless += 1
        log.info("%s; trying again in %.0f s", error.message, seconds)
        stop.wait(seconds)
        stop.check()

    def wrong(self, error: WrongBytesError) -> None:
        """Allow wrong bytes once: they may be those of an old partial."""
        self.wrongs += 1
        if self.wrongs > 1:
            raise DownloadError(f"{error.message}, twice. The source is damaged or serves something else") from error
