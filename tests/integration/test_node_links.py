"""Links for real: bells that answer, bells that do not, and what is written of them."""

import ipaddress
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from redis import Redis

from exo_celery.errors import LinkError
from exo_celery.node import bell, links
from exo_celery.node.links import MISSES, ROUND_PEERS, TOLD_MISSES, Links, Seen, due_peers, missed
from exo_celery.records.node import LinkRecord, Node
from exo_celery.store import links as link_store
from exo_celery.store import nodes

KEY = b"k" * 32
HOME = [ipaddress.IPv4Network("10.0.0.0/24")]
LINK = LinkRecord(address="10.0.0.1", rtt_ms=1)


@contextmanager
def peer(redis: Redis, ns: str, name: str, mine: Links, key: bytes = KEY) -> Iterator[bell.Bell]:
    with_bell = bell.Bell("127.0.0.1", name, key, mine.rung)
    node = Node(id=name, boot_id=name, addresses=("127.0.0.1",), port=with_bell.port)
    nodes.heartbeat(redis, ns, node)
    yield with_bell
    with_bell.close()


def test_who_answers_is_written_and_who_is_cut_off_is_not(redis: Redis, namespace: str) -> None:
    mine = Links(redis, namespace, "me", KEY)
    with ThreadPoolExecutor(2) as pool, peer(redis, namespace, "a", mine), peer(redis, namespace, "b", mine) as other:
        mine.round(pool)
        reached = link_store.every(redis, namespace, ["me"])["me"]
        assert set(reached) == {"a", "b"}
        assert reached["a"].address == "127.0.0.1"
        assert 0 < reached["a"].rtt_ms < 2000
        other.close()
        for _ in range(MISSES):
            mine.seen["b"] = links.replace(mine.seen["b"], ring_at=0.0)
            mine.round(pool)
        assert set(link_store.every(redis, namespace, ["me"])["me"]) == {"a"}


def test_whoever_lives_and_is_not_reached_is_told_with_the_cure(
    redis: Redis, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    mine = Links(redis, namespace, "me", KEY)
    with ThreadPoolExecutor(2) as pool, peer(redis, namespace, "a", mine), peer(redis, namespace, "b", mine) as other:
        other.close()
        for told in [False] * (TOLD_MISSES - 1) + [True, True]:
            mine.seen = {name: links.replace(seen, ring_at=0.0) for name, seen in mine.seen.items()}
            mine.round(pool)
            assert bool(mine.unreached) is told
        (sentence,) = mine.unreached
        assert sentence.startswith(f"me does not reach b: b does not answer at 127.0.0.1 port {other.port}")
        assert "Open the port" in sentence
        assert caplog.messages.count(sentence) == 1
        nodes.leave(redis, namespace, "b", "b")
        mine.round(pool)
        assert mine.unreached == ()


def test_a_peer_that_rings_is_rung_back_at_once(redis: Redis, namespace: str) -> None:
    mine = Links(redis, namespace, "me", KEY)
    mine.seen["a"] = Seen(None, 5, time.monotonic() + 600)
    my_bell = bell.Bell("127.0.0.1", "me", KEY, mine.rung)
    with ThreadPoolExecutor(2) as pool, peer(redis, namespace, "a", mine):
        bell.ring("127.0.0.1", my_bell.port, "a", "me", KEY)
        assert mine.now.wait(2)
        mine.round(pool)
        assert set(link_store.every(redis, namespace, ["me"])["me"]) == {"a"}
    my_bell.close()


def test_another_secret_or_a_foreign_program_is_no_peer(redis: Redis, namespace: str) -> None:
    mine = Links(redis, namespace, "me", KEY)
    with peer(redis, namespace, "a", mine, key=b"x" * 32) as other, pytest.raises(LinkError):
        bell.ring("127.0.0.1", other.port, "me", "a", KEY)
    with peer(redis, namespace, "a", mine) as other, pytest.raises(LinkError):
        bell.ring("127.0.0.1", other.port, "me", "somebody-else", KEY)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(LinkError):
        bell.ring("127.0.0.1", silent.getsockname()[1], "me", "a", KEY)


def test_silent_callers_hold_nobody_up(redis: Redis, namespace: str) -> None:
    mine = Links(redis, namespace, "me", KEY)
    with peer(redis, namespace, "a", mine) as other:
        strangers = [socket.create_connection(("127.0.0.1", other.port)) for _ in range(20)]
        assert bell.ring("127.0.0.1", other.port, "me", "a", KEY) < bell.ANSWER_SECONDS
        for stranger in strangers:
            stranger.close()


def node(name: str, address: str = "10.0.0.9", port: int = 1) -> Node:
    return Node(id=name, addresses=(address,), port=port)


def test_a_round_is_bounded_and_the_known_and_near_come_first() -> None:
    far = [node(f"far-{n:04}", "10.9.9.9") for n in range(1000)]
    near = [node(f"near-{n:02}") for n in range(31)]
    seen = {"far-0999": Seen(LINK)}
    due = due_peers(far + near, seen, 100.0, HOME)
    assert len(due) == ROUND_PEERS
    assert due[0].id == "far-0999"
    assert {peer.id for peer in near} <= {peer.id for peer in due}


def test_who_is_not_due_or_has_no_bell_is_left_alone() -> None:
    seen = {"later": Seen(None, 3, 200.0)}
    assert due_peers([node("later"), node("old", port=0)], seen, 100.0, HOME) == []


def test_the_second_miss_ends_a_link_and_pauses_grow_to_a_bound() -> None:
    once = missed(Seen(LINK), 0.0)
    assert once.link == LINK
    seen, pauses = once, []
    for _ in range(12):
        seen = missed(seen, 0.0)
        assert seen.link is None
        pauses.append(seen.ring_at)
    assert pauses == sorted(pauses)
    assert pauses[-1] == links.LONGEST_PAUSE_SECONDS
