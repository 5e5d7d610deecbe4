"""One rank of a tensor ring over many tiny models, one after another: `python tensor_rank.py RANK WORLD NAME...`.

It prints the port of its links, reads all ranks' addresses from a line of its input, and joins. Rank 0 prints what it
found of each model as a line of JSON: the largest difference of logits, and the rows' tokens.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

import mlx.core as mx
import numpy as np
from test_ring_architectures import logits_of, run_rows
from tiny_architectures import LAYERS, build

from exo_celery.runner.group import Group, form
from exo_celery.runner.load import Shard
from exo_celery.runner.parallel import Boundary
from exo_celery.runner.protocol import ShardSpec
from exo_celery.runner.ring import link_up, listen
from exo_celery.runner.slices import cut
from exo_celery.runner.step import Sampled, Step
from exo_celery.runner.tensor import TensorRing

KEY = b"a key for tests"


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def give_up(error: BaseException) -> NoReturn:
    sys.stderr.write(f"{error}\n")
    os._exit(1)


class Led:
    """The whole ring as one executor."""

    def __init__(self, ring: TensorRing) -> None:
        self.ring = ring

    @property
    def rows(self) -> tuple[int, ...]:
        return self.ring.executor.rows

    def run(self, step: Step) -> Sampled:
        return Sampled(choices=self.ring.lead(step))


def measured(ring: TensorRing, model: Any, expected: np.ndarray) -> dict[str, Any]:
    """Return what rank 0 finds; the others only compute along."""
    difference = float(np.abs(logits_of(model) - expected).max())
    tokens = run_rows([Led(ring)])
    ring.lead(Step(drop=ring.executor.rows))
    return {"difference": difference, "tokens": tokens}


def cut_shard(name: str, rank: int, world: int) -> Shard:
    model, boundary = build(name), Boundary()
    return Shard(model, {}, boundary, 0, cut(model, rank, world, boundary))


def main(rank: int, world: int, names: list[str]) -> None:
    spec = ShardSpec(
        instance="test", epoch=1, rank=rank, world=world, model_dir=Path(), start_layer=0, end_layer=LAYERS,
        n_layers=LAYERS, sharding="tensor",
    )  # fmt: skip
    listener = listen(spec, KEY, 1)
    say(str(listener.port))
    peers = sys.stdin.readline().split()
    (neighbours,) = link_up(spec, KEY, listener, peers, 1)
    expected = {name: logits_of(build(name)) for name in names} if rank == 0 else {}
    shards = {name: cut_shard(name, rank, world) for name in names}  # before there is a group, as a runner does
    group: Group = form(spec, neighbours, mx.float32, give_up)
    for name, shard in shards.items():
        ring = TensorRing(spec, shard, group, threading.Lock(), give_up)
        if rank == 0:
            say(json.dumps({"name": name} | measured(ring, shard.model, expected[name])))
            continue
        logits_of(shard.model)
        ring.follow()
        while ring.executor.rows:
            ring.follow()
    if rank > 0:
        sys.stdin.read()  # whoever goes first takes the others along


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
