"""The question that a snapshot asks."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from exo_celery.errors import InvalidRequestError
from exo_celery.placement.question import NOTHING, Links, NodeFacts, Question, downloaded_fraction
from exo_celery.placement.snapshot_fields import MOST_COUNT, Fields, wrong
from exo_celery.records.download import DownloadStatus
from exo_celery.records.instance import PlacementRequest
from exo_celery.records.model import BACKENDS, ModelCard

SHARDINGS: Final[Mapping[str, Any]] = {
    "Pipeline": "pipeline",
    "Tensor": "tensor",
    "auto": "auto",
    "pipeline": "pipeline",
    "tensor": "tensor",
}
MOST_LAYERS: Final = 100_000


def read_question(fields: Fields) -> Question:
    """Read a snapshot.

    Raises:
        InvalidRequestError: `param` names the field that is wrong.
    """
    model = fields.object("model")
    card = read_card(model)
    fractions = read_downloads(fields.object("downloads", {}), card.id)
    nodes = read_nodes(fields, fractions)
    request = read_request(fields, card)
    if request.sharding == "tensor" and "hidden_size" not in model.values:
        raise InvalidRequestError("is missing: tensor sharding must know it", param=f"{model.path}hidden_size")
    return Question(card, request, nodes, read_links(fields, [node.id for node in nodes]))


def read_card(model: Fields) -> ModelCard:
    """Read the model's card. Its id may be any text: nothing is stored under it."""
    return ModelCard.model_construct(
        id=model.text("id"),
        storage_bytes=model.number("storage_bytes"),
        n_layers=model.number("n_layers", least=1, most=MOST_LAYERS),
        hidden_size=model.number("hidden_size", 1, least=1, most=MOST_COUNT),
        num_key_value_heads=model.number("num_key_value_heads", None, least=1, most=MOST_COUNT),
        supports_tensor=model.flag("supports_tensor"),
        backends=model.texts("backends", BACKENDS),
        embedding_bytes=model.number("embedding_bytes", None),
        head_bytes=model.number("head_bytes", None),
        layers_bytes=model.number("layers_bytes", None),
        kv_bytes_per_token=model.number("kv_bytes_per_token", None),
    )


def read_request(fields: Fields, card: ModelCard) -> PlacementRequest:
    """Read what is asked of the cluster."""
    return PlacementRequest.model_construct(
        model=card.id,
        sharding=SHARDINGS[fields.one_of("sharding", SHARDINGS, "Pipeline")],
        instance_meta=fields.one_of("instance_meta", ("MlxRing", "MlxJaccl"), "MlxRing"),
        min_nodes=fields.number("min_nodes", 1, least=1, most=MOST_COUNT),
        max_nodes=fields.number("max_nodes", None, least=1, most=MOST_COUNT),
        required_nodes=fields.texts("required_nodes"),
        excluded_nodes=fields.texts("excluded_nodes"),
        prefer=fields.one_of("prefer", ("most-downloaded", "ready-soonest"), "most-downloaded"),
        labels=fields.texts("labels"),
        context_tokens=fields.number("context_tokens", None, least=1),
        concurrency=fields.number("concurrency", 1, least=1, most=MOST_COUNT),
    )


def read_nodes(fields: Fields, fractions: Mapping[str, Fraction]) -> tuple[NodeFacts, ...]:
    """Read the nodes, in order of id."""
    nodes: dict[str, NodeFacts] = {}
    for entry in fields.objects("nodes"):
        name = entry.text("id")
        if name in nodes:
            raise wrong(f"{entry.path}id", "an id of its own", name)
        if "ram_available_bytes" not in entry.values:
            raise InvalidRequestError(
                "is missing: write bytes, or null for a node that has not reported",
                param=f"{entry.path}ram_available_bytes",
            )
        nodes[name] = NodeFacts(
            id=name,
            available_bytes=entry.number("ram_available_bytes", None),
            reserved_bytes=entry.number("reserved_bytes", 0),
            backends=entry.texts("backends", BACKENDS),
            rdma_enabled=entry.flag("rdma_enabled"),
            labels=entry.texts("labels"),
            fraction=fractions.get(name, NOTHING),
            download_bps=entry.speed("download_bps"),
            load_bps=entry.speed("load_bps"),
        )
    return tuple(nodes[name] for name in sorted(nodes))


def read_downloads(fields: Fields, model: str) -> dict[str, Fraction]:
    """Read how much of the model each node has; the first entry that speaks of it counts."""
    found: dict[str, Fraction] = {}
    for node, value in fields.values.items():
        one = not isinstance(value, list)
        for entry in [fields.object(node)] if one else fields.objects(node):
            fraction = read_fraction(entry)
            if entry.text("model", model) == model:
                found.setdefault(node, fraction)
    return found


def read_fraction(entry: Fields) -> Fraction:
    """Read one download."""
    if "status" not in entry.values:
        raise InvalidRequestError("is missing: write the download's status", param=f"{entry.path}status")
    status = entry.one_of("status", [status.value for status in DownloadStatus], "")
    return downloaded_fraction(status, entry.number("downloaded", 0), entry.number("total", 0))


def read_links(fields: Fields, ids: list[str]) -> Links:
    """Read the links: the word "all", or edges, directed unless they say otherwise."""
    if fields.values.get("edges") == "all":
        return Links.every(len(ids))
    edges = fields.get("edges", list, 'a list of edges or the word "all"')
    undirected = fields.flag("undirected")
    known = frozenset(ids)
    plain: list[tuple[str, str]] = []
    fast: list[tuple[str, str]] = []
    for at, edge in enumerate(edges):
        start, end, words = read_edge(edge, f"{fields.path}edges[{at}]", known)
        links = fast if "rdma" in words else plain
        links.append((start, end))
        if undirected or "both" in words:
            links.append((end, start))
    return Links.of(ids, plain, fast)


def read_edge(edge: Any, path: str, known: frozenset[str]) -> tuple[str, str, set[str]]:
    """Read one edge: two node ids, then "both" or "rdma"."""
    if not isinstance(edge, list) or len(edge) < 2 or not all(isinstance(part, str) for part in edge):
        raise wrong(path, 'two node ids, then maybe "both" or "rdma"', edge)
    start, end, *words = edge
    for at, name in enumerate((start, end)):
        if name not in known:
            raise wrong(f"{path}[{at}]", "the id of one of the nodes", name)
    if start == end:
        raise wrong(path, "a link between two different nodes", edge)
    for at, word in enumerate(words, 2):
        if word not in ("both", "rdma"):
            raise wrong(f"{path}[{at}]", '"both" or "rdma"', word)
    return start, end, set(words)
