"""Claims: which node fetches a file from the hub, so that the others take it from that node afterwards."""

from redis import Redis

from exo_celery.store import keys


def claim(redis: Redis, ns: str, model: str, file: str, node: str) -> bool:
    """Claim a file for a node, or keep the node's claim; False while another node has it."""
    key = keys.fetching(ns, model, file)
    if redis.set(key, node, nx=True, ex=keys.FETCHING_TTL):
        return True
    return redis.get(key) == node and bool(redis.expire(key, keys.FETCHING_TTL))


def give_up(redis: Redis, ns: str, model: str, file: str, node: str) -> None:
    """Leave a file to the others; a claim that has lapsed and is another's now stays."""
    key = keys.fetching(ns, model, file)
    if redis.get(key) == node:
        redis.delete(key)
