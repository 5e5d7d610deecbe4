"""What the nodes of a demo cluster hold at first: the first all of the demo model, the second half, others nothing."""

import shutil
from pathlib import Path
from typing import Final

from exo_celery.models.folders import is_weights, partial

CHUNK_BYTES: Final = 1 << 20


def seed(models_dirs: list[Path], model: Path) -> None:
    """Fill the models folders of nodes that have none yet; what a node already has is its own matter."""
    for place, models_dir in enumerate(models_dirs):
        if models_dir.exists():
            continue
        making = models_dir.with_name("models.making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        if place == 0:
            shutil.copytree(model, making / model.name)
        elif place == 1:
            copy_half(model, making / model.name)
        making.rename(models_dir)


def copy_half(model: Path, target: Path) -> None:
    """Leave what a download leaves that was interrupted half way: small files whole, weights partial."""
    target.mkdir()
    for path in sorted(model.iterdir()):
        if is_weights(path.name):
            copy_start(path, partial(target / path.name), path.stat().st_size // 2)
        else:
            shutil.copy2(path, target / path.name)


def copy_start(source: Path, target: Path, length: int) -> None:
    """Copy the first bytes of a file."""
    with source.open("rb") as whole, target.open("wb") as part:
        while length > 0 and (chunk := whole.read(min(CHUNK_BYTES, length))):
            length -= part.write(chunk)
