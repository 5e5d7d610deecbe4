"""A model on disk: the folder `<dir>/<org>--<name>/`, plain files, a manifest, `.partial` files while it is fetched."""

import re
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Final

from exo_celery.errors import DownloadError
from exo_celery.records.base import checked_model_id

MANIFEST: Final = ".manifest.json"
LOCK: Final = ".download.lock"
PARTIAL: Final = ".partial"
INDEX: Final = "model.safetensors.index.json"
# What mlx-lm reads of a checkpoint. No `*.py`: foreign code is never run, so it is never fetched.
WANTED: Final = (
    "*.json",
    "model*.safetensors",
    "tokenizer.model",
    "*.tiktoken",
    "tiktoken.model",
    "*.txt",
    "*.jsonl",
    "*.jinja",
)
TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model", "tekken.json")
DRIVE: Final = re.compile(r"[A-Za-z]:")
FOLDER: Final = re.compile(r"(.+?)--([A-Za-z0-9].*)")


def folder_name(model: str) -> str:
    """Return the name of a model's folder: `org/name` becomes `org--name`."""
    return checked_model_id(model).replace("/", "--")


def model_of(folder: str) -> str | None:
    """Return the model that a folder's name stands for, or None when it is no model's folder."""
    parts = FOLDER.fullmatch(folder)
    if parts is None:
        return None
    try:
        return checked_model_id(f"{parts[1]}/{parts[2]}")
    except ValueError:
        return None


def is_wanted(name: str) -> bool:
    """Whether a file of a repository belongs into the model's folder: in its root, and read by mlx-lm."""
    return "/" not in name and not name.startswith(".") and any(fnmatchcase(name, p) for p in WANTED)


def is_weights(name: str) -> bool:
    """Whether a file holds tensors that mlx-lm loads."""
    return fnmatchcase(name, "model*.safetensors")


def is_tokenizer(name: str) -> bool:
    """Whether a tokenizer can be made from this file."""
    return name in TOKENIZERS or name.endswith(".tiktoken")


def checked_name(name: str) -> str:
    """Return a listed file's name if it stays inside the model's folder.

    Raises:
        DownloadError: the name is absolute, climbs out, or is written for another system.
    """
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or DRIVE.match(name) or "\0" in name:
        raise DownloadError(f"the listing names the file {name!r}, which leads out of the model's folder: refused")
    return name


def partial(path: Path) -> Path:
    """Return where the bytes of a file gather until it is whole and right."""
    return path.with_name(path.name + PARTIAL)
