"""The truth from disk: complete only when every weight file is whole, real bytes until then."""

import json
from pathlib import Path

import pytest
from lookalike.checkpoints import cut, shard_name, write_model

from exo_celery.models.disk import scan
from exo_celery.models.manifest import FileEntry, Manifest, write_manifest

INDEX = "model.safetensors.index.json"


def sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def with_manifest(folder: Path) -> Path:
    files = {name: FileEntry(size=size) for name, size in sizes(folder).items()}
    write_manifest(folder, Manifest(model="org/tiny", revision="abc", files=files))
    return folder


def test_a_whole_model_is_complete(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", shards=3)
    disk = scan(folder)
    assert disk.complete
    assert disk.problems == ()
    assert disk.have_bytes == disk.total_bytes == sum(sizes(folder).values())
    assert disk.completed_files == disk.total_files == 7


def test_an_absent_folder_holds_nothing(tmp_path: Path) -> None:
    assert scan(tmp_path / "m").have_bytes == 0
    assert not scan(tmp_path / "m").complete


@pytest.mark.parametrize("manifest", [False, True])
def test_one_byte_less_is_not_complete_and_counts_its_bytes(tmp_path: Path, manifest: bool) -> None:
    folder = write_model(tmp_path / "m")
    total = sum(sizes(folder).values())
    if manifest:
        with_manifest(folder)
    weights = folder / "model.safetensors"
    cut(weights, weights.stat().st_size - 1)
    disk = scan(folder)
    assert not disk.complete
    assert (disk.have_bytes, disk.total_bytes) == (total - 1, total)
    assert "truncated" in disk.problems[0]


@pytest.mark.parametrize("manifest", [False, True])
def test_half_a_partial_counts_half(tmp_path: Path, manifest: bool) -> None:
    folder = write_model(tmp_path / "m")
    if manifest:
        with_manifest(folder)
    weights = folder / "model.safetensors"
    size = weights.stat().st_size
    cut(weights, size // 2).rename(folder / "model.safetensors.partial")
    disk = scan(folder)
    assert not disk.complete
    assert disk.problems == ()
    assert disk.total_bytes - disk.have_bytes == size - size // 2


def test_a_full_size_partial_is_not_complete(tmp_path: Path) -> None:
    folder = with_manifest(write_model(tmp_path / "m"))
    (folder / "model.safetensors").rename(folder / "model.safetensors.partial")
    disk = scan(folder)
    assert not disk.complete
    assert disk.have_bytes == disk.total_bytes - 1


def test_a_partial_longer_than_its_file_is_capped(tmp_path: Path) -> None:
    folder = with_manifest(write_model(tmp_path / "m"))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes() * 3)
    weights.rename(folder / "model.safetensors.partial")
    assert scan(folder).have_bytes == scan(folder).total_bytes - 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<!DOCTYPE html><html><body>Sign in</body></html>", "HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 98\n", "git-lfs pointer"),
        (b"", "empty"),
        (b'\x10\0\0\0\0\0\0\0{"a": [1, 2, 3]}', "not valid"),
        (b"\x01\x02\x03", "only 3 bytes"),
    ],
)
def test_other_content_is_never_complete(tmp_path: Path, content: bytes, reason: str) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(content)
    disk = scan(folder)
    assert not disk.complete
    assert reason in "; ".join(disk.problems)


def test_a_missing_weight_file_of_the_index_is_named_and_the_total_is_known(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", shards=2)
    (folder / shard_name(2, 2)).unlink()
    disk = scan(folder)
    assert not disk.complete
    assert disk.problems == (f"{shard_name(2, 2)}: missing",)
    assert 0.3 < disk.have_bytes / disk.total_bytes < 0.8


def test_without_an_index_the_names_tell_what_is_missing(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", shards=3)
    (folder / INDEX).unlink()
    assert scan(folder).complete
    (folder / shard_name(3, 3)).unlink()
    assert scan(folder).problems == (f"{shard_name(3, 3)}: missing",)


def test_half_an_index_is_not_complete(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", shards=2)
    index = folder / INDEX
    cut(index, index.stat().st_size // 2)
    disk = scan(folder)
    assert not disk.complete
    assert INDEX in disk.problems[0]


def test_an_index_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", shards=2)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"w": "../../secret.safetensors"}}))
    assert not scan(folder).complete


def test_a_model_needs_a_tokenizer_and_a_config(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "tokenizer.json").unlink()
    (folder / "config.json").unlink()
    disk = scan(folder)
    assert not disk.complete
    assert disk.problems == ("config.json: missing", "no tokenizer (tokenizer.json, tokenizer.model, …)")


def test_a_truncated_tokenizer_is_not_complete(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    cut(folder / "tokenizer.json", 20)
    assert "tokenizer.json: not valid JSON" in scan(folder).problems[0]


def test_weights_decide_whatever_happens_to_readme_and_config(tmp_path: Path) -> None:
    folder = with_manifest(write_model(tmp_path / "m"))
    (folder / "README.md").write_text("new upstream")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"my_note": "edited by hand"}))
    assert scan(folder).complete


def test_weights_of_another_revision_are_not_complete(tmp_path: Path) -> None:
    folder = with_manifest(write_model(tmp_path / "m", layers=4))
    write_model(folder, layers=2)
    assert not scan(folder).complete


def test_the_hub_clients_own_listing_gives_the_total(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "models--org--tiny" / "snapshots" / "c0ffee")
    listing = {"files": {name: {"size": size} for name, size in sizes(folder).items()}}
    trees = folder.parent.parent / "trees"
    trees.mkdir()
    (trees / "c0ffee.json").write_text(json.dumps(listing))
    total = sum(sizes(folder).values())
    (folder / "model.safetensors").unlink()
    disk = scan(folder)
    assert not disk.complete
    assert disk.total_bytes == total
