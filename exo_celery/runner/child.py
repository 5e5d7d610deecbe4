"""The life of a runner's child once BLAS is in place: load, link, warm up, then compute until the end."""

import logging
import queue
import socket
from collections.abc import Callable
from typing import NoReturn

from exo_celery.errors import ExoError, RunnerError
from exo_celery.runner.engine import Engine
from exo_celery.runner.load import load_shard
from exo_celery.runner.protocol import Connection, Loaded, Loading, Ready, ShardSpec
from exo_celery.runner.ring import Ring, listen
from exo_celery.runner.step import Admission, Chunk, Step
from exo_celery.runner.text import Text

log = logging.getLogger(__name__)

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
    listener = listen(spec, ring_key)
    control.send(Loaded(port=listener.port if listener else 0, weights_bytes=shard.weights_bytes))
    ring = Ring(spec, shard, ring_key, listener, peers.get(), give_up)
    slots = spec.slots if ring.executor.batches else 1
    if text is None:
        ring.follow()
        control.send(Ready(slots=slots, context_length=shard.context_length))
        while True:
            ring.follow()
    warm_up(ring)
    engine = Engine(ring, text, slots)
    engine.serve(callers)
    control.send(Ready(slots=slots, context_length=shard.context_length))
    engine.run()


def warm_up(ring: Ring) -> None:
    """Run one row through prefill and decode, so that the first request finds everything in place."""
    admission = Admission(row=WARM_ROW, tokens=WARM_TOKENS)
    ring.lead(Step(admit=(admission,), prefill=Chunk(rows=(WARM_ROW,), count=len(WARM_TOKENS) - 1)))
    ring.lead(Step(drop=(WARM_ROW,)))
