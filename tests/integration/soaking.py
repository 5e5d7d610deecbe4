"""A soak: many requests of random shape, some given up, some callers gone; what the others say, and what is held after.

    PYTHONPATH=tests/integration python tests/integration/soaking.py --requests 500 --ranks 2

On the demo model. It prints how the memory grew since the first hundred requests, which answers differ when they are
asked again alone, and how close the two likeliest tokens were where they do; it exits with 1 if anything is not right.
"""

import argparse
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click
import psutil
import pytest
from ring_group import Group, demo_model, ring, run

from exo_celery.errors import RunnerError
from exo_celery.runner.client import EngineClient
from exo_celery.runner.heap import IDLE_SECONDS
from exo_celery.runner.protocol import Delta, Finished

CALLERS = 24
SLOTS = 20
LAYERS = 30  # of the demo model
SYSTEM = [(17 * i) % 900 + 40 for i in range(60)]
TIE = 1e-3  # between the logits of the two likeliest tokens: the last bits, which company changes, may decide
GROWTH = 1.05

Answered = list[tuple[dict[str, Any], list[int]]]


def random_request(dice: random.Random) -> dict[str, Any]:
    """Return a prompt of some length, with or without a shared beginning, to be answered greedily or by a seed."""
    prompt = [dice.randrange(40, 900) for _ in range(dice.choice((1, 2, 9, 30, 120)))]
    request: dict[str, Any] = {"prompt": dice.choice(([], SYSTEM)) + prompt, "max_tokens": dice.randint(1, 24)}
    if dice.random() < 0.3:
        request |= {"temperature": 0.8, "seed": dice.randrange(1000), "top_p": dice.choice((1.0, 0.9))}
    return request


def take_some(client: EngineClient, name: str, request: dict[str, Any], events: int) -> None:
    """Give a request up after some events, in one of the two ways in which callers do."""
    stream = client.generate(name, request)
    for _, event in zip(range(events), stream, strict=False):
        if isinstance(event, Finished):
            return
    if events % 2:
        client.cancel(name)
        list(stream)
    stream.close()


def gone(group: Group, request: dict[str, Any]) -> None:
    """Be a caller that asks and hangs up."""
    client = EngineClient(group.runners[0].socket_path)
    stream = client.generate("gone", request)
    next(stream)
    client.close()
    with pytest.raises(RunnerError):
        list(stream)


def soak(group: Group, client: EngineClient, dice: random.Random, count: int) -> Answered:
    """Run so many requests from two dozen threads; return those that ran to their end, with their tokens."""
    requests = [(number, dice.random(), random_request(dice)) for number in range(count)]

    def one(number: int, fate: float, request: dict[str, Any]) -> tuple[dict[str, Any], list[int]] | None:
        if fate < 0.3:
            return take_some(client, str(number), request, int(fate * 30))
        if fate < 0.4:
            return gone(group, request)
        return request, run(client, str(number), **request)[0]

    with ThreadPoolExecutor(CALLERS) as pool:
        ended = list(pool.map(lambda item: one(*item), requests))
    return [each for each in ended if each is not None]


def resident(group: Group) -> int:
    """Return what the runners hold once they have been idle for a while and given back what is free."""
    time.sleep(2 * IDLE_SECONDS + 2)  # steps of the last seconds begin the wait for an idle runner anew
    return sum(psutil.Process(runner.pid).memory_info().rss for runner in group.runners)


def fill_slots(client: EngineClient) -> None:
    """See that all slots are free: as many streams as there are slots get going together."""
    streams = [client.generate(f"slot-{i}", {"prompt": [50 + i], "max_tokens": 100}) for i in range(SLOTS)]
    for stream in streams:
        while not isinstance(next(stream), Delta):
            pass
    for stream in streams:
        stream.close()


def different(client: EngineClient, answered: Answered) -> list[float]:
    """Ask again, one at a time; for each other answer return how far apart the likeliest tokens were where it parts."""
    gaps = []
    for request, tokens in answered:
        again, said = run(client, "again", **request | {"logprobs": 2})
        if again != tokens:
            parting = next((i for i, (one, two) in enumerate(zip(again, tokens, strict=False)) if one != two), 0)
            likeliest, next_one = said.logprobs[parting].top
            gaps.append(likeliest.logprob - next_one.logprob)
    return gaps


def main() -> int:
    """Soak as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("requests", 500), ("warm-up", 100), ("ranks", 2), ("seed", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    dice = random.Random(asked.seed)
    cuts = tuple(LAYERS * rank // asked.ranks for rank in range(asked.ranks + 1))
    with ring(demo_model(), cuts, slots=SLOTS) as (group, client):
        soak(group, client, dice, asked.warm_up)
        before = resident(group)
        answered = soak(group, client, dice, asked.requests)
        growth = resident(group) / before
        fill_slots(client)
        gaps = different(client, answered)
    click.echo(f"{asked.requests} requests, {asked.ranks} ranks, {len(answered)} ran to their end; all slots are free")
    click.echo(f"resident {before / 1e6:.0f} MB after {asked.warm_up} requests, {(growth - 1) * 100:+.1f} % after all")
    click.echo(f"{len(gaps)} answers differ when asked alone; gaps of the two likeliest logits there: {gaps}")
    return 0 if growth < GROWTH and all(gap < TIE for gap in gaps) else 1


if __name__ == "__main__":
    sys.exit(main())
