"""Links: ring the peers' bells again and again, and write who answers.

The work is bounded: at most so many peers a round, those of the own networks first, and whoever did not answer is
asked again ever later. A peer that rings us is rung back at once.
"""

import ipaddress
import logging
import queue
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import psutil

from exo_celery.errors import LinkError
from exo_celery.node.bell import ring
from exo_celery.records.node import LinkRecord, Node
from exo_celery.store import client, nodes
from exo_celery.store import links as link_store
from exo_celery.store.client import Redis, RedisError

log = logging.getLogger(__name__)
ROUND_SECONDS: Final = 10.0
ROUND_PEERS: Final = 64
MISSES: Final = 2  # rings in a row without an answer that end a link
TOLD_MISSES: Final = 3  # by then a peer that died is known to be dead: what still lives is cut off from us
TOLD_PEERS: Final = 5
CURE: Final = "Open the port between the two, or set EXO_NODE_HOST there to an address that is reached from here."
LONGEST_PAUSE_SECONDS: Final = 600.0
RINGING_THREADS: Final = 8


@dataclass(frozen=True)
class Seen:
    """What we know of a peer: the link if it answered last time, and when to ring again (monotonic seconds)."""

    link: LinkRecord | None = None
    misses: int = 0
    ring_at: float = 0.0
    why: str = ""  # it did not answer


class Links:
    """The links of one node, measured by a thread of its own."""

    def __init__(self, redis: Redis, ns: str, node: str, key: bytes) -> None:
        self.redis = redis
        self.ns = ns
        self.node = node
        self.key = key
        self.seen: dict[str, Seen] = {}
        self.unreached: tuple[str, ...] = ()
        self.measured_at = 0.0
        self.callers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.stopping = threading.Event()
        self.now = threading.Event()

    def rung(self, peer: str) -> None:
        """Ring back whoever rang and is not known to be reached; called from the bell's threads."""
        if self.seen.get(peer, Seen()).link is None:
            self.callers.put(peer)
            self.now.set()

    def run(self) -> None:
        """Measure round after round until the end."""
        with ThreadPoolExecutor(RINGING_THREADS, thread_name_prefix="links") as pool:
            while not self.stopping.is_set():
                try:
                    self.round(pool)
                except RedisError as error:
                    log.warning("links: Redis does not answer, trying again: %s", error)
                self.now.wait(ROUND_SECONDS)
                self.now.clear()

    def stop(self) -> None:
        """Measure no more."""
        self.stopping.set()
        self.now.set()

    def round(self, pool: ThreadPoolExecutor) -> None:
        """Ring the peers that are due, and write who is reached."""
        peers = {node.id: node for node in nodes.every(self.redis, self.ns) if node.alive and node.id != self.node}
        while not self.callers.empty():
            self.seen.pop(self.callers.get(), None)
        self.seen = {peer: seen for peer, seen in self.seen.items() if peer in peers}
        due = due_peers(peers.values(), self.seen, time.monotonic(), own_networks())
        for peer, seen in zip(due, pool.map(self.ring, due), strict=True):
            self.seen[peer.id] = seen
        self.tell(unreached(self.node, self.seen))
        reached = {peer: seen.link for peer, seen in self.seen.items() if seen.link}
        link_store.replace(self.redis, self.ns, self.node, reached)
        self.measured_at = client.now(self.redis)

    def tell(self, unreached: tuple[str, ...]) -> None:
        """Keep for the node's record who lives and is not reached; log what is new in it."""
        for sentence in unreached:
            if sentence not in self.unreached:
                log.warning(sentence)
        self.unreached = unreached

    def ring(self, peer: Node) -> Seen:
        """Ring a peer at each of its addresses and return what is known of it then."""
        before = self.seen.get(peer.id, Seen())
        answers, failures = [], []
        for address in peer.addresses:
            try:
                answers.append((ring(address, peer.port, self.node, peer.id, self.key), address))
            except LinkError as error:
                failures.append(str(error))
        if not answers:
            return missed(before, time.monotonic(), "; ".join(failures))
        seconds, address = min(answers)
        link = LinkRecord(address=address, rtt_ms=round(seconds * 1000, 3), checked_at=client.now(self.redis))
        return Seen(link, 0, time.monotonic() + ROUND_SECONDS / 2)


def unreached(node: str, seen: Mapping[str, Seen]) -> tuple[str, ...]:
    """Return a sentence for each live peer that a node does not reach, the first few by id."""
    silent = sorted((peer, one.why) for peer, one in seen.items() if one.misses >= TOLD_MISSES)
    return tuple(f"{node} does not reach {peer}: {why}. {CURE}" for peer, why in silent[:TOLD_PEERS])


def missed(before: Seen, now: float, why: str = "") -> Seen:
    """Return what is known of a peer that did not answer: the link ends at the second miss, the pause grows."""
    misses = before.misses + 1
    link = before.link if misses < MISSES else None
    pause = ROUND_SECONDS / 2 if link else min(LONGEST_PAUSE_SECONDS, ROUND_SECONDS * 2 ** min(misses - MISSES, 10))
    return replace(before, link=link, misses=misses, ring_at=now + pause, why=why)


def due_peers(
    peers: Iterable[Node], seen: Mapping[str, Seen], now: float, networks: Collection[ipaddress.IPv4Network]
) -> list[Node]:
    """Return whom to ring this round: those that answer first, then the nearest, then the longest waiting."""
    due = [peer for peer in peers if peer.port and seen.get(peer.id, Seen()).ring_at <= now]

    def order(peer: Node) -> tuple[bool, bool, float, str]:
        known = seen.get(peer.id, Seen())
        return known.link is None, not near(peer, networks), known.ring_at, peer.id

    return sorted(due, key=order)[:ROUND_PEERS]


def near(peer: Node, networks: Collection[ipaddress.IPv4Network]) -> bool:
    """Tell whether a peer has an address in one of our own networks."""
    return any(ipaddress.ip_address(text) in network for text in peer.addresses for network in networks)


def own_networks() -> list[ipaddress.IPv4Network]:
    """Return the IPv4 networks of this machine's interfaces."""
    return [
        ipaddress.IPv4Interface(f"{address.address}/{address.netmask}").network
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.netmask and "." in address.address
    ]
