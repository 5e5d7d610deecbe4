"""Removing a model: all of it, nothing else, never through a link."""

from pathlib import Path

import pytest
from filelock import FileLock
from lookalike.checkpoints import write_model

from exo_celery.errors import ConflictError
from exo_celery.models.folders import LOCK
from exo_celery.models.remove import remove


def test_every_copy_goes_and_nothing_else(tmp_path: Path) -> None:
    for place in ("a", "b"):
        write_model(tmp_path / place / "org--tiny")
    other = write_model(tmp_path / "a" / "org--other")
    remove("org/tiny", [tmp_path / "a", tmp_path / "b", tmp_path / "missing"])
    assert list((tmp_path / "a").iterdir()) == [other]
    assert list((tmp_path / "b").iterdir()) == []


def test_a_deletion_that_broke_off_is_finished_by_the_next(tmp_path: Path) -> None:
    write_model(tmp_path / ".deleted-0123")
    remove("org/tiny", [tmp_path])
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_left_alone(tmp_path: Path) -> None:
    target = write_model(tmp_path / "elsewhere")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "org--tiny").symlink_to(target)
    with pytest.raises(ConflictError, match="is a link"):
        remove("org/tiny", [tmp_path / "a"])
    assert (target / "config.json").exists()


def test_a_model_that_another_process_downloads_stays(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "org--tiny")
    with FileLock(folder / LOCK), pytest.raises(ConflictError, match="already being downloaded"):
        remove("org/tiny", [tmp_path])
    assert (folder / "config.json").exists()
