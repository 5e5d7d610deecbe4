"""The survey of all model folders: the best copy of each, one bad folder hides nothing else."""

import time
from pathlib import Path

import pytest
from lookalike.checkpoints import cut, write_model

from exo_celery.models import survey as surveys
from exo_celery.models.survey import ScanCache, survey
from exo_celery.records.download import DownloadStatus
from exo_celery.settings import Settings, load


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        data_dir=tmp_path / "data",
        models_dirs=(tmp_path / "a", tmp_path / "b"),
        models_read_only_dirs=(tmp_path / "ro",),
        hf_home=tmp_path / "hf",
    )


def hub_snapshot(
    settings: Settings, name: str = "models--org--cached", commit: str = "c0ffee", ref: bool = True
) -> Path:
    repo = settings.hf_home / "hub" / name
    if ref:
        (repo / "refs").mkdir(parents=True, exist_ok=True)
        (repo / "refs" / "main").write_text(commit)
    return write_model(repo / "snapshots" / commit)


def test_nothing_anywhere_is_no_download(settings: Settings) -> None:
    assert survey(settings, "n1") == ()


def test_every_place_is_searched(settings: Settings, tmp_path: Path) -> None:
    write_model(tmp_path / "a" / "org--one")
    write_model(tmp_path / "b" / "org--two")
    write_model(tmp_path / "ro" / "org--three")
    hub_snapshot(settings)
    (tmp_path / "a" / "not-a-model").mkdir()
    (tmp_path / "a" / "org--file").write_text("")
    found = {d.model: d for d in survey(settings, "n1")}
    assert sorted(found) == ["org/cached", "org/one", "org/three", "org/two"]
    assert all(d.status is DownloadStatus.COMPLETED and d.node == "n1" and d.fraction == 1 for d in found.values())
    assert {m: (d.read_only, d.source) for m, d in found.items()} == {
        "org/one": (False, "disk"),
        "org/two": (False, "disk"),
        "org/three": (True, "disk"),
        "org/cached": (True, "hf-cache"),
    }
    assert found["org/cached"].revision == "c0ffee"


def test_the_whole_copy_wins_over_a_partial_one(settings: Settings, tmp_path: Path) -> None:
    cut(write_model(tmp_path / "a" / "org--one") / "model.safetensors", 5000)
    write_model(tmp_path / "ro" / "org--one")
    (found,) = survey(settings, "n1")
    assert found.status is DownloadStatus.COMPLETED
    assert found.directory == str(tmp_path / "ro" / "org--one")


def test_a_partial_model_is_pending_with_its_bytes(settings: Settings, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "a" / "org--one")
    cut(folder / "model.safetensors", (folder / "model.safetensors").stat().st_size // 2)
    (found,) = survey(settings, "n1")
    assert found.status is DownloadStatus.PENDING
    assert 0.4 < found.fraction < 0.6
    assert "truncated" in found.error


def test_partial_bytes_in_a_read_only_folder_count_nothing(settings: Settings, tmp_path: Path) -> None:
    cut(write_model(tmp_path / "ro" / "org--one") / "model.safetensors", 5000)
    (found,) = survey(settings, "n1")
    assert (found.status, found.downloaded_bytes, found.read_only) == (DownloadStatus.PENDING, 0, True)


def test_an_unfinished_snapshot_of_the_hubs_cache_is_not_listed(settings: Settings) -> None:
    cut(hub_snapshot(settings) / "model.safetensors", 5000)
    assert survey(settings, "n1") == ()


def test_a_snapshot_without_a_ref_is_found(settings: Settings) -> None:
    hub_snapshot(settings, commit="0123", ref=False)
    (found,) = survey(settings, "n1")
    assert found.revision == "0123"


def test_the_hubs_cache_may_lie_elsewhere(settings: Settings, tmp_path: Path) -> None:
    hub_snapshot(settings)
    (settings.hf_home / "hub").rename(tmp_path / "elsewhere")
    assert survey(settings, "n1") == ()
    named = load({"HF_HOME": str(settings.hf_home), "HF_HUB_CACHE": str(tmp_path / "elsewhere")})
    (found,) = survey(named.model_copy(update={"models_dirs": settings.models_dirs}), "n1")
    assert (found.status, found.source, found.read_only) == (DownloadStatus.COMPLETED, "hf-cache", True)


def test_one_unreadable_folder_hides_nothing_else(settings: Settings, tmp_path: Path) -> None:
    write_model(tmp_path / "a" / "org--good")
    (tmp_path / "a" / "org--bad" / "config.json").mkdir(parents=True)
    (tmp_path / "a" / "org--loop").symlink_to("org--loop")
    found = {d.model: d for d in survey(settings, "n1")}
    assert found["org/good"].status is DownloadStatus.COMPLETED
    assert found["org/bad"].status is found["org/loop"].status is DownloadStatus.FAILED
    assert "cannot be read" in found["org/bad"].error


def test_a_linked_folder_is_read_only(settings: Settings, tmp_path: Path) -> None:
    write_model(tmp_path / "elsewhere" / "x")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "org--linked").symlink_to(tmp_path / "elsewhere" / "x")
    (found,) = survey(settings, "n1")
    assert (found.status, found.read_only) == (DownloadStatus.COMPLETED, True)


def test_models_being_downloaded_are_left_alone(settings: Settings, tmp_path: Path) -> None:
    write_model(tmp_path / "a" / "org--one")
    assert survey(settings, "n1", skip={"org/one"}) == ()


def test_only_changed_folders_are_scanned_again(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "a" / "org--one")
    write_model(tmp_path / "a" / "org--two")
    scanned: list[str] = []
    real = surveys.scan
    monkeypatch.setattr(surveys, "scan", lambda folder: scanned.append(folder.name) or real(folder))
    cache = ScanCache()
    first = survey(settings, "n1", cache)
    assert survey(settings, "n1", cache) == first
    assert scanned == ["org--one", "org--two"]
    cut(tmp_path / "a" / "org--two" / "model.safetensors", 5000)
    after = {d.model: d.status for d in survey(settings, "n1", cache)}
    assert scanned == ["org--one", "org--two", "org--two"]
    assert after["org/two"] is DownloadStatus.PENDING
    (tmp_path / "a" / "org--one").rename(tmp_path / "gone")
    assert [d.model for d in survey(settings, "n1", cache)] == ["org/two"]
    assert len(cache.seen) == 1


def test_a_thousand_unchanged_folders_are_cheap(settings: Settings, tmp_path: Path) -> None:
    for n in range(200):
        write_model(tmp_path / "a" / f"org--m{n}", layers=1, hidden=8, vocab=8)
    cache = ScanCache()
    assert len(survey(settings, "n1", cache)) == 200
    start = time.process_time()
    survey(settings, "n1", cache)
    assert time.process_time() - start < 0.4, "2 s for 1,000 folders"
