"""The truth about one model folder, from the disk alone: whole, partial with real bytes, or absent. No network.

A model is complete when its config, a tokenizer and every weight file are in place with the length that their own
headers say. Weights decide: a README, or a config that somebody edited, changes nothing.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from exo_celery.errors import ModelFolderError
from exo_celery.models.folders import INDEX, PARTIAL, is_tokenizer, is_wanted, is_weights, partial
from exo_celery.models.headers import TruncatedHeaderError, read_header
from exo_celery.models.manifest import Manifest, read_manifest

SHARD: Final = re.compile(r"(model.*)-(\d{5})-of-(\d{5})\.safetensors")


@dataclass(frozen=True)
class OnDisk:
    """What a folder holds. `total_bytes` is 0 while it is not known; `problems` are more than "not yet there"."""

    complete: bool = False
    have_bytes: int = 0
    total_bytes: int = 0
    completed_files: int = 0
    total_files: int = 0
    problems: tuple[str, ...] = ()
    revision: str = ""


@dataclass(frozen=True)
class FileState:
    """What is there of one file. `total_bytes` is None while its length is not known."""

    done: bool
    have_bytes: int
    total_bytes: int | None
    problem: str = ""


def scan(folder: Path) -> OnDisk:
    """Say what a model folder holds, from names, lengths and headers.

    Raises:
        OSError: the folder or one of its files cannot be read.
    """
    if not folder.is_dir():
        return OnDisk()
    manifest = read_manifest(folder)
    listed = {name: entry.size for name, entry in manifest.files.items()} if manifest else hub_listing(folder)
    index, index_problem = read_index(folder)
    names = required_names(folder, manifest, listed, index)
    states = {name: look(folder / name, listed.get(name)) for name in sorted(names)}
    problems = [state.problem for state in states.values() if state.problem]
    if manifest is None:
        problems += [f"{name}: missing" for name in sorted(names) if is_absent(folder / name)]
    if index_problem:
        problems.append(index_problem)
    if not any(is_tokenizer(name) for name in names):
        problems.append("no tokenizer (tokenizer.json, tokenizer.model, …)")
    return summary(states, problems, index, manifest.revision if manifest else "")


def summary(states: Mapping[str, FileState], problems: list[str], index: Mapping[str, Any], revision: str) -> OnDisk:
    """Add the files up. Short of complete at least one byte is missing, whatever the sums say."""
    complete = not problems and all(state.done for state in states.values())
    total = sum(state.total_bytes or 0 for state in states.values())
    if any(state.total_bytes is None for state in states.values()):
        total = index_total(states, index)
    have = sum(state.have_bytes for state in states.values())
    if total and not complete:
        have = min(have, total - 1)
    return OnDisk(
        complete=complete,
        have_bytes=have,
        total_bytes=total,
        completed_files=sum(state.done for state in states.values()),
        total_files=len(states),
        problems=tuple(problems),
        revision=revision,
    )


def index_total(states: Mapping[str, FileState], index: Mapping[str, Any]) -> int:
    """Return the total by the index, which counts tensor bytes only (so it is a floor), or 0 without one."""
    metadata = index.get("metadata")
    tensors = metadata.get("total_size") if isinstance(metadata, dict) else None
    if not isinstance(tensors, int) or tensors <= 0:
        return 0
    others = sum(state.total_bytes or 0 for name, state in states.items() if not is_weights(name))
    return max(tensors + others, sum(state.total_bytes or state.have_bytes for state in states.values()))


def required_names(
    folder: Path, manifest: Manifest | None, listed: Mapping[str, int], index: Mapping[str, Any]
) -> set[str]:
    """Return the files that the model consists of: by manifest and index, else by what is there."""
    there = {path.name.removesuffix(PARTIAL) for path in folder.iterdir()}
    names = set(manifest.files) if manifest else {name for name in there if is_wanted(name)}
    weights = set(index.get("weight_map", {}).values()) or {name for name in listed if is_weights(name)}
    if not weights:
        weights = siblings(name for name in names if is_weights(name)) or {"model.safetensors"}
    if index and manifest is None:  # a second set of weights beside the indexed one is nobody's business
        names = {name for name in names if not is_weights(name)}
    return names | weights | {"config.json"}


def siblings(weights: Iterable[str]) -> set[str]:
    """Return the weight files and those whose existence their names tell: `model-00001-of-00003.safetensors`."""
    names = set(weights)
    for name in tuple(names):
        if shard := SHARD.fullmatch(name):
            count = min(int(shard[3]), 10_000)
            names |= {f"{shard[1]}-{n:05d}-of-{shard[3]}.safetensors" for n in range(1, count + 1)}
    return names


def read_index(folder: Path) -> tuple[dict[str, Any], str]:
    """Return the weights' index (empty when there is none), and what is wrong with it."""
    try:
        index = json.loads((folder / INDEX).read_bytes())
        names = index["weight_map"].values()
        if not names or any("/" in name or not name.endswith(".safetensors") for name in names):
            raise ValueError("its weight_map names no weight files of this folder")
    except FileNotFoundError:
        return {}, ""
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return {}, f"{INDEX}: not a readable index ({error})"
    return index, ""


def hub_listing(folder: Path) -> dict[str, int]:
    """Return the lengths that the hub's client noted beside its download of this folder, if it did."""
    if folder.parent.name == "snapshots":  # the hub's cache: <repo>/{snapshots,trees}/<commit>
        listings = [folder.parent.parent / "trees" / f"{folder.name}.json"]
    else:
        listings = sorted((folder / ".cache" / "huggingface" / "trees").glob("*.json"))
    try:
        files = json.loads(listings[0].read_bytes())["files"] if len(listings) == 1 else {}
        return {name: int(entry["size"]) for name, entry in files.items() if is_wanted(name)}
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # a listing is a help, never a condition: the headers tell the same


def look(path: Path, listed: int | None) -> FileState:
    """Say what is there of one file, whose listed length may not be known."""
    size = size_of(path)
    if size is None:
        return unfinished(path, listed)
    if size == 0 and listed != 0:
        return FileState(False, 0, listed, f"{path.name}: empty")
    return weights(path, size, listed) if is_weights(path.name) else plain(path, size, listed)


def unfinished(path: Path, listed: int | None) -> FileState:
    """Say what is there of a file that is not in its place: the bytes of its `.partial`, at most the whole."""
    part = partial(path)
    have = size_of(part) or 0
    if listed is None and have and is_weights(path.name):
        try:
            listed = read_header(part).file_bytes
        except TruncatedHeaderError:
            pass
        except ModelFolderError as error:
            return FileState(False, 0, None, error.message)
    return FileState(False, have if listed is None else min(have, listed), listed)


def weights(path: Path, size: int, listed: int | None) -> FileState:
    """Compare a weight file's length with what its header and the listing say."""
    try:
        expected = read_header(path).file_bytes
    except TruncatedHeaderError as error:
        return FileState(False, size, listed, error.message)
    except ModelFolderError as error:
        return FileState(False, 0, listed, error.message)
    total = expected if listed is None else listed
    if size == expected == total:
        return FileState(True, size, total)
    if size >= min(expected, total):
        found = f"{size} bytes, its header says {expected}, the listing {total}"
    else:
        found = f"truncated, {size} of {total} bytes"
    return FileState(False, min(size, total), total, f"{path.name}: {found}")


def plain(path: Path, size: int, listed: int | None) -> FileState:
    """Check a file without weights: JSON must parse, others must not be shorter than listed."""
    total = size if listed is None else listed
    if size != listed and path.suffix == ".json":
        try:
            json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            return FileState(False, min(size, total), listed, f"{path.name}: not valid JSON ({error})")
    elif size < total:
        return FileState(False, size, total, f"{path.name}: truncated, {size} of {total} bytes")
    return FileState(True, total, total)


def is_absent(path: Path) -> bool:
    """Whether neither the file nor its partial is there."""
    return size_of(path) is None and size_of(partial(path)) is None


def size_of(path: Path) -> int | None:
    """Return a file's length, or None when there is no such file (or its link leads nowhere)."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
