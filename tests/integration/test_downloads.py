"""The downloads of a node against a real Redis: what the disk says, what is wanted, what becomes of it."""

import hashlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from lookalike.checkpoints import cut, write_model
from lookalike.hub import Hub
from redis import Redis

from exo_celery.models import verify as verifying
from exo_celery.models.manifest import Manifest
from exo_celery.models.sources import FolderSource, Stream
from exo_celery.models.stop import Stop
from exo_celery.node import attempts
from exo_celery.node.downloads import Downloads
from exo_celery.records.download import Download, DownloadStatus, Wish
from exo_celery.records.model import ModelCard
from exo_celery.settings import Settings
from exo_celery.store import cards, client, events, keys
from exo_celery.store import downloads as store

MODEL = "org/tiny"
WEIGHTS = "model.safetensors"


class Slow(FolderSource):
    """A folder source that stands still in the middle of the weights until it is let go or stopped."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.reached = threading.Event()
        self.go = threading.Event()

    @contextmanager
    def open(self, manifest: Manifest, name: str, offset: int, stop: Stop) -> Iterator[Stream]:
        with super().open(manifest, name, offset, stop) as stream:
            yield stream if name != WEIGHTS else Stream(offset, self.halting(b"".join(stream.chunks), stop))

    def halting(self, data: bytes, stop: Stop) -> Iterator[bytes]:
        yield data[: len(data) // 2]
        self.reached.set()
        with stop.calling(self.go.set):
            assert self.go.wait(10)
        if not stop.is_set():
            yield data[len(data) // 2 :]


class Node:
    """A node's downloads in a folder of its own, and what is to be asked of Redis about them."""

    def __init__(self, root: Path, redis: Redis, ns: str, name: str = "n1") -> None:
        self.root, self.redis, self.ns, self.name = root, redis, ns, name
        self.changes: list[str] = []
        self.settings = Settings(
            namespace=ns, models_dirs=(root / name,), source_dirs=(root / "source",), hf_home=root / "hf"
        )
        self.boot()

    def boot(self) -> None:
        self.downloads = Downloads(self.settings, self.redis, self.name, self.changes.append)

    @property
    def folder(self) -> Path:
        return self.root / self.name / "org--tiny"

    def wish(self, action: str = "download", by: str = "user") -> None:
        wish = Wish(action=action, by=by, since=client.now(self.redis))
        store.set_wish(self.redis, self.ns, self.name, MODEL, wish)
        self.downloads.work_off()

    def hash(self) -> Download | None:
        return store.get(self.redis, self.ns, self.name, MODEL)

    def status(self) -> str:
        found = self.hash()
        return found.status if found else "absent"

    def wishes(self) -> dict[str, Wish]:
        return store.wishes(self.redis, self.ns, self.name)

    def until(self, what: Callable[[], object], seconds: float = 10) -> None:
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, f"not within {seconds} s; the hash is {self.hash()}"
            time.sleep(0.02)

    def slow(self) -> Slow:
        source = Slow(self.root / "source")
        self.downloads.sources = [source]
        return source


@pytest.fixture
def node(tmp_path: Path, redis: Redis, namespace: str) -> Iterator[Node]:
    write_model(tmp_path / "source" / "org--tiny")
    made = Node(tmp_path, redis, namespace)
    yield made
    made.downloads.stop()


@pytest.fixture
def known(node: Node) -> None:
    cards.save(node.redis, node.ns, ModelCard(id=MODEL, storage_bytes=5, n_layers=1, hidden_size=1))


def half(folder: Path, source: Path) -> None:
    shutil.copytree(source, folder)
    cut(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size // 2)


# The report


def test_a_whole_folder_is_completed_and_readable_in_redis_cli(node: Node) -> None:
    shutil.copytree(node.root / "source" / "org--tiny", node.folder)
    (found,) = node.downloads.report()
    fields = node.redis.hgetall(f"{node.ns}:download:n1:org/tiny")
    assert fields["status"] == "completed"
    assert fields["downloaded_bytes"] == fields["total_bytes"] == str(found.total_bytes)
    assert fields["directory"] == str(node.folder)
    assert float(fields["updated_at"]) > 0
    assert set(fields) == {
        *("status", "downloaded_bytes", "total_bytes", "completed_files", "total_files", "speed_bps", "eta_seconds"),
        *("error", "directory", "read_only", "source", "revision", "updated_at"),
    }
    assert node.redis.smembers(f"{node.ns}:downloads:n1") == {MODEL}
    assert node.downloads.current() == [found]


def test_half_a_model_is_pending_with_its_bytes_at_the_first_report(node: Node) -> None:
    half(node.folder, node.root / "source" / "org--tiny")
    (found,) = node.downloads.report()
    assert found.status is DownloadStatus.PENDING
    assert 0.4 < found.fraction < 0.7


@pytest.mark.parametrize("in_catalog", [True, False])
def test_a_model_that_vanished_is_pending_with_nothing_while_the_catalog_knows_it(
    node: Node, in_catalog: bool, request: pytest.FixtureRequest
) -> None:
    if in_catalog:
        request.getfixturevalue("known")
    shutil.copytree(node.root / "source" / "org--tiny", node.folder)
    node.downloads.report()
    shutil.rmtree(node.folder)
    reported = node.downloads.report()
    if in_catalog:
        assert [(d.status, d.downloaded_bytes) for d in reported] == [(DownloadStatus.PENDING, 0)]
        assert node.hash() == reported[0]
    else:
        assert reported == []
        assert node.status() == "absent"
        assert store.every(node.redis, node.ns, ["n1"]) == []


def test_a_report_takes_a_constant_number_of_round_trips(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(30):
        write_model(node.root / "n1" / f"org--m{n}", layers=1, hidden=8)
    sent: list[int] = []
    connection = node.redis.connection_pool.get_connection()
    real = type(connection).send_packed_command
    monkeypatch.setattr(
        type(connection), "send_packed_command", lambda self, *a, **k: sent.append(1) or real(self, *a, **k)
    )
    node.redis.connection_pool.release(connection)
    assert len(node.downloads.report()) == 30
    assert len(sent) <= 4


def test_the_reason_of_a_failed_attempt_outlives_scans_and_restarts_until_the_files_are_whole(node: Node) -> None:
    half(node.folder, node.root / "source" / "org--tiny")
    node.downloads.sources = []
    node.wish()
    node.until(lambda: node.status() == "failed")
    assert "Put its complete folder" in node.hash().error
    node.boot()
    (still,) = node.downloads.report()
    assert still.status is DownloadStatus.FAILED
    assert "Put its complete folder" in still.error
    shutil.copy(node.root / "source" / "org--tiny" / WEIGHTS, node.folder)
    (cured,) = node.downloads.report()
    assert (cured.status, cured.error) == (DownloadStatus.COMPLETED, "")


def test_the_lists_read_many_nodes_at_once(node: Node) -> None:
    for name in ("n2", "n3"):
        store.write(node.redis, node.ns, Download(node=name, model=MODEL, downloaded_bytes=1, total_bytes=2))
    listed = store.every(node.redis, node.ns, ["n1", "n2", "n3"])
    assert [(d.node, d.fraction) for d in listed] == [("n2", 0.5), ("n3", 0.5)]
    assert set(store.of_model(node.redis, node.ns, MODEL, ["n1", "n2"])) == {"n2"}


# Wishes


def test_a_wish_is_worked_off_to_completed(node: Node) -> None:
    node.wish()
    node.until(lambda: node.status() == "completed")
    node.until(lambda: node.wishes() == {})
    node.until(lambda: node.changes == [MODEL])
    assert events.latest(node.redis, node.ns)[0]["text"] == "download of org/tiny on n1 is completed"
    assert node.hash().directory == str(node.folder)


def test_a_wish_for_what_is_here_is_fulfilled_at_once(node: Node) -> None:
    shutil.copytree(node.root / "source" / "org--tiny", node.folder)
    shutil.rmtree(node.root / "source")
    node.wish()
    assert node.status() == "completed"
    assert node.wishes() == {}
    assert node.changes == [MODEL]


def test_a_running_download_is_ongoing_with_progress_and_no_scan_touches_it(node: Node) -> None:
    source = node.slow()
    node.wish()
    assert source.reached.wait(5)
    node.until(lambda: node.status() == "ongoing" and 0.3 < node.hash().fraction < 0.9)
    node.downloads.work_off()
    (reported,) = node.downloads.report()
    assert reported.status is DownloadStatus.ONGOING
    assert reported.source == source.label
    files = node.downloads.transfers[MODEL].files
    assert 0 < files[WEIGHTS] < (node.root / "source" / "org--tiny" / WEIGHTS).stat().st_size
    assert sum(files.values()) == reported.downloaded_bytes
    source.go.set()
    node.until(lambda: node.status() == "completed")


def test_progress_is_written_at_most_once_a_second(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[float] = []
    monkeypatch.setattr(store, "progress", lambda *_: writes.append(time.monotonic()))
    source = node.slow()
    began = time.monotonic()
    node.wish()
    assert source.reached.wait(5)
    time.sleep(2.2)
    source.go.set()
    node.until(lambda: node.status() == "completed")
    assert 1 <= len(writes) <= time.monotonic() - began + 1
    assert all(later - earlier > 0.9 for earlier, later in pairwise(writes))


def test_cancel_keeps_the_bytes_and_a_new_wish_goes_on_from_there(node: Node) -> None:
    source = node.slow()
    node.wish()
    assert source.reached.wait(5)
    assert store.drop_wish(node.redis, node.ns, "n1", MODEL)
    node.downloads.work_off()
    node.until(lambda: node.status() == "pending")
    found = node.hash()
    assert 0.3 < found.fraction < 0.9
    assert (node.folder / f"{WEIGHTS}.partial").exists()
    source.go.set()
    node.wish()
    node.until(lambda: node.status() == "completed")


def test_a_cancel_without_a_message_is_seen_by_itself(node: Node) -> None:
    source = node.slow()
    node.wish()
    assert source.reached.wait(5)
    store.drop_wish(node.redis, node.ns, "n1", MODEL)
    node.until(lambda: node.status() == "pending", 5)


def test_stop_ends_at_once_and_the_next_boot_goes_on(node: Node) -> None:
    source = node.slow()
    node.wish()
    assert source.reached.wait(5)
    began = time.monotonic()
    node.downloads.stop()
    assert time.monotonic() - began < 4
    assert node.status() == "pending"
    assert list(node.wishes()) == [MODEL]
    node.boot()
    (found,) = node.downloads.report()
    assert 0.3 < found.fraction < 0.9
    node.downloads.work_off()
    node.until(lambda: node.status() == "completed")


def test_delete_while_it_runs_stops_and_removes_everything_and_downloads_again(node: Node, known: None) -> None:
    source = node.slow()
    node.wish()
    assert source.reached.wait(5)
    node.wish("delete")
    node.until(lambda: not node.folder.exists())
    node.until(lambda: node.wishes() == {})
    assert (node.status(), node.hash().downloaded_bytes) == ("pending", 0)
    assert node.hash().total_bytes > 0, "what is to come is still known"
    assert [path.name for path in node.folder.parent.iterdir()] == []
    source.go.set()
    node.wish()
    node.until(lambda: node.status() == "completed")


def test_delete_of_an_unknown_model_removes_its_hash(node: Node) -> None:
    node.wish()
    node.until(lambda: node.status() == "completed" and not node.wishes())
    node.wish("delete")
    assert node.status() == "absent"


def test_a_read_only_model_is_never_deleted(tmp_path: Path, node: Node, redis: Redis, namespace: str) -> None:
    settings = node.settings.model_copy(update={"models_read_only_dirs": (tmp_path / "source",)})
    node.downloads = Downloads(settings, redis, "n1", node.changes.append)
    node.wish("delete")
    assert (tmp_path / "source" / "org--tiny" / WEIGHTS).exists()
    assert (node.status(), node.hash().read_only) == ("completed", True)


def test_what_may_pass_is_tried_again_and_a_users_retry_works_at_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "RETRY_SECONDS", (60.0,))
    source = node.slow()
    node.downloads.sources = [Absent(node.root / "source")]
    monkeypatch.setattr("exo_celery.models.receive.WAITS_SECONDS", (0.01,))
    node.wish()
    node.until(lambda: node.status() == "pending" and "Goes on by itself" in node.hash().error)
    assert list(node.wishes()) == [MODEL], "the wish stays"
    (again,) = [d for d in node.downloads.report() if d.model == MODEL]
    assert "Goes on by itself" in again.error, "a scan does not lose the reason"
    node.downloads.sources = [source]
    source.go.set()
    node.downloads.work_off()
    assert node.status() == "pending", "not yet due"
    node.wish()
    node.until(lambda: node.status() == "completed", 5)
    assert node.hash().error == ""


class Absent(FolderSource):
    """A source that lists a model and then does not answer."""

    @contextmanager
    def open(self, manifest: Manifest, name: str, offset: int, stop: Stop) -> Iterator[Stream]:
        yield Stream(offset, iter(()))


def test_it_is_tried_again_by_itself(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "RETRY_SECONDS", (0.5,))
    monkeypatch.setattr("exo_celery.models.receive.WAITS_SECONDS", (0.01,))
    source = node.slow()
    node.downloads.sources = [Absent(node.root / "source")]
    node.wish()
    node.until(lambda: node.status() == "pending" and node.hash().error != "")
    source.go.set()
    node.downloads.sources = [source]
    node.until(lambda: node.status() == "completed", 5)


def test_two_at_once_the_others_follow(node: Node) -> None:
    for name in ("b", "c"):
        write_model(node.root / "source" / f"org--{name}")
    source = node.slow()
    for model in (MODEL, "org/b", "org/c"):
        store.set_wish(node.redis, node.ns, "n1", model, Wish(action="download", since=client.now(node.redis)))
    node.downloads.work_off()
    assert source.reached.wait(5)
    assert len(node.downloads.transfers) == 2
    source.go.set()
    node.until(lambda: {d.status for d in store.every(node.redis, node.ns, ["n1"])} == {DownloadStatus.COMPLETED})
    node.until(lambda: len(store.every(node.redis, node.ns, ["n1"])) == 3)


def test_what_cannot_be_read_as_a_wish_hinders_nobody(node: Node) -> None:
    for model, text in (("../../etc", '{"action": "delete"}'), ("org/x", "rubbish"), ("org/y", '{"action": "burn"}')):
        node.redis.hset(keys.wanted(node.ns, "n1"), model, text)
    node.wish()
    node.until(lambda: node.status() == "completed")
    node.until(lambda: node.wishes() == {})


def test_an_instances_wishes_go_with_it_and_a_users_stay(node: Node) -> None:
    node.redis.sadd(keys.nodes(node.ns), "n1", "n2", "n3")
    for name in ("n1", "n2", "n3"):
        store.set_wish(node.redis, node.ns, name, MODEL, Wish(action="download", by="inst-1"))
    store.set_wish(node.redis, node.ns, "n2", MODEL, Wish(action="download"))
    store.set_wish(node.redis, node.ns, "n2", MODEL, Wish(action="download", by="inst-2"))
    assert store.drop_wishes_by(node.redis, node.ns, "inst-1", keep=["n3"]) == ["n1"]
    assert store.wishes(node.redis, node.ns, "n2")[MODEL].by == "user"
    assert store.wishes(node.redis, node.ns, "n3")[MODEL].by == "inst-1"


def test_a_renewed_wish_is_not_taken_for_the_fulfilled_one(node: Node) -> None:
    old = Wish(action="download", since=1)
    store.set_wish(node.redis, node.ns, "n1", MODEL, old)
    store.set_wish(node.redis, node.ns, "n1", MODEL, Wish(action="delete", since=2))
    assert not store.fulfil(node.redis, node.ns, "n1", MODEL, old)
    assert not store.drop_wish(node.redis, node.ns, "n1", MODEL), "a cancel does not withdraw a delete"
    assert json.loads(node.redis.hget(keys.wanted(node.ns, "n1"), MODEL))["action"] == "delete"


# Verify


def damage(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))


def test_verify_of_a_sound_model_changes_nothing(node: Node) -> None:
    node.wish()
    node.until(lambda: node.status() == "completed" and not node.wishes())
    node.wish("verify")
    assert node.status() == "completed", "also while it is verified"
    node.until(lambda: not node.wishes())
    assert (node.status(), node.hash().error) == ("completed", "")


def test_verify_finds_a_flipped_bit_and_a_download_cures_it_alone(node: Node) -> None:
    node.wish()
    node.until(lambda: node.status() == "completed" and not node.wishes())
    damage(node.folder / WEIGHTS)
    node.wish("verify")
    node.until(lambda: node.status() == "failed")
    assert f"{WEIGHTS} in {node.folder}: other bytes" in node.hash().error
    (still,) = node.downloads.report()
    assert "other bytes" in still.error, "a scan does not lose the reason"
    node.wish()
    node.until(lambda: node.status() == "completed" and not node.wishes())
    assert (node.folder / WEIGHTS).read_bytes() == (node.root / "source" / "org--tiny" / WEIGHTS).read_bytes()


def test_verify_never_removes_anything_from_the_hubs_cache(node: Node) -> None:
    repo = node.root / "hf" / "hub" / "models--org--tiny"
    snapshot = write_model(repo / "snapshots" / "c0ffee")
    (repo / "blobs").mkdir()
    for path in list(snapshot.iterdir()):
        blob = repo / "blobs" / hashlib.sha256(path.read_bytes()).hexdigest()
        path.rename(blob)
        path.symlink_to(blob)
    node.downloads.report()
    assert node.status() == "completed"
    damage(snapshot / WEIGHTS)
    node.wish("verify")
    node.until(lambda: "read-only" in node.hash().error)
    assert (snapshot / WEIGHTS).exists()


def test_verify_tells_of_a_disk_that_cannot_be_read(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.wish()
    node.until(lambda: node.status() == "completed" and not node.wishes())

    def broken(*_: object) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(verifying, "digest", broken)
    node.wish("verify")
    node.until(lambda: "cannot be read: [Errno 5]" in node.hash().error)
    node.until(lambda: node.wishes() == {})


def test_verify_of_what_is_not_whole_is_only_told(node: Node) -> None:
    half(node.folder, node.root / "source" / "org--tiny")
    node.wish("verify")
    assert node.wishes() == {}
    assert (node.status(), "truncated" in node.hash().error) == ("pending", True)


def test_a_revision_that_no_folder_has_is_asked_for_elsewhere(node: Node) -> None:
    with Hub({MODEL: node.root / "source" / "org--tiny"}) as hub:
        settings = node.settings.model_copy(update={"hf_endpoint": hub.url})
        node.downloads = Downloads(settings, node.redis, "n1", node.changes.append)
        revision = hub.listing(MODEL)[0]
        wish = Wish(action="download", revision=revision, since=client.now(node.redis))
        store.set_wish(node.redis, node.ns, "n1", MODEL, wish)
        node.downloads.work_off()
        node.until(lambda: node.status() == "completed")
        assert node.hash().revision == revision
        assert hub.seen
        node.downloads.stop()
