"""Downloads: a hash per node and model that the node's agent alone writes, and the wishes that others leave it."""

import logging
from collections.abc import Collection, Sequence
from typing import Final

from pydantic import ValidationError
from redis import Redis

from exo_celery.records.base import checked_model_id
from exo_celery.records.download import Download, DownloadStatus, Wish
from exo_celery.store import keys
from exo_celery.store.hashes import decode, encode
from exo_celery.store.scripts import run

log = logging.getLogger(__name__)
IN_THE_KEY: Final = frozenset({"node", "model"})
USER: Final = "user"


def write(redis: Redis, ns: str, download: Download) -> None:
    """Write one download; its `updated_at` is the caller's reading of Redis time."""
    with redis.pipeline() as pipe:
        put(pipe, ns, download)
        pipe.execute()


def put(pipe: Redis, ns: str, download: Download) -> None:
    """Add the writing of one download to a pipeline."""
    pipe.hset(keys.download(ns, download.node, download.model), mapping=encode(download, without=IN_THE_KEY))
    pipe.sadd(keys.downloads(ns, download.node), download.model)


def progress(redis: Redis, ns: str, download: Download) -> None:
    """Write how far a running download is: one HSET."""
    redis.hset(keys.download(ns, download.node, download.model), mapping=encode(download, without=IN_THE_KEY))


def replace_report(redis: Redis, ns: str, node: str, found: Sequence[Download]) -> list[Download]:
    """Write what a node's disks and running downloads say, in three round trips, and return what now stands.

    A model that is gone from the disks becomes pending with 0 bytes while the catalog knows it, else its hash goes. The
    reason of a failed attempt stays until the next attempt or until the files are complete.
    """
    with redis.pipeline(transaction=False) as pipe:
        pipe.smembers(keys.downloads(ns, node))
        pipe.smembers(keys.models(ns))
        pipe.time()
        stored_models, catalog, (seconds, micros) = pipe.execute()
    stored = of_node(redis, ns, node, stored_models)
    report = {one.model: one for one in found}
    for model in stored_models - report.keys() & catalog:
        report[model] = Download(node=node, model=model)
    standing = [settle(report[model], stored.get(model), seconds + micros / 1e6) for model in sorted(report)]
    with redis.pipeline() as pipe:
        for one in standing:
            put(pipe, ns, one)
        for model in stored_models - report.keys():
            pipe.delete(keys.download(ns, node, model))
            pipe.srem(keys.downloads(ns, node), model)
        pipe.execute()
    return standing


def settle(found: Download, stored: Download | None, at: float) -> Download:
    """Return what to write of a download: what was found, with the length that was known if it is not any more.

    Why the last attempt failed stays.
    """
    if stored is None:
        return found.evolve(updated_at=at)
    found = found.evolve(total_bytes=found.total_bytes or stored.total_bytes, updated_at=at)
    failed = stored.status is DownloadStatus.FAILED and stored.attempted
    if not failed or found.status is not DownloadStatus.PENDING:
        return found
    return found.evolve(status=stored.status, error=stored.error, source=stored.source)


def of_node(redis: Redis, ns: str, node: str, models: Collection[str]) -> dict[str, Download]:
    """Return these models' downloads on a node, in one round trip."""
    with redis.pipeline(transaction=False) as pipe:
        for model in models:
            pipe.hgetall(keys.download(ns, node, model))
        return {model: read(node, model, f) for model, f in zip(models, pipe.execute(), strict=True) if f}


def of_model(redis: Redis, ns: str, model: str, nodes: Sequence[str]) -> dict[str, Download]:
    """Return one model's downloads by node, of these nodes, in one round trip."""
    with redis.pipeline(transaction=False) as pipe:
        for node in nodes:
            pipe.hgetall(keys.download(ns, node, model))
        return {node: read(node, model, f) for node, f in zip(nodes, pipe.execute(), strict=True) if f}


def every(redis: Redis, ns: str, nodes: Sequence[str]) -> list[Download]:
    """Return all downloads of these nodes, by node and model, in two round trips."""
    with redis.pipeline(transaction=False) as pipe:
        for node in nodes:
            pipe.smembers(keys.downloads(ns, node))
        held = [(node, model) for node, models in zip(nodes, pipe.execute(), strict=True) for model in sorted(models)]
    with redis.pipeline(transaction=False) as pipe:
        for node, model in held:
            pipe.hgetall(keys.download(ns, node, model))
        found = zip(held, pipe.execute(), strict=True)
    return sorted((read(*where, f) for where, f in found if f), key=lambda one: (one.node, one.model))


def get(redis: Redis, ns: str, node: str, model: str) -> Download | None:
    """Return one model on one node, or None when the node says nothing of it."""
    return of_model(redis, ns, model, [node]).get(node)


def read(node: str, model: str, fields: dict[str, str]) -> Download:
    """Read a download from its hash; node and model stand in the key."""
    return decode(Download, {**fields, "node": node, "model": model})


def set_wish(redis: Redis, ns: str, node: str, model: str, wish: Wish) -> None:
    """Leave a wish. A user's replaces any other; an instance's is added only where there is none."""
    if wish.by == USER:
        redis.hset(keys.wanted(ns, node), model, wish.model_dump_json())
    else:
        redis.hsetnx(keys.wanted(ns, node), model, wish.model_dump_json())


def wishes(redis: Redis, ns: str, node: str) -> dict[str, Wish]:
    """Return what is wanted of the models on a node; what cannot be read as a wish is dropped."""
    found: dict[str, Wish] = {}
    for model, text in redis.hgetall(keys.wanted(ns, node)).items():
        try:
            found[checked_model_id(model)] = Wish.model_validate_json(text)
        except ValueError as error:
            log.warning("dropping what was wanted of %r on %s: %s", model, node, error)
            drop_exactly(redis, ns, node, model, text)
    return found


def drop_wish(redis: Redis, ns: str, node: str, model: str) -> bool:
    """Withdraw the wish to fetch or verify a model on a node; tell whether there was one. A deletion stays."""
    text = redis.hget(keys.wanted(ns, node), model)
    wish = parse(text)
    return wish is not None and wish.action != "delete" and drop_exactly(redis, ns, node, model, text)


def fulfil(redis: Redis, ns: str, node: str, model: str, wish: Wish) -> bool:
    """Remove a wish that was worked off; one that was renewed meanwhile stays, and False says so."""
    text = redis.hget(keys.wanted(ns, node), model)
    return parse(text) == wish and drop_exactly(redis, ns, node, model, text)


def drop_exactly(redis: Redis, ns: str, node: str, model: str, text: str) -> bool:
    """Remove a wish if it is still the one that was read."""
    return bool(run(redis, "wish_drop", [keys.wanted(ns, node)], [model, text]))


def drop_wishes_by(redis: Redis, ns: str, by: str, keep: Collection[str] = ()) -> list[str]:
    """Withdraw what an instance wanted, except on the nodes to keep; return the nodes where that changed something."""
    nodes = sorted(redis.smembers(keys.nodes(ns)) - set(keep))
    with redis.pipeline(transaction=False) as pipe:
        for node in nodes:
            pipe.hgetall(keys.wanted(ns, node))
        held = zip(nodes, pipe.execute(), strict=True)
    theirs = [(node, model, text) for node, wanted in held for model, text in wanted.items() if is_by(text, by)]
    return sorted({node for node, model, text in theirs if drop_exactly(redis, ns, node, model, text)})


def is_by(text: str, by: str) -> bool:
    """Tell whose wish this is."""
    wish = parse(text)
    return wish is not None and wish.by == by


def parse(text: str | None) -> Wish | None:
    """Read a wish; None for no wish, or none that can be read."""
    try:
        return Wish.model_validate_json(text or "")
    except ValidationError:
        return None
