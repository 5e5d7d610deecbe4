"""Model cards: the catalog. A model is known when it has a card."""

from redis import Redis

from exo_celery.errors import ModelNotFoundError
from exo_celery.records.model import ModelCard
from exo_celery.store import keys
from exo_celery.store.hashes import decode, encode


def save(redis: Redis, ns: str, card: ModelCard) -> None:
    """Write a card; the catalog knows the model from then on."""
    with redis.pipeline() as pipe:
        pipe.hset(keys.model(ns, card.id), mapping=encode(card))
        pipe.sadd(keys.models(ns), card.id)
        pipe.execute()


def ids(redis: Redis, ns: str) -> set[str]:
    """Return the ids of all known models."""
    return set(redis.smembers(keys.models(ns)))


def every(redis: Redis, ns: str) -> list[ModelCard]:
    """Return all cards by id, in two round trips."""
    known = sorted(ids(redis, ns))
    with redis.pipeline(transaction=False) as pipe:
        for model in known:
            pipe.hgetall(keys.model(ns, model))
        answers = pipe.execute()
    return [decode(ModelCard, fields) for fields in answers if fields]


def get(redis: Redis, ns: str, model: str) -> ModelCard:
    """Return a model's card.

    Raises:
        ModelNotFoundError: no such card; the message lists what is known.
    """
    fields = redis.hgetall(keys.model(ns, model))
    if not fields:
        raise missing(redis, ns, model)
    return decode(ModelCard, fields)


def need(redis: Redis, ns: str, model: str) -> None:
    """Let a known model pass, without reading its card; errors as of `get`."""
    if not redis.sismember(keys.models(ns), model):
        raise missing(redis, ns, model)


def missing(redis: Redis, ns: str, model: str) -> ModelNotFoundError:
    """Return the error of a model that has no card, with those that do."""
    known = sorted(ids(redis, ns))
    listed = ", ".join(known[:10]) + (f" and {len(known) - 10} more" if len(known) > 10 else "")
    return ModelNotFoundError(
        f"model {model!r} is not known here; known: {listed or 'none yet'}. Add one with POST /api/models",
        param="model",
    )
