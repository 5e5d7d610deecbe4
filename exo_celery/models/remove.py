"""Remove a model from the writable folders: never through a link, never half."""

import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from exo_celery.errors import ConflictError
from exo_celery.models.fetch import locked
from exo_celery.models.folders import folder_name

DOOMED: Final = ".deleted-"


def remove(model: str, directories: Sequence[Path]) -> None:
    """Delete the model's folders in these directories, and what a broken off deletion left; none there is fine.

    Raises:
        ConflictError: the folder is a link, or the model is being downloaded by another process.
        OSError: a file cannot be deleted; the model is gone all the same.
    """
    for directory in directories:
        folder = directory / folder_name(model)
        if folder.is_symlink():
            raise ConflictError(f"{folder} is a link: remove it by hand, its target is not ours to delete")
        if folder.is_dir():
            with locked(folder, model):
                folder.rename(directory / f"{DOOMED}{uuid.uuid4().hex}")
        for doomed in directory.glob(f"{DOOMED}*"):
            shutil.rmtree(doomed)
