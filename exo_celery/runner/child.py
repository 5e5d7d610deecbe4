"""The life of a runner's child once BLAS is in place: load, link, warm up, then compute until the end."""

import queue
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NoReturn

import psutil

from exo_celery.errors import ExoError
from exo_celery.runner.cores import Cores, cores_of
from exo_celery.runner.dispatcher import FILL, FILL_ALONE, Dispatcher
from exo_celery.runner.engine import Engine
from exo_celery.runner.executor import batches, trims
from exo_celery.runner.group import form
from exo_celery.runner.heap import give_back_when_idle
from exo_celery.runner.lanes import Follower, Lane
from exo_celery.runner.load import Shard, load_shard
from exo_celery.runner.memory import token_budget
from exo_celery.runner.meter import Meter, report
from exo_celery.runner.prefix import PrefixIndex
from exo_celery.runner.protocol import Loaded, Loading, Measured, Ready, ShardSpec
from exo_celery.runner.ring import Neighbours, Ring, link_up, listen
from exo_celery.runner.step import Admission, Chunk, Step
from exo_celery.runner.tensor import TensorRing
from exo_celery.runner.text import Text
from exo_celery.runner.wire import Connection

WARM_ROW = -1
WARM_TOKENS = (0,) * 9
MOST_UNUSED = 32  # kept prompts that nobody has come back to yet, as most never will


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
    total = spec.end_layer - spec.start_layer
    shard = load_shard(spec, lambda done: control.send(Loading(layers=done, total_layers=total)))
    text = Text(spec.model_dir, shard.config, shard.context_length) if spec.is_first else None
    cores = cores_of(spec)
    slots, lanes = (spec.slots, lanes_of(spec, cores)) if batches(shard) else (1, 1)
    listener = listen(spec, ring_key, lanes)
    control.send(Loaded(port=listener.port if listener else 0, weights_bytes=shard.weights_bytes))
    rings = join(spec, shard, link_up(spec, ring_key, listener, peers.get(), lanes), cores, give_up)
    ready = Ready(slots=slots, context_length=shard.context_length)
    if text is None:
        follow(rings, lambda: control.send(ready))
    for ring in rings:
        warm_up(ring)
    budget = token_budget(
        shard.config,
        -(-total // spec.world) if spec.sliced else total,
        shard.item_bytes,
        spec.memory_bytes or psutil.virtual_memory().available,
    )
    exact = not trims(shard)
    meter = Meter()
    led = [
        Lane(number, ring, PrefixIndex(budget.kept // lanes, -(-MOST_UNUSED // lanes), exact=exact), meter)
        for number, ring in enumerate(rings)
    ]
    for lane in led:
        lane.start()
    fill = FILL_ALONE if spec.world == 1 else FILL
    engine = Engine(Dispatcher(led, slots, budget.live, fill, cores.share), text, meter)
    engine.serve(callers)
    control.send(ready)
    threading.Thread(target=give_back_when_idle, args=(meter.busy,), name="heap", daemon=True).start()
    report(meter, engine.load, lambda figures: control.send(Measured(figures=figures)))


def lanes_of(spec: ShardSpec, cores: Cores) -> int:
    """Return how many lanes a ring has: one per rank of a pipeline, else as many as compute side by side."""
    if spec.world > 1:
        return 1 if spec.sliced else spec.world
    return cores.lanes


def join(
    spec: ShardSpec,
    shard: Shard,
    neighbours: list[Neighbours],
    cores: Cores,
    give_up: Callable[[ExoError], NoReturn],
) -> Sequence[Ring | TensorRing]:
    """Take this rank's place in the ring, once for each lane.

    Raises:
        ExoError: the ranks cannot form a group.
    """
    if shard.slices is not None:
        group = form(spec, neighbours[0], shard.slices.dtype, give_up)
        return [TensorRing(spec, shard, group, threading.Lock(), give_up)]
    computing = threading.Lock() if spec.world > 1 else nullcontext()
    return [Ring(spec, shard, each, computing, cores, give_up) for each in neighbours]


def follow(rings: Sequence[Ring | TensorRing], on_ready: Callable[[], None]) -> NoReturn:
    """Follow each lane in a thread of its own; ready with the first step of any. Returns never."""
    stepped = threading.Event()
    followers = [Follower(number, ring, stepped.set) for number, ring in enumerate(rings)]
    for follower in followers:
        follower.start()
    stepped.wait()
    on_ready()
    give_back_when_idle(stepped)


def warm_up(ring: Ring | TensorRing) -> None:
    """Run one row through prefill and decode, so that the first request finds everything in place."""
    admission = Admission(row=WARM_ROW, tokens=WARM_TOKENS)
    chunk = Chunk(rows=(WARM_ROW,), count=len(WARM_TOKENS), completes=True)
    (first,) = ring.lead(Step(admit=(admission,), prefill=chunk))
    ring.lead(Step(tokens=(first.token,)))
    ring.lead(Step(drop=(WARM_ROW,)))
