"""Run the Lua scripts of this folder: each is one atomic transition, and the prelude gives them all Redis time."""

from functools import cache
from importlib.resources import files
from typing import Any

from redis import Redis


@cache
def source(name: str) -> str:
    """Return a script's text, the prelude before it."""
    folder = files("exo_celery.store")
    return "\n".join((folder / f"{part}.lua").read_text() for part in ("prelude", name))


def run(redis: Redis, script: str, keys: list[str], args: list[Any]) -> Any:
    """Run a script on a client or add it to a pipeline; Redis keeps it by its digest."""
    return redis.register_script(source(script))(keys=keys, args=args, client=redis)
