"""What users of such systems complain about, on a whole node: each complaint is a test that fails without the cure."""

import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lookalike.hub import ignore_range, status
from lookalike.lab import MODEL, WEIGHTS, Lab, opened

from exo_celery import cluster as asked
from exo_celery.node import attempts
from exo_celery.records.download import Download, DownloadStatus
from exo_celery.records.model import AddModel
from exo_celery.store import client, events
from exo_celery.store import downloads as store


@pytest.fixture
def lab(tmp_path: Path, redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr("exo_celery.models.receive.WAITS_SECONDS", (0.01,) * 7)
    with opened(tmp_path, redis_url, namespace) as made:
        yield made


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Download]:
    """Every word that the node writes of a download."""
    words: list[Download] = []
    for name in ("write", "progress"):
        real = getattr(store, name)

        def noted(redis: object, ns: str, download: Download, real: object = real) -> None:
            words.append(download)
            real(redis, ns, download)  # type: ignore[operator]

        monkeypatch.setattr(store, name, noted)
    return words


@pytest.mark.parametrize(("code", "error", "advice"), [(401, "RepoNotFound", "HF_TOKEN"), (403, "GatedRepo", "terms")])
def test_a_refusal_is_told_at_once_and_not_asked_again(lab: Lab, code: int, error: str, advice: str) -> None:
    asked.add_model(lab.cluster, AddModel(model=MODEL))
    before = len(lab.hub.seen)
    lab.hub.when("/", status(code, error), times=99)
    lab.want_again()
    lab.until(lambda: lab.hash().status is DownloadStatus.FAILED, 3)
    assert advice in lab.hash().error
    lab.node.report()
    lab.node.work_off()
    time.sleep(2.5)
    assert lab.hash().status is DownloadStatus.FAILED
    assert len(lab.hub.seen) == before + 1


def test_a_burst_of_429_at_the_start_is_waited_out(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "RETRY_SECONDS", (0.1,))
    asked.add_model(lab.cluster, AddModel(model=MODEL))
    lab.hub.when("/api/models/", status(429, Retry_After="2"), times=2)
    began = time.monotonic()
    lab.want_again()
    lab.until(lambda: lab.hash().status is DownloadStatus.COMPLETED, 20)
    assert time.monotonic() - began >= 4, "each time as long as was asked for"
    assert len(lab.hub.asked("/api/models/")) == 1 + 3


def test_failures_in_a_row_flood_nobody(lab: Lab, told: list[Download], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "RETRY_SECONDS", (2.0, 4.0))
    asked.add_model(lab.cluster, AddModel(model=MODEL))
    lab.hub.when("/", status(503), times=999)
    began = client.now(lab.cluster.redis)
    lab.want_again()
    time.sleep(5)
    seconds = client.now(lab.cluster.redis) - began
    assert 2 <= len(told) <= seconds + 1
    said = [one for one in events.latest(lab.cluster.redis, lab.cluster.ns) if one["kind"] == "download"]
    assert 1 <= len(said) <= seconds / 2 + 1
    assert "Goes on by itself" in lab.hash().error


def test_progress_never_goes_back(lab: Lab, told: list[Download]) -> None:
    lab.hub.rate = 60_000
    lab.want()
    lab.until(lambda: lab.hash().fraction > 0.2)
    lab.node.stop()
    lab.boot()
    lab.hub.when(f"/{WEIGHTS}", ignore_range())
    told += lab.node.report()
    lab.node.work_off()
    lab.until(lambda: lab.hash().status is DownloadStatus.COMPLETED, 20)
    sums = [one.downloaded_bytes for one in told if one.downloaded_bytes or one.total_bytes]
    assert len(set(sums)) >= 4, "it was looked at in the middle"
    assert sums == sorted(sums)
    assert all(one.downloaded_bytes <= one.total_bytes for one in told if one.total_bytes)


def test_a_model_that_was_staged_is_neither_fetched_nor_deleted(lab: Lab) -> None:
    staged = lab.root / "staged"
    shutil.copytree(lab.root / "upstream", staged / "org--tiny")
    asked.add_model(lab.cluster, AddModel(model=MODEL))
    before = len(lab.hub.seen)
    lab.boot(models_read_only_dirs=(staged,))
    lab.node.report()
    assert (lab.hash().status, lab.hash().read_only) == (DownloadStatus.COMPLETED, True)
    lab.want_again()
    lab.until(lambda: not lab.wishes())
    assert len(lab.hub.seen) == before
    assert not lab.folder.exists()
    code, body = lab.delete()
    assert code == 409
    assert "read-only" in body["error"]["message"]
    assert (staged / "org--tiny" / WEIGHTS).exists()


def test_a_copy_here_and_a_copy_there_are_one_download(lab: Lab) -> None:
    shutil.copytree(lab.root / "upstream", lab.root / "staged" / "org--tiny")
    shutil.copytree(lab.root / "upstream", lab.root / "hf" / "hub" / "models--org--tiny" / "snapshots" / "c0ffee")
    shutil.copytree(lab.root / "upstream", lab.folder)
    (lab.folder / WEIGHTS).unlink()
    lab.boot(models_read_only_dirs=(lab.root / "staged",))
    lab.node.report()
    (only,) = store.every(lab.cluster.redis, lab.cluster.ns, ["n1"])
    assert only.status is DownloadStatus.COMPLETED


def test_delete_then_download_downloads_again(lab: Lab) -> None:
    lab.want()
    lab.until(lambda: lab.hash().status is DownloadStatus.COMPLETED and not lab.wishes())
    assert lab.delete()[0] == 202
    lab.node.work_off()
    assert (lab.hash().status, lab.hash().downloaded_bytes) == (DownloadStatus.PENDING, 0)
    lab.want_again()
    lab.until(lambda: lab.hash().status is DownloadStatus.COMPLETED)
    assert len(lab.hub.asked(f"/{WEIGHTS}")) == 2


def test_an_error_of_ours_does_not_end_the_telling(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.hub.rate = 30_000
    real, raised = lab.node.tell, []

    def once() -> None:
        if not raised:
            raised.append(True)
            raise ValueError("a defect")
        real()

    monkeypatch.setattr(lab.node, "tell", once)
    lab.want()
    lab.until(lambda: raised and 0.1 < lab.hash().fraction < 0.9)


def test_offline_no_connection_is_opened_at_all(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*where: object, **_: object) -> socket.socket:
        raise AssertionError(f"connected to {where}")

    shutil.copytree(lab.root / "upstream", lab.root / "mounted" / "org--tiny")
    lab.boot(offline=True, source_dirs=(lab.root / "mounted",))
    offline = lab.node.settings
    monkeypatch.setattr(socket, "create_connection", refused)
    known = asked.add_model(asked.open_cluster(offline), AddModel(model=MODEL))
    assert known.n_layers == 4
    lab.node.report()
    lab.want_again()
    lab.until(lambda: lab.hash().status is DownloadStatus.COMPLETED)
    assert lab.hub.seen == []
