"""Fetching from a source: resumed at any byte, verified, cancelled at once, refused with the reason."""

import hashlib
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from filelock import FileLock
from lookalike.checkpoints import cut, shard_name, write_model

from exo_celery.errors import ConflictError, DownloadCancelledError, DownloadError, DownloadInterruptedError
from exo_celery.models import fetch as fetching
from exo_celery.models import receive
from exo_celery.models.disk import scan
from exo_celery.models.fetch import checked, fetch
from exo_celery.models.folders import LOCK
from exo_celery.models.manifest import FileEntry, Manifest, read_manifest
from exo_celery.models.progress import Progress
from exo_celery.models.sources import FolderSource, Stream, choose
from exo_celery.models.stop import Stop

MODEL = "org/tiny"
WEIGHTS = "model.safetensors"


class Faulty(FolderSource):
    """A folder source that counts what it sends, and does to the stream what a test wants."""

    def __init__(self, directory: Path, fault: Callable[[str, int, Iterator[bytes]], Stream]) -> None:
        super().__init__(directory)
        self.fault = fault
        self.sent: dict[str, int] = {}

    @contextmanager
    def open(self, manifest: Manifest, name: str, offset: int, stop: Stop) -> Iterator[Stream]:
        with super().open(manifest, name, offset, stop) as stream:
            broken = self.fault(name, offset, stream.chunks)
            yield Stream(broken.start, self.counted(name, broken.chunks))

    def counted(self, name: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.sent[name] = self.sent.get(name, 0) + len(chunk)
            yield chunk


def sound(name: str, offset: int, chunks: Iterator[bytes]) -> Stream:
    return Stream(offset, chunks)


class Lab(NamedTuple):
    """A source folder with one model, a target, and what was heard of progress."""

    root: Path
    heard: list[Progress]
    stop: Stop

    @property
    def original(self) -> Path:
        return self.root / "source" / "org--tiny"

    @property
    def copy(self) -> Path:
        return self.root / "target" / "org--tiny"

    def source(self, fault: Callable[[str, int, Iterator[bytes]], Stream] = sound) -> Faulty:
        return Faulty(self.root / "source", fault)

    def fetch(self, source: FolderSource) -> Path:
        return fetch(MODEL, [self.root / "target"], source, self.heard.append, self.stop)

    def same(self) -> bool:
        names = {path.name for path in self.original.iterdir()}
        assert {path.name for path in self.copy.iterdir()} == names | {".manifest.json", LOCK}
        return all((self.original / n).read_bytes() == (self.copy / n).read_bytes() for n in names)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr(receive, "WAITS_SECONDS", (0.001,) * 7)
    lab = Lab(tmp_path, [], Stop())
    write_model(lab.original, shards=1)
    return lab


def test_a_model_is_brought_whole_and_progress_rises_to_the_end(lab: Lab) -> None:
    assert lab.fetch(lab.source()) == lab.copy
    assert lab.same()
    assert scan(lab.copy).complete
    sums = [p.downloaded_bytes for p in lab.heard]
    assert sums == sorted(sums)
    last = lab.heard[-1]
    assert last.downloaded_bytes == last.total_bytes == sum(p.stat().st_size for p in lab.original.iterdir())
    assert last.completed_files == last.total_files == 4


def test_a_second_fetch_sends_nothing(lab: Lab) -> None:
    lab.fetch(lab.source())
    again = lab.source()
    lab.fetch(again)
    assert again.sent == {}


@pytest.mark.parametrize("truncated_final", [False, True])
def test_bytes_on_disk_are_continued(lab: Lab, truncated_final: bool) -> None:
    shutil.copytree(lab.original, lab.copy)
    size = (lab.copy / WEIGHTS).stat().st_size
    half = cut(lab.copy / WEIGHTS, size // 2)
    if not truncated_final:
        half.rename(lab.copy / f"{WEIGHTS}.partial")
    source = lab.source()
    lab.fetch(source)
    assert lab.same()
    assert source.sent == {WEIGHTS: size - size // 2}
    assert lab.heard[0].downloaded_bytes >= size // 2, "told before the first new byte"


def test_a_full_partial_is_verified_and_needs_no_byte(lab: Lab) -> None:
    shutil.copytree(lab.original, lab.copy)
    (lab.copy / WEIGHTS).rename(lab.copy / f"{WEIGHTS}.partial")
    source = lab.source()
    lab.fetch(source)
    assert lab.same()
    assert source.sent == {}


@pytest.mark.parametrize("damage", [lambda b: b[:5000] + b"x" + b[5001:], lambda b: b * 2])
def test_a_wrong_or_too_long_partial_is_dropped_once(lab: Lab, damage: Callable[[bytes], bytes]) -> None:
    shutil.copytree(lab.original, lab.copy)
    right = (lab.copy / WEIGHTS).read_bytes()
    (lab.copy / WEIGHTS).unlink()
    (lab.copy / f"{WEIGHTS}.partial").write_bytes(damage(right))
    source = lab.source()
    lab.fetch(source)
    assert lab.same()
    assert source.sent == {WEIGHTS: len(right)}


def test_a_file_of_unknown_origin_is_verified_before_it_is_trusted(lab: Lab) -> None:
    shutil.copytree(lab.original, lab.copy)
    wrong = bytearray((lab.copy / WEIGHTS).read_bytes())
    wrong[-1] ^= 1
    (lab.copy / WEIGHTS).write_bytes(wrong)
    lab.fetch(lab.source())
    assert lab.same()


def test_drops_are_continued_where_they_happened(lab: Lab) -> None:
    def drop(name: str, offset: int, chunks: Iterator[bytes]) -> Stream:
        return Stream(offset, iter([next(chunks)[:10_000]]))

    source = lab.source(drop)
    lab.fetch(source)
    assert lab.same()
    assert source.sent[WEIGHTS] == (lab.original / WEIGHTS).stat().st_size


def test_a_source_that_cannot_begin_in_the_middle_is_taken_from_0(lab: Lab) -> None:
    shutil.copytree(lab.original, lab.copy)
    cut(lab.copy / WEIGHTS, 9000)
    lab.fetch(lab.source(lambda name, offset, chunks: Stream(0, iter([(lab.original / name).read_bytes()]))))
    assert lab.same()
    sums = [p.downloaded_bytes for p in lab.heard]
    assert sums == sorted(sums), "what was shown is not taken back"


def test_wrong_bytes_twice_fail_and_leave_no_file(lab: Lab) -> None:
    source = lab.source(lambda name, offset, chunks: Stream(offset, (bytes(len(c)) for c in chunks)))
    with pytest.raises(DownloadError, match="twice"):
        lab.fetch(source)
    assert not (lab.copy / WEIGHTS).exists()


def test_more_bytes_than_listed_fail(lab: Lab) -> None:
    def more(name: str, offset: int, chunks: Iterator[bytes]) -> Stream:
        return Stream(offset, iter([*chunks, b"and more"]))

    with pytest.raises(DownloadError, match="more than the listed"):
        lab.fetch(lab.source(more))


def test_a_source_that_sends_nothing_is_given_up_with_the_bytes_kept(lab: Lab) -> None:
    shutil.copytree(lab.original, lab.copy)
    cut(lab.copy / WEIGHTS, 9000)
    with pytest.raises(DownloadInterruptedError, match="9000 of"):
        lab.fetch(lab.source(lambda name, offset, chunks: Stream(offset, iter([]))))
    assert (lab.copy / f"{WEIGHTS}.partial").stat().st_size == 9000


def test_cancel_ends_at_once_and_keeps_the_bytes(lab: Lab) -> None:
    def endless(name: str, offset: int, chunks: Iterator[bytes]) -> Stream:
        if name != WEIGHTS:
            return Stream(offset, chunks)
        return Stream(offset, slow(next(chunks)))

    def slow(data: bytes) -> Iterator[bytes]:
        yield data[:9000]
        threading.Timer(0.05, lab.stop.set).start()
        assert lab.stop.wait(5)
        yield data[9000:9100]

    with pytest.raises(DownloadCancelledError):
        lab.fetch(lab.source(endless))
    assert (lab.copy / f"{WEIGHTS}.partial").stat().st_size == 9100
    assert not scan(lab.copy).complete


def test_a_wait_for_the_next_try_is_cancelled_at_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive, "WAITS_SECONDS", (60.0,))
    threading.Timer(0.1, lab.stop.set).start()
    with pytest.raises(DownloadCancelledError):
        lab.fetch(lab.source(lambda name, offset, chunks: Stream(offset, iter([]))))


def test_one_models_second_download_is_refused(lab: Lab) -> None:
    lab.copy.mkdir(parents=True)
    with FileLock(lab.copy / LOCK), pytest.raises(ConflictError, match="already being downloaded"):
        lab.fetch(lab.source())


def test_another_revision_replaces_what_is_there(lab: Lab) -> None:
    lab.fetch(lab.source())
    shutil.rmtree(lab.original)
    write_model(lab.original, shards=2, seed=9)
    lab.fetch(lab.source())
    assert lab.same(), "no weight file of the old revision is left to be loaded"


def test_no_room_is_refused_with_numbers_before_a_byte(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "SPARE_BYTES", 1 << 60)
    source = lab.source()
    with pytest.raises(DownloadError, match=r"no room .* bytes are still to come, free are .*target: \d+"):
        lab.fetch(source)
    assert source.sent == {}


def test_only_the_missing_bytes_need_room(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(lab.original, lab.copy)
    monkeypatch.setattr(fetching, "SPARE_BYTES", 1 << 60)
    lab.fetch(lab.source())
    assert lab.same()


def test_a_partial_decides_which_directory_is_used(lab: Lab) -> None:
    shutil.copytree(lab.original, lab.root / "second" / "org--tiny")
    cut(lab.root / "second" / "org--tiny" / WEIGHTS, 9000)
    first, second = lab.root / "first", lab.root / "second"
    assert fetch(MODEL, [first, second], lab.source(), lab.heard.append, lab.stop) == second / "org--tiny"


def test_links_are_not_written_through(lab: Lab) -> None:
    outside = lab.root / "outside"
    outside.mkdir()
    lab.copy.parent.mkdir()
    lab.copy.symlink_to(outside)
    with pytest.raises(DownloadError, match="is a link"):
        lab.fetch(lab.source())
    lab.copy.unlink()
    lab.copy.mkdir()
    (lab.copy / f"{WEIGHTS}.partial").symlink_to(outside / "victim")
    with pytest.raises(DownloadError, match="cannot be brought here"):
        lab.fetch(lab.source())
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/x", "a/../../x", "a\\b", "c:x", "", "sub/file.json", ".manifest.json"]
)
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    files = {n: FileEntry(size=1) for n in ("config.json", "tokenizer.json", WEIGHTS, name)}
    with pytest.raises(DownloadError, match="refused"):
        checked(Manifest(model=MODEL, files=files))


@pytest.mark.parametrize("lacking", ["config.json", "tokenizer.json", WEIGHTS])
def test_a_listing_no_model_can_be_loaded_from_is_refused(lacking: str) -> None:
    files = {n: FileEntry(size=1) for n in ("config.json", "tokenizer.json", WEIGHTS) if n != lacking}
    with pytest.raises(DownloadError, match="cannot load it"):
        checked(Manifest(model=MODEL, files=files))


def test_a_folder_source_offers_only_whole_models(lab: Lab) -> None:
    source = FolderSource(lab.root / "source")
    assert choose([source], MODEL) is source
    cut(lab.original / WEIGHTS, 9000)
    with pytest.raises(DownloadError, match="Put its complete folder org--tiny"):
        choose([source], MODEL)
    with pytest.raises(DownloadError, match="truncated"):
        source.manifest(MODEL, "", lab.stop)


def test_the_manifest_holds_the_digests_for_the_next(lab: Lab) -> None:
    write_model(lab.original, shards=2)
    (lab.original / WEIGHTS).unlink()
    lab.fetch(lab.source())
    manifest = read_manifest(lab.copy)
    assert manifest is not None
    name = shard_name(1, 2)
    assert manifest.files[name].sha256 == hashlib.sha256((lab.original / name).read_bytes()).hexdigest()
