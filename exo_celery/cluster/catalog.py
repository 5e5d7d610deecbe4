"""Models that are known: which, and how one becomes so."""

from pathlib import Path

from exo_celery.cluster.health import Cluster
from exo_celery.models import known
from exo_celery.records.download import DownloadStatus
from exo_celery.records.model import AddModel, ModelCard
from exo_celery.store import cards, events
from exo_celery.store import downloads as download_store
from exo_celery.store import instances as instance_store
from exo_celery.store import nodes as node_store


def models(cluster: Cluster) -> list[ModelCard]:
    """Return all known models, by id."""
    return cards.every(cluster.redis, cluster.ns)


def model(cluster: Cluster, model_id: str) -> ModelCard:
    """Return a model's card, or raise ModelNotFoundError with what is known."""
    return cards.get(cluster.redis, cluster.ns, model_id)


def servable_models(cluster: Cluster) -> list[ModelCard]:
    """Return the models that can be served: whole on some live node, or placed."""
    held = download_store.every(cluster.redis, cluster.ns, sorted(node_store.live_boots(cluster.redis, cluster.ns)))
    whole = {one.model for one in held if one.status is DownloadStatus.COMPLETED}
    placed = {one.model for one in instance_store.every(cluster.redis, cluster.ns)}
    return [card for card in models(cluster) if card.id in whole | placed]


def add_model(cluster: Cluster, asked: AddModel) -> ModelCard:
    """Make a model known and return its card: from a folder, else from the hub, else from what is built in.

    Raises:
        ModelFolderError: the folder is not whole, or mlx-lm cannot run what it holds.
        ModelNotFoundError: the model is nowhere here, and the hub does not have it or may not be asked.
        UnavailableError: the hub cannot be reached now.
    """
    card = known.find_card(cluster.settings, asked.model, Path(asked.path) if asked.path else None)
    cards.save(cluster.redis, cluster.ns, card)
    events.add(cluster.redis, cluster.ns, "model", f"{card.id} is known from {card.source}", model=card.id)
    return card
