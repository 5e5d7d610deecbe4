"""Where a node takes models from: its source folders, then the hub."""

from pathlib import Path

from exo_celery.models.hub import HubSource
from exo_celery.models.sources import FolderSource, Source
from exo_celery.settings import Settings


def folder_sources(settings: Settings) -> list[Source]:
    """Return the folders that a node may copy models from."""
    return [FolderSource(directory) for directory in settings.source_dirs]


def hub_source(settings: Settings) -> HubSource | None:
    """Return the hub; offline there is none, so nobody can ask it."""
    return None if settings.offline else HubSource(settings.hf_endpoint, hub_token(settings))


def hub_token(settings: Settings) -> str | None:
    """Return the user's token for the hub: HF_TOKEN, else the one that `hf auth login` has left."""
    return settings.hf_token or token_in(settings.hf_home / "token")


def token_in(path: Path) -> str | None:
    """Return the token in a file; none there is no error, public models need none."""
    try:
        return path.read_text().strip() or None
    except (OSError, ValueError):
        return None
