"""The cluster as a source of models: peers first, and one node per file asks the hub for all.

A file is taken from a peer that has it whole, another one each time. Where none has it, one node claims it and fetches
it from the hub; the others wait until it is whole there. A peer, or a claim, that dies is replaced in the middle of the
file: the bytes stay and their digest is the same everywhere.
"""

import json
import logging
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from exo_celery.errors import DownloadError, DownloadInterruptedError
from exo_celery.models.http import get
from exo_celery.models.hub import HubSource
from exo_celery.models.manifest import Manifest
from exo_celery.models.sources import Stream
from exo_celery.models.stop import Stop
from exo_celery.records.download import DownloadStatus
from exo_celery.records.node import LinkRecord, Node
from exo_celery.store import claims, downloads, links, nodes
from exo_celery.store.client import Redis, RedisError

log = logging.getLogger(__name__)
LOOK_SECONDS: Final = 1.0  # between looks at what peers have
RENEW_SECONDS: Final = 4.0
SHUN_SECONDS: Final = 20.0  # a peer that failed is not asked for so long
LIST_BYTES: Final = 4 << 20


@dataclass(frozen=True)
class Peer:
    """Another node that serves models. `whole` says whether it has all of the model that was asked about."""

    node: str
    source: HubSource
    whole: bool


class Swarm:
    """A source made of the other live nodes and, unless offline, the hub. Used by several threads."""

    def __init__(self, redis: Redis, ns: str, node: str, token: str, hub: HubSource | None) -> None:
        self.redis = redis
        self.ns = ns
        self.node = node
        self.token = token
        self.hub = hub
        self.label = f"peers, then {hub.label}" if hub else "peers"
        self._guard = threading.Lock()
        self._sources: dict[str, HubSource] = {}
        self._shunned: dict[tuple[str, str], float] = {}
        self._looked: dict[tuple[str, str], tuple[float, dict[str, list[Peer]]]] = {}

    def offers(self, model: str, revision: str) -> bool:
        """Whether there is a hub to ask, or a peer that has the whole model."""
        return self.hub is not None or any(peer.whole for peer in self.peers(model))

    def manifest(self, model: str, revision: str, stop: Stop) -> Manifest:
        """List the model as a peer that has it whole does, else as the hub does."""
        waits: DownloadInterruptedError | None = None
        for peer in [peer for peer in self.peers(model) if peer.whole]:
            try:
                return peer.source.manifest(model, revision, stop)
            except DownloadInterruptedError as error:
                waits = error
            except DownloadError as error:
                log.info("a peer does not list it: %s", error)
        if self.hub is not None:
            return self.hub.manifest(model, revision, stop)
        raise waits or DownloadError(f"{model} {revision} is whole on no other live node, and this node is offline")

    @contextmanager
    def open(self, manifest: Manifest, name: str, offset: int, stop: Stop) -> Iterator[Stream]:
        """Stream a file from a peer that has it whole, or from the hub if it falls to this node to ask it."""
        while True:
            stop.check()
            if peer := self.holder(manifest, name, stop):
                with self.from_peer(peer, manifest, name, offset, stop) as stream:
                    yield stream
                return
            if self.hub is None:
                raise DownloadInterruptedError(f"{name} of {manifest.model} is on no other live node now")
            if self.claimed(manifest.model, name):
                with self.keeping(manifest.model, name), self.hub.open(manifest, name, offset, stop) as stream:
                    yield Stream(stream.start, self.renewing(stream.chunks, manifest.model, name))
                return
            stop.wait(LOOK_SECONDS)

    # Peers

    @contextmanager
    def from_peer(self, peer: Peer, manifest: Manifest, name: str, offset: int, stop: Stop) -> Iterator[Stream]:
        """Stream from a peer. Whatever becomes of it, a next try for this file goes elsewhere for a while.

        For only the receiver finds out that bytes were wrong, and then asks again.
        """
        self._shunned[peer.node, f"{manifest.model}/{name}"] = time.monotonic() + SHUN_SECONDS
        try:
            with peer.source.open(manifest, name, offset, stop) as stream:
                yield stream
        except DownloadInterruptedError:
            raise
        except DownloadError as error:  # what one peer refuses, another place may have
            raise DownloadInterruptedError(f"{name}: {error.message}") from error

    def holder(self, manifest: Manifest, name: str, stop: Stop) -> Peer | None:
        """Return one of the peers that have the file whole, by chance, so that the load spreads."""
        able = self.look(manifest, stop).get(name, [])
        good = [peer for peer in able if not self.shunned(peer.node, f"{manifest.model}/{name}")]
        if not good and self.hub is None:  # nobody else to ask
            good = able
        return random.choice(good) if good else None

    def shunned(self, node: str, what: str) -> bool:
        """Tell whether a node is left alone for now, as to a file or, with '', altogether."""
        return self._shunned.get((node, what), 0.0) > time.monotonic()

    def look(self, manifest: Manifest, stop: Stop) -> dict[str, list[Peer]]:
        """Return which peers have which files of a model whole, as of at most a second ago."""
        key = (manifest.model, manifest.revision)
        with self._guard:
            at, found = self._looked.get(key, (0.0, {}))
            if time.monotonic() - at >= LOOK_SECONDS:
                found = {}
                for peer in self.peers(manifest.model):
                    for name in self.whole_files(peer, manifest, stop):
                        found.setdefault(name, []).append(peer)
                self._looked = {key: (time.monotonic(), found)}
        return found

    def whole_files(self, peer: Peer, manifest: Manifest, stop: Stop) -> list[str]:
        """Ask a peer for the files that it has whole; one that does not answer is left alone for a while."""
        url = f"{peer.source.endpoint}/api/models/{manifest.model}/whole/{quote(manifest.revision, safe='')}"
        headers = {"Authorization": f"Bearer {self.token}"}
        try:
            with get(url, headers, stop, proxied=False) as answer:
                return [str(name) for name in json.loads(answer.body(LIST_BYTES))["files"]]
        except (DownloadError, ValueError, KeyError, TypeError) as error:
            log.info("peer %s does not tell what it has: %s", peer.node, error)
            self._shunned[peer.node, ""] = time.monotonic() + SHUN_SECONDS
            return []

    def peers(self, model: str) -> list[Peer]:
        """Return the live nodes that have something of a model, those that answer, in any order."""
        try:
            near = {node.id: node for node in nodes.every(self.redis, self.ns) if node.alive and node.peer_port}
            near.pop(self.node, None)
            held = downloads.of_model(self.redis, self.ns, model, sorted(near))
            ways = links.every(self.redis, self.ns, [self.node])[self.node]
        except RedisError as error:
            log.warning("peers are not known, Redis does not answer: %s", error)
            return []
        found = [
            Peer(name, self.source(near[name], ways.get(name)), one.status is DownloadStatus.COMPLETED)
            for name, one in held.items()
            if one.completed_files and not self.shunned(name, "")
        ]
        return random.sample(found, len(found))

    def source(self, node: Node, way: LinkRecord | None) -> HubSource:
        """Return a node as a source, at the address where it answered fastest. It is never shown the hub's token."""
        address = way.address if way else node.addresses[0]
        url = f"http://{address}:{node.peer_port}"
        if url not in self._sources:
            self._sources[url] = HubSource(url, self.token, label=f"peer {node.id}", proxied=False)
        return self._sources[url]

    # The hub, one node per file

    def claimed(self, model: str, name: str) -> bool:
        """Claim a file; without Redis nobody knows who has it, so nobody asks the hub."""
        try:
            return claims.claim(self.redis, self.ns, model, name, self.node)
        except RedisError as error:
            raise DownloadInterruptedError(f"{name}: who fetches it cannot be agreed on, {error}") from error

    @contextmanager
    def keeping(self, model: str, name: str) -> Iterator[None]:
        """Keep a claim until it lapses by itself, by when the file is whole here; leave it at once on a failure."""
        arrived = False
        try:
            yield
            arrived = True
        finally:
            if not arrived:
                with suppress(RedisError):
                    claims.give_up(self.redis, self.ns, model, name, self.node)

    def renewing(self, chunks: Iterator[bytes], model: str, name: str) -> Iterator[bytes]:
        """Renew a claim as long as bytes arrive; a hub that stalls loses it to another node."""
        renewed = time.monotonic()
        for chunk in chunks:
            yield chunk
            if time.monotonic() - renewed > RENEW_SECONDS:
                renewed = time.monotonic()
                if not self.claimed(model, name):
                    raise DownloadInterruptedError(f"{name}: another node has taken it over from this one")
