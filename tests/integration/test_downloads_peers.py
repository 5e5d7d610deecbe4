"""Nodes copy models from each other: one download from the hub serves the cluster, to holders of its key only."""

import json
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download
from lookalike.checkpoints import cut, write_model
from lookalike.hub import Hub, drop, silent, wrong_bytes
from redis import Redis

from exo_celery.models import fetch as fetching
from exo_celery.models.disk import scan
from exo_celery.models.manifest import FileEntry, Manifest, write_manifest
from exo_celery.node import swarm
from exo_celery.node.downloads import Downloads
from exo_celery.records.download import Download, DownloadStatus, Wish
from exo_celery.records.node import Node
from exo_celery.settings import Settings
from exo_celery.store import client, nodes
from exo_celery.store import downloads as store

MODEL = "org/tiny"
WEIGHTS = "model.safetensors"


class Cluster:
    """Nodes of one machine, each with its own folder, and a hub."""

    def __init__(self, root: Path, redis: Redis, ns: str, hub: Hub) -> None:
        self.root, self.redis, self.ns, self.hub = root, redis, ns, hub
        self.nodes: dict[str, Downloads] = {}

    def start(self, name: str, **settings: object) -> Downloads:
        given = {"namespace": self.ns, "hf_endpoint": self.hub.url, "hf_home": self.root / "hf", **settings}
        node = Downloads(Settings(models_dirs=(self.root / name,), **given), self.redis, name, lambda model: None)
        self.nodes[name] = node
        self.alive(name, node.peering.port)
        node.report()
        return node

    def alive(self, name: str, port: int) -> None:
        node = Node(id=name, boot_id=name, addresses=("127.0.0.1",), peer_port=port)
        nodes.heartbeat(self.redis, self.ns, node)

    def wish(self, *names: str) -> None:
        for name in names:
            wish = Wish(action="download", since=client.now(self.redis))
            store.set_wish(self.redis, self.ns, name, MODEL, wish)
        for name in names:
            self.nodes[name].work_off()

    def hash(self, name: str) -> Download:
        return store.get(self.redis, self.ns, name, MODEL) or Download(node=name, model=MODEL)

    def until(self, what: Callable[[], object], seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, f"not within {seconds} s: {[self.hash(name) for name in self.nodes]}"
            time.sleep(0.02)

    def completed(self, *names: str) -> bool:
        return all(self.hash(name).status is DownloadStatus.COMPLETED for name in names)

    def folder(self, name: str) -> Path:
        return self.root / name / "org--tiny"

    def same(self, name: str) -> bool:
        original = self.hub.models[MODEL]
        return all((self.folder(name) / path.name).read_bytes() == path.read_bytes() for path in original.iterdir())

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.nodes[name].peering.port}"

    def token(self, name: str) -> str:
        return self.nodes[name].peering.swarm.token


@pytest.fixture
def cluster(tmp_path: Path, redis: Redis, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(swarm, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr("exo_celery.models.receive.WAITS_SECONDS", (0.05,) * 7)
    original = write_model(tmp_path / "original", layers=8, hidden=64, shards=8)
    with Hub({MODEL: original}) as hub:
        made = Cluster(tmp_path, redis, namespace, hub)
        yield made
        for node in made.nodes.values():
            node.stop()


def size(cluster: Cluster) -> int:
    return sum(path.stat().st_size for path in cluster.hub.models[MODEL].iterdir())


def ask(url: str, token: str = "", method: str = "GET", **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(url, method=method, headers={"Authorization": f"Bearer {token}", **headers})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


# What a peer serves


def test_the_hubs_own_client_gets_a_whole_model_from_a_node(cluster: Cluster) -> None:
    shutil.copytree(cluster.hub.models[MODEL], cluster.folder("a"))
    cluster.start("a")
    got = snapshot_download(
        MODEL, endpoint=cluster.url("a"), token=cluster.token("a"), cache_dir=cluster.root / "their-cache"
    )
    assert scan(Path(got)).complete
    for path in cluster.hub.models[MODEL].iterdir():
        assert (Path(got) / path.name).read_bytes() == path.read_bytes()


def test_the_key_is_asked_for(cluster: Cluster) -> None:
    shutil.copytree(cluster.hub.models[MODEL], cluster.folder("a"))
    cluster.start("a")
    url = f"{cluster.url('a')}/{MODEL}/resolve/main/config.json"
    assert ask(url, cluster.token("a"))[0] == 200
    for wrong in ("", "x", cluster.token("a")[:-1], cluster.token("a") + "0", "ä"):
        assert ask(url, wrong.encode("utf-8").decode("latin-1"))[0] == 401
    assert ask(f"{cluster.url('a')}/api/models/{MODEL}")[0] == 401


def test_another_cluster_secret_is_another_key(cluster: Cluster) -> None:
    one = cluster.start("a", cluster_secret="one")
    two = cluster.start("b", cluster_secret="two")
    assert len({one.peering.swarm.token, two.peering.swarm.token, "one", "two"}) == 4


@pytest.mark.parametrize(
    "path",
    [
        f"/{MODEL}/resolve/main/../../secret",
        f"/{MODEL}/resolve/main/..%2F..%2Fsecret",
        f"/{MODEL}/resolve/main/%2Fetc%2Fpasswd",
        f"/{MODEL}/resolve/main/.manifest.json",
        f"/{MODEL}/resolve/main/link.json",
        f"/{MODEL}/resolve/0123/config.json",
        "/..%2F../x/resolve/main/config.json",
        "/org/other/resolve/main/config.json",
        "/api/models/org/other",
        f"/api/models/{MODEL}/revision/0123",
        "/",
        "/etc/passwd",
    ],
)
def test_nothing_but_the_models_own_files_is_served(cluster: Cluster, path: str) -> None:
    shutil.copytree(cluster.hub.models[MODEL], cluster.folder("a"))
    (cluster.root / "secret").write_text("{}")
    (cluster.folder("a") / "link.json").symlink_to(cluster.root / "secret")
    cluster.start("a")
    status, body = ask(cluster.url("a") + path, cluster.token("a"))
    assert status == 404
    assert b"{}" not in body


def test_ranges_and_heads_are_answered(cluster: Cluster) -> None:
    original = cluster.hub.models[MODEL]
    shutil.copytree(original, cluster.folder("a"))
    cluster.start("a")
    url, token = f"{cluster.url('a')}/{MODEL}/resolve/main/config.json", cluster.token("a")
    data = (original / "config.json").read_bytes()
    assert ask(url, token, Range="bytes=10-") == (206, data[10:])
    assert ask(url, token, Range="bytes=10-19") == (206, data[10:20])
    assert ask(url, token, Range=f"bytes={len(data)}-")[0] == 416
    assert ask(url, token, method="HEAD") == (200, b"")


def test_a_model_that_is_still_coming_is_served_file_by_file_and_never_listed(cluster: Cluster) -> None:
    shutil.copytree(cluster.hub.models[MODEL], cluster.folder("a"))
    files = {p.name: FileEntry(size=p.stat().st_size, sha256="0" * 64) for p in cluster.folder("a").iterdir()}
    write_manifest(cluster.folder("a"), Manifest(model=MODEL, revision="abc", files=files))
    part = cut(cluster.folder("a") / "model-00003-of-00008.safetensors", 5000)
    part.rename(part.with_name(part.name + ".partial"))
    cluster.start("a")
    url, token = cluster.url("a"), cluster.token("a")
    assert ask(f"{url}/api/models/{MODEL}", token)[0] == 404
    whole = json.loads(ask(f"{url}/api/models/{MODEL}/whole/abc", token)[1])["files"]
    assert len(whole) == len(files) - 1
    assert ask(f"{url}/{MODEL}/resolve/abc/model-00001-of-00008.safetensors", token)[0] == 200
    assert ask(f"{url}/{MODEL}/resolve/abc/{part.name}", token)[0] == 404


def test_while_a_model_is_hashed_others_are_asked_to_come_again(cluster: Cluster) -> None:
    shutil.copytree(cluster.hub.models[MODEL], cluster.folder("a"))
    shelf = cluster.start("a").peering.shelf
    url = f"{cluster.url('a')}/api/models/{MODEL}"
    with shelf._listing:
        assert ask(url, cluster.token("a"))[0] == 503
    assert ask(url, cluster.token("a"))[0] == 200


# What nodes take from each other


def test_three_nodes_and_the_hub_serves_the_model_once(cluster: Cluster) -> None:
    cluster.hub.rate = 400_000
    for name in ("a", "b", "c"):
        cluster.start(name)
    cluster.wish("a", "b", "c")
    cluster.until(lambda: cluster.completed("a", "b", "c"), 60)
    assert all(cluster.same(name) for name in ("a", "b", "c"))
    assert cluster.hub.sent_bytes() <= 1.05 * size(cluster)


def test_a_node_that_comes_later_asks_the_hub_for_nothing(cluster: Cluster) -> None:
    cluster.start("a")
    cluster.wish("a")
    cluster.until(lambda: cluster.completed("a"))
    before = len(cluster.hub.seen)
    cluster.start("b")
    cluster.wish("b")
    cluster.until(lambda: cluster.completed("b"))
    assert cluster.same("b")
    assert len(cluster.hub.seen) == before
    assert cluster.hash("b").revision == cluster.hash("a").revision


def test_offline_a_model_comes_from_a_peer_and_the_hub_is_never_asked(cluster: Cluster) -> None:
    shutil.copytree(cluster.hub.models[MODEL], cluster.folder("a"))
    cluster.start("a", offline=True)
    cluster.start("b", offline=True)
    cluster.wish("b")
    cluster.until(lambda: cluster.completed("b"))
    assert cluster.hub.seen == []


def test_offline_a_model_that_nobody_has_fails_at_once_with_what_to_do(cluster: Cluster) -> None:
    cluster.start("b", offline=True)
    began = time.monotonic()
    cluster.wish("b")
    cluster.until(lambda: cluster.hash("b").status is DownloadStatus.FAILED, 2)
    assert time.monotonic() - began < 2
    assert "Put its complete folder org--tiny into" in cluster.hash("b").error
    assert cluster.hub.seen == []


@pytest.mark.parametrize("fault", [drop(after=10_000), wrong_bytes()])
def test_a_peer_that_fails_in_the_middle_is_replaced_by_the_hub(
    cluster: Cluster, fault: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "FILES_AT_ONCE", 1)
    with Hub(cluster.hub.models) as peer:
        pretend_whole(cluster, "p", peer)
        peer.when("/whole/", tells(cluster), times=999)
        peer.when("/resolve/", fault, times=999)
        cluster.start("b")
        cluster.wish("b")
        cluster.until(lambda: cluster.completed("b"))
        assert cluster.same("b")
        assert peer.sent_bytes() > 0


def test_a_peer_that_dies_costs_only_what_it_did_not_send(cluster: Cluster) -> None:
    with Hub(cluster.hub.models) as peer:
        pretend_whole(cluster, "p", peer)
        peer.when("/whole/", tells(cluster), times=999)
        peer.when("/resolve/", drop(after=20_000), times=999)
        cluster.start("b")
        cluster.wish("b")
        cluster.until(lambda: cluster.completed("b"))
        assert cluster.same("b")
        assert peer.sent_bytes() + cluster.hub.sent_bytes() <= 1.1 * size(cluster)


def test_the_hubs_token_is_never_shown_to_a_peer(cluster: Cluster) -> None:
    with Hub(cluster.hub.models) as peer:
        pretend_whole(cluster, "p", peer)
        peer.when("/whole/", tells(cluster), times=999)
        peer.when("/00001-of", drop(after=0), times=99)
        cluster.hub.token = "hf_secret"
        cluster.start("b", hf_token="hf_secret")
        cluster.wish("b")
        cluster.until(lambda: cluster.completed("b"))
        assert len(peer.seen) > 3
        assert all("hf_secret" not in json.dumps(seen.headers) for seen in peer.seen)


def test_a_claim_on_a_file_lapses_with_a_hub_that_stalls(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exo_celery.store.keys.FETCHING_TTL", 1)
    stuck = "model-00002-of-00008.safetensors"
    cluster.hub.when(f"/{stuck}", silent(), times=1)
    for name in ("a", "b"):
        cluster.start(name)
    cluster.wish("a")
    cluster.until(lambda: cluster.hub.asked(f"/{stuck}"))
    cluster.wish("b")
    cluster.until(lambda: cluster.completed("b"))
    assert cluster.hash("a").status is DownloadStatus.ONGOING, "its own request is still waiting"


def pretend_whole(cluster: Cluster, name: str, peer: Hub) -> None:
    """Let a look-alike hub stand in the records as a node that has the whole model."""
    cluster.alive(name, peer.server.server_port)
    whole = Download(node=name, model=MODEL, status=DownloadStatus.COMPLETED, completed_files=12, total_files=12)
    store.write(cluster.redis, cluster.ns, whole)


def tells(cluster: Cluster) -> Callable[..., None]:
    """Answer which files are whole, which the hub's own protocol has no word for: all."""
    names = [path.name for path in cluster.hub.models[MODEL].iterdir()]
    return lambda handler, file, start, seen: handler.answer(seen, 200, json.dumps({"files": names}).encode())


def test_bandwidth_caps_are_kept(cluster: Cluster) -> None:
    shutil.copytree(cluster.hub.models[MODEL], cluster.folder("a"))
    cluster.start("a", upload_limit=size(cluster))
    cluster.start("b")
    cluster.start("c", download_limit=size(cluster) // 2)
    began = time.monotonic()
    cluster.wish("b")
    cluster.until(lambda: cluster.completed("b"))
    assert time.monotonic() - began > 0.8
    cluster.nodes["a"].stop()
    began = time.monotonic()
    cluster.wish("c")
    cluster.until(lambda: cluster.completed("c"))
    assert time.monotonic() - began > 1.6


def test_an_instance_that_ends_takes_its_download_with_it(cluster: Cluster) -> None:
    cluster.hub.rate = 20_000
    node = cluster.start("a")
    wish = Wish(action="download", by="inst-1", since=client.now(cluster.redis))
    store.set_wish(cluster.redis, cluster.ns, "a", MODEL, wish)
    node.work_off()
    cluster.until(lambda: cluster.hash("a").status is DownloadStatus.ONGOING and cluster.hash("a").downloaded_bytes)
    assert store.drop_wishes_by(cluster.redis, cluster.ns, "inst-1") == ["a"]
    node.work_off()
    cluster.until(lambda: cluster.hash("a").status is DownloadStatus.PENDING, 5)
    assert cluster.hash("a").downloaded_bytes > 0


def test_an_idle_node_has_no_thread_that_looks_at_anything(cluster: Cluster) -> None:
    node = cluster.start("a")
    cluster.wish("a")
    cluster.until(lambda: cluster.completed("a"))
    cluster.until(lambda: node.minder is None, 5)
    assert node.transfers == {}
