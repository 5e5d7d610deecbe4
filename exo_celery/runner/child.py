"""The life of a runner's child once BLAS is in place: load, link, warm up, then compute until the end."""

import queue
import socket
import threading
from collections.abc import Callable
from typing import NoReturn

import psutil

from exo_celery.errors import ExoError, RunnerError
from exo_celery.runner.engine import Engine
from exo_celery.runner.executor import batches, trims
from exo_celery.runner.lanes import Follower, Lane
from exo_celery.runner.load import load_shard
from exo_celery.runner.memory import token_budget
from exo_celery.runner.meter import Meter, report
from exo_celery.runner.prefix import PrefixIndex
from exo_celery.runner.protocol import Loaded, Loading, Measured, Ready, ShardSpec
from exo_celery.runner.ring import Ring, link_up, listen
from exo_celery.runner.step import Admission, Chunk, Step
from exo_celery.runner.text import Text
from exo_celery.runner.wire import Connection

WARM_ROW = -1
WARM_TOKENS = (0,) * 9


def run(
    spec: ShardSpec,
    ring_key: bytes,
    control: Connection,
    peers: "queue.SimpleQueue[tuple[str, ...]]",
    callers: socket.socket,
    give_up: Callable[[ExoError], NoReturn],
) -> None:
    """Be a rank; returns never. `callers` is where serving workers connect; `give_up` may be called by any thread.

    Raises:
        ExoError: the shard cannot be loaded, or the ring broke.
    """
    if spec.sharding != "pipeline":
        raise RunnerError("tensor parallel rings are not supported: ask for pipeline sharding")
    total = spec.end_layer - spec.start_layer
    shard = load_shard(spec, lambda done: control.send(Loading(layers=done, total_layers=total)))
    text = Text(spec.model_dir, shard.config, shard.context_length) if spec.is_first else None
    slots, lanes = (spec.slots, spec.world) if batches(shard) else (1, 1)
    listener = listen(spec, ring_key, lanes)
    control.send(Loaded(port=listener.port if listener else 0, weights_bytes=shard.weights_bytes))
    neighbours = link_up(spec, ring_key, listener, peers.get(), lanes)
    computing = threading.Lock()
    rings = [Ring(spec, shard, each, computing, give_up) for each in neighbours]
    ready = Ready(slots=slots, context_length=shard.context_length)
    if text is None:
        follow(rings, lambda: control.send(ready))
        return
    for ring in rings:
        warm_up(ring)
    budget = token_budget(shard.config, total, spec.memory_bytes or psutil.virtual_memory().available)
    exact = not trims(shard)
    meter = Meter()
    led = [
        Lane(number, ring, PrefixIndex(budget.kept // lanes, exact=exact), meter) for number, ring in enumerate(rings)
    ]
    for lane in led:
        lane.start()
    engine = Engine(led, text, slots, budget.live, meter)
    engine.serve(callers)
    control.send(ready)
    report(meter, engine.load, lambda figures: control.send(Measured(figures=figures)))


def follow(rings: list[Ring], on_ready: Callable[[], None]) -> None:
    """Follow each lane in a thread of its own; ready with the first step of any."""
    stepped = threading.Event()
    followers = [Follower(number, ring, stepped.set) for number, ring in enumerate(rings)]
    for follower in followers:
        follower.start()
    stepped.wait()
    on_ready()
    followers[0].join()


def warm_up(ring: Ring) -> None:
    """Run one row through prefill and decode, so that the first request finds everything in place."""
    admission = Admission(row=WARM_ROW, tokens=WARM_TOKENS)
    ring.lead(Step(admit=(admission,), prefill=Chunk(rows=(WARM_ROW,), count=len(WARM_TOKENS) - 1)))
    ring.lead(Step(drop=(WARM_ROW,)))
