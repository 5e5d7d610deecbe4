"""The card of a model that somebody names: from a folder of this machine, from the hub, or from what is well known."""

import logging
from pathlib import Path

from exo_celery.errors import (
    DownloadError,
    DownloadInterruptedError,
    ModelFolderError,
    ModelNotFoundError,
    UnavailableError,
)
from exo_celery.models.catalog import card_from_folder, card_from_source
from exo_celery.models.disk import scan
from exo_celery.models.folders import folder_name
from exo_celery.models.origins import hub_source
from exo_celery.models.stop import Stop
from exo_celery.models.survey import places
from exo_celery.models.well_known import well_known
from exo_celery.records.model import ModelCard
from exo_celery.settings import Settings

log = logging.getLogger(__name__)


def find_card(settings: Settings, model: str, folder: Path | None = None) -> ModelCard:
    """Return a model's card: of the folder that is named, else of one under its id here, else of the hub's files.

    Takes as long as the hub does, at most about a minute. Offline, and while the hub is away, a well-known model has
    the card that is built in.

    Raises:
        ModelFolderError: the folder is not whole, or mlx-lm cannot run what it holds.
        ModelNotFoundError: the model is nowhere here, and the hub does not have it or may not be asked.
        UnavailableError: the hub cannot be reached now.
    """
    if folder is not None:
        return card_of_whole(model, folder)
    for place in folders_of(settings, model):
        if is_whole(place):
            return card_from_folder(model, place)
    hub = hub_source(settings)
    if hub is None:
        return built_in(
            model, f"{model} lies in no models folder of this machine, and the hub may not be asked (offline)"
        )
    try:
        return card_from_source(model, hub, Stop())
    except DownloadInterruptedError as error:
        if card := well_known(model):
            return card
        raise UnavailableError(f"{error.message}. Try again later") from error
    except DownloadError as error:
        raise ModelNotFoundError(error.message, param="model") from error


def is_whole(folder: Path) -> bool:
    """Tell whether a folder holds a whole model; one that cannot be read hides none that can."""
    try:
        return scan(folder).complete
    except OSError as error:
        log.warning("%s cannot be read: %s", folder, error)
        return False


def card_of_whole(model: str, folder: Path) -> ModelCard:
    """Return the card of a folder that must be whole."""
    try:
        disk = scan(folder)
    except OSError as error:
        raise ModelFolderError(f"{folder} cannot be read: {error}", param="path") from error
    if not disk.complete:
        found = "; ".join(disk.problems) or "no such folder"
        raise ModelFolderError(f"{folder} does not hold the whole model {model}: {found}", param="path")
    return card_from_folder(model, folder)


def folders_of(settings: Settings, model: str) -> list[Path]:
    """Return the folders of this machine that may hold a model, those that are its nodes' own first."""
    own = [place.folder for place in places(settings) if place.model == model]
    return own + [directory / folder_name(model) for directory in settings.source_dirs]


def built_in(model: str, otherwise: str) -> ModelCard:
    """Return a well-known model's card.

    Raises:
        ModelNotFoundError: there is none; the message is the one given, with what to do.
    """
    card = well_known(model)
    if card is None:
        raise ModelNotFoundError(f"{otherwise}. Put its folder there, or go online", param="model")
    return card
