"""Bring a model from a source into a models folder: resumable at any byte, verified, one download per model at a time.

Bytes gather in `.partial` files and are continued whoever left them; a file takes its name only when its digest is
right. Interrupted, cancelled or killed, nothing that is right is fetched twice.
"""

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from exo_celery.errors import ConflictError, DownloadCancelledError, DownloadError, DownloadInterruptedError
from exo_celery.models.digests import digest, listed_digest
from exo_celery.models.disk import size_of
from exo_celery.models.folders import INDEX, LOCK, PARTIAL, checked_name, folder_name, is_tokenizer, is_weights, partial
from exo_celery.models.manifest import FileEntry, Manifest, read_manifest, write_manifest
from exo_celery.models.progress import Ledger, Progress
from exo_celery.models.rate import Rate
from exo_celery.models.receive import Receiver
from exo_celery.models.sources import Source
from exo_celery.models.stop import Stop

FILES_AT_ONCE: Final = 4
SPARE_BYTES: Final = 64 << 20  # left free on the disk for everybody else


def fetch(
    model: str,
    directories: Sequence[Path],
    source: Source,
    progress: Callable[[Progress], None],
    stop: Stop,
    *,
    revision: str = "",
    rate: Rate | None = None,
) -> Path:
    """Make the model complete in one of the directories, and return its folder; no faster than `rate` allows.

    `progress` is called often, from several threads but one at a time; its sum falls only when wrong bytes are dropped.

    Raises:
        DownloadCancelledError: `stop` was set; the bytes are kept.
        DownloadInterruptedError: the source could not be reached any more; the bytes are kept.
        DownloadError: it cannot succeed as things are: no room, no such model, no leave, wrong bytes.
        ConflictError: the same model is being downloaded into the same folder.
    """
    try:
        manifest = checked(listing(model, directories, source, stop, revision))
        folder = destination(directories, manifest)
        with locked(folder, model):
            ledger = Ledger(manifest, progress)
            prepare(folder, manifest, ledger, stop)
            receive_all(Receiver(folder, manifest, source, ledger, rate or Rate(0)), stop)
            tidy(folder, manifest)
    except OSError as error:
        raise DownloadError(f"{model} cannot be brought here: {error}") from error
    return folder


def listing(model: str, directories: Sequence[Path], source: Source, stop: Stop, revision: str) -> Manifest:
    """List the model at the revision asked for; else at the one that was begun, so that no right byte is lost."""
    began = [manifest for place in directories if (manifest := read_manifest(place / folder_name(model)))]
    if not revision and began and began[0].revision:
        try:
            return source.manifest(model, began[0].revision, stop)
        except DownloadInterruptedError:
            raise
        except DownloadError:
            pass  # the source has it no more, or never had: begin with what it has
    return source.manifest(model, revision, stop)


def checked(manifest: Manifest) -> Manifest:
    """Refuse a listing that leads out of the folder, or that no model can be loaded from."""
    for name in manifest.files:
        if "/" in checked_name(name) or name.startswith("."):
            raise DownloadError(f"the listing of {manifest.model} names the file {name!r}: refused")
    lacking = [
        what
        for what, there in (
            ("config.json", "config.json" in manifest.files),
            ("weights (model*.safetensors)", any(map(is_weights, manifest.files))),
            ("a tokenizer", any(map(is_tokenizer, manifest.files))),
        )
        if not there
    ]
    if lacking:
        raise DownloadError(
            f"{manifest.model} at {manifest.source} has no {' and no '.join(lacking)}: "
            "mlx-lm cannot load it; take a conversion of it, for example from mlx-community"
        )
    return manifest


def destination(directories: Sequence[Path], manifest: Manifest) -> Path:
    """Return the model's folder: where part of it lies already, else in the first directory with room for it.

    Raises:
        DownloadError: no directory has room; or the folder is a link.
    """
    name = folder_name(manifest.model)
    there = [directory / name for directory in directories if (directory / name).is_dir()]
    with_bytes = max(there, key=bytes_there, default=None)
    if with_bytes is not None and with_bytes.is_symlink():
        raise DownloadError(
            f"{with_bytes} is a link: models are not written through links. Remove it, or fill its target"
        )
    if with_bytes is not None:
        return with_bytes
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(directory).free >= manifest.total_bytes + SPARE_BYTES:
            (directory / name).mkdir(exist_ok=True)
            return directory / name
    free = ", ".join(f"{directory}: {shutil.disk_usage(directory).free}" for directory in directories)
    raise no_room(manifest, manifest.total_bytes, free)


def no_room(manifest: Manifest, missing: int, free: str) -> DownloadError:
    """Return the error that says how much is missing where."""
    return DownloadError(
        f"no room for {manifest.model}: {missing} of its {manifest.total_bytes} bytes are still to come, "
        f"free are {free} ({SPARE_BYTES} stay free). Make room, or add a folder to EXO_MODELS_DIRS, and ask again"
    )


def bytes_there(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    return sum(size_of(path) or 0 for path in folder.iterdir())


@contextmanager
def locked(folder: Path, model: str) -> Iterator[None]:
    """Hold the model's lock, which ends with the process that holds it."""
    lock = FileLock(folder / LOCK, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise ConflictError(f"{model} is already being downloaded into {folder}") from error
    try:
        yield
    finally:
        lock.release()


def prepare(folder: Path, manifest: Manifest, ledger: Ledger, stop: Stop) -> None:
    """Take over what is right of the folder's files, write the manifest, and check that the rest has room."""
    old = read_manifest(folder)
    have: dict[str, int] = {}
    done: set[str] = set()
    for name, entry in manifest.files.items():
        if in_place(folder / name, entry, old.files.get(name) if old else None, stop):
            have[name] = entry.size
            done.add(name)
        else:
            have[name] = min(size_of(partial(folder / name)) or 0, entry.size)
    write_manifest(folder, manifest)
    ledger.start(have, done)
    free = shutil.disk_usage(folder).free
    if free < ledger.missing_bytes + SPARE_BYTES and ledger.missing_bytes:
        raise no_room(manifest, ledger.missing_bytes, f"{folder}: {free}")


def in_place(path: Path, entry: FileEntry, before: FileEntry | None, stop: Stop) -> bool:
    """Tell whether a file is whole and right; of one that is not, what may be continued becomes its `.partial`."""
    other = before is not None and listed_digest(before) != listed_digest(entry)
    if other:  # another revision: its bytes are of no use
        partial(path).unlink(missing_ok=True)
    size = size_of(path)
    if size is None:
        return False
    # Files that an earlier download put there were verified then; those of unknown origin are hashed once.
    if size == entry.size and not other and (before is not None or is_right(path, entry, stop)):
        return True
    if size < entry.size and not other and size > (size_of(partial(path)) or 0):
        path.replace(partial(path))
    else:
        path.unlink()
    return False


def is_right(path: Path, entry: FileEntry, stop: Stop) -> bool:
    """Hash a file of the right length; without a listed digest the length must do."""
    return listed_digest(entry) in ("", digest(path, entry, stop))


def receive_all(receiver: Receiver, stop: Stop) -> None:
    """Receive every file that is not in place; the first error ends them all."""
    ended = Stop()
    # The weights by chance, so that nodes that begin together begin with different ones and then swap.
    names = sorted(receiver.manifest.files, key=lambda name: (is_weights(name), random.random()))
    with stop.calling(ended.set), ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="fetch") as pool:
        running = [pool.submit(receiver.receive, name, ended) for name in names]
        done, waiting = wait(running, return_when=FIRST_EXCEPTION)
        if waiting:
            ended.set()
            pool.shutdown(cancel_futures=True)
    stop.check()
    errors = [error for future in done if (error := future.exception())]
    causes = [error for error in errors if not isinstance(error, DownloadCancelledError)]
    if errors:
        raise (causes or errors)[0]


def tidy(folder: Path, manifest: Manifest) -> None:
    """Remove partials, and what another revision left: mlx-lm would load every weight file it finds."""
    for path in folder.iterdir():
        stale = is_weights(path.name) or path.name == INDEX
        if path.name.endswith(PARTIAL) or (stale and path.name not in manifest.files):
            path.unlink()
