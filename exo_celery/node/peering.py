"""A node among its peers: what it serves to them, and what it takes from them."""

from exo_celery.models.origins import hub_source
from exo_celery.models.rate import Rate
from exo_celery.models.shelf import Shelf
from exo_celery.models.stop import Stop
from exo_celery.node import trust
from exo_celery.node.peer_server import PeerServer
from exo_celery.node.swarm import Swarm
from exo_celery.settings import Settings
from exo_celery.store.client import Redis


class Peering:
    """The peer server of a node, and its view of the others as a source of models."""

    def __init__(self, settings: Settings, redis: Redis, node_id: str, host: str) -> None:
        token = trust.purpose_key(trust.cluster_secret(settings, redis), "peer").hex()
        self._ended = Stop()
        self.shelf = Shelf(settings, self._ended)
        self._server = PeerServer(host, self.shelf, token, Rate(settings.upload_limit or 0))
        self.swarm = Swarm(redis, settings.namespace, node_id, token, hub_source(settings))

    @property
    def port(self) -> int:
        """The port that peers reach this node at."""
        return self._server.port

    def close(self) -> None:
        """Serve nobody any more."""
        self._ended.set()
        self._server.close()
