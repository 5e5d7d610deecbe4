"""The outbox: ended jobs whose end is still to be told, to a continuation (`then`) or to a webhook.

An entry is written by the script that ends the job, and removed once it was told: told at least once, therefore.
"""

from dataclasses import dataclass
from typing import Final

from redis import Redis

from exo_celery.store import keys
from exo_celery.store.scripts import run

THEN: Final = "then"
WEBHOOK: Final = "webhook"
LEASES: Final = {THEN: keys.THEN_LEASE, WEBHOOK: keys.WEBHOOK_LEASE}


@dataclass(frozen=True)
class Entry:
    """A job whose end is to be told; it is the taker's until a time that stands for it."""

    what: str
    job_id: str
    until: str


def take(redis: Redis, ns: str, what: str) -> Entry | None:
    """Return the entry that has been due for longest; it is ours for one lease. None: nothing is due."""
    found = run(redis, "outbox_take", [keys.outbox(ns, what)], [LEASES[what]])
    return Entry(what, *found) if found else None


def done(redis: Redis, ns: str, entry: Entry, **facts: str | int | float) -> None:
    """Remove an entry that was told, or given up; `facts` go into the job's record."""
    settle(redis, ns, entry, "", facts)


def later(redis: Redis, ns: str, entry: Entry, seconds: float, **facts: str | int | float) -> None:
    """Try again after so many seconds; `facts` go into the job's record."""
    settle(redis, ns, entry, f"{seconds:.3f}", facts)


def settle(redis: Redis, ns: str, entry: Entry, due: str, facts: dict[str, str | int | float]) -> None:
    """Write what became of an entry, if it is still ours."""
    pairs = [part for pair in facts.items() for part in pair]
    where = [keys.outbox(ns, entry.what), keys.job(ns, entry.job_id)]
    run(redis, "outbox_settle", where, [entry.job_id, entry.until, due, *pairs])
