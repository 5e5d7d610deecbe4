"""Which settings each process of a local cluster gets, and what its nodes hold at first."""

import os
import stat
from pathlib import Path

import pytest

from exo_celery.errors import ConflictError
from exo_celery.local.demo_cluster import make_anew
from exo_celery.local.layout import Layout, cluster_secret_file
from exo_celery.local.seed import seed
from exo_celery.settings import load

GB = 10**9


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path, "redis://:secret@127.0.0.1:1/0", 8000, nodes=3, memory_bytes=9 * GB)


def test_each_node_has_a_share_and_a_folder_of_its_own(layout: Layout) -> None:
    assert layout.node_ids == ("node-1", "node-2", "node-3")
    for node in layout.node_ids:
        settings = load(layout.node(node, {}).env)
        assert settings.node_id == node
        assert settings.memory_limit == 3 * GB
        assert settings.models_dirs == (layout.data_dir / node / "models",)
        assert settings.data_dir == layout.data_dir / node
        assert settings.redis_url == layout.redis_url
        assert settings.hf_home == layout.data_dir / node / "huggingface"
    assert "node-2@" in " ".join(layout.node("node-2", {}).argv)


def test_what_the_starter_was_told_of_one_node_is_not_for_all(layout: Layout) -> None:
    told = {
        "EXO_NODE_ID": "mine",
        "EXO_MODELS_READ_ONLY_DIRS": "/elsewhere",
        "EXO_REDIS_URL": "redis://other",
        "CELERY_BROKER_URL": "redis://other",
        "EXO_NAMESPACE": "kept",
        "HF_HOME": "/kept",
    }
    for spec in (layout.node("node-1", told), layout.beat(told), layout.web(told)):
        settings = load(spec.env)
        assert settings.redis_url == layout.redis_url
        assert settings.namespace == "kept"
        assert settings.hf_home == Path("/kept")
        assert not settings.models_read_only_dirs
        assert settings.node_id != "mine"
        assert "CELERY_BROKER_URL" not in spec.env


def test_all_share_a_secret_that_is_made_once(layout: Layout) -> None:
    secrets = {load(spec.env).cluster_secret for spec in (layout.node("node-1", {}), layout.web({}))}
    assert len(secrets) == 1
    file = cluster_secret_file(layout.data_dir)
    assert secrets == {file.read_text()}
    assert len(file.read_text()) == 64
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_secret_that_was_given_is_kept(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / "given").write_text("given")
    for told in ({"EXO_CLUSTER_SECRET": "given"}, {"EXO_CLUSTER_SECRET_FILE": str(tmp_path / "given")}):
        assert load(layout.node("node-1", told).env).cluster_secret == "given"
    assert not (layout.data_dir / "cluster_secret").exists()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "cache" / "org--name"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(os.urandom(3_000_001))
    return folder


def test_first_all_second_half_others_nothing(tmp_path: Path, model: Path) -> None:
    places = [tmp_path / f"node-{i}" / "models" for i in (1, 2, 3)]
    seed(places, model)
    whole = (model / "model.safetensors").read_bytes()
    assert (places[0] / model.name / "model.safetensors").read_bytes() == whole
    assert (places[1] / model.name / "model.safetensors.partial").read_bytes() == whole[: len(whole) // 2]
    assert not (places[1] / model.name / "model.safetensors").exists()
    assert (places[1] / model.name / "config.json").read_text() == "{}"
    assert list(places[2].iterdir()) == []


def test_what_a_node_has_already_is_its_own_matter(tmp_path: Path, model: Path) -> None:
    places = [tmp_path / f"node-{i}" / "models" for i in (1, 2)]
    places[0].mkdir(parents=True)
    seed(places, model)
    assert list(places[0].iterdir()) == []
    (places[1] / model.name / "model.safetensors.partial").unlink()
    seed(places, model)
    assert not (places[1] / model.name / "model.safetensors.partial").exists()


def test_the_demo_removes_only_its_own_folders(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis").touch()
    with pytest.raises(ConflictError, match="not a demo's folder"):
        make_anew(mine)
    assert (mine / "thesis").exists()
    make_anew(tmp_path / "demo")
    (tmp_path / "demo" / "old").touch()
    make_anew(tmp_path / "demo")
    assert not (tmp_path / "demo" / "old").exists()
