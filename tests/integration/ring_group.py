"""Rings of real runner processes on this machine, and small checkpoints for them to hold."""

import contextlib
import functools
import itertools
import json
import queue
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from exo_celery import settings
from exo_celery.models.demo import ensure_demo_model
from exo_celery.runner.client import EngineClient
from exo_celery.runner.process import RunnerProcess
from exo_celery.runner.protocol import (
    ControlEvent,
    Delta,
    Event,
    Exited,
    Failed,
    Finished,
    Loaded,
    Ready,
    Refused,
    ShardSpec,
)

KEY = b"a key for tests"
READY_SECONDS = 90
TINY_LAYERS = 6
TINY_CONTEXT = 256


@functools.cache
def demo_model() -> Path:
    """Return the demo model's folder, made once per machine."""
    return ensure_demo_model(settings.load().cache_dir, lambda *_: None)


def tiny_model(folder: Path, **changes: Any) -> Path:
    """Write a llama with six narrow layers of random weights and the demo model's tokenizer."""
    folder.mkdir()
    for path in demo_model().glob("*"):
        if path.name.startswith(("tokenizer", "special_tokens", "chat_template")):
            shutil.copy(path, folder)
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": TINY_LAYERS,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": 49152,
        "max_position_embeddings": TINY_CONTEXT,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
    } | changes
    (folder / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(11)
    shapes = {"model.embed_tokens.weight": (49152, 64), "model.norm.weight": (64,)}
    for i in range(TINY_LAYERS):
        at = f"model.layers.{i}."
        shapes |= {at + "input_layernorm.weight": (64,), at + "post_attention_layernorm.weight": (64,)}
        shapes |= {at + f"self_attn.{name}_proj.weight": (64, 64) for name in "qo"}
        shapes |= {at + f"self_attn.{name}_proj.weight": (32, 64) for name in "kv"}
        shapes |= {at + f"mlp.{name}_proj.weight": (128, 64) for name in ("gate", "up")}
        shapes |= {at + "mlp.down_proj.weight": (64, 128)}
    weights = {
        name: (np.ones(shape) if len(shape) == 1 else random.normal(0, 0.3, shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    return folder


class Group:
    """The runners of one ring and what they said. `cuts` are where a pipeline is cut, or all layers for each rank."""

    def __init__(self, model_dir: Path, cuts: tuple[int, ...] | list[tuple[int, int]], **changes: Any) -> None:
        spans = cuts if isinstance(cuts, list) else list(itertools.pairwise(cuts))
        self.world = len(spans)
        self.events: queue.SimpleQueue[tuple[int, ControlEvent]] = queue.SimpleQueue()
        self.said: list[tuple[int, ControlEvent]] = []
        self.loaded: dict[int, Loaded] = {}
        self.ready: dict[int, Ready] = {}
        self.exited: dict[int, int] = {}
        common = {"instance": "test", "epoch": 3, "world": self.world, "model_dir": model_dir, "threads": 1}
        self.specs = [
            ShardSpec(rank=rank, start_layer=start, end_layer=end, n_layers=spans[-1][1], **common | changes)
            for rank, (start, end) in enumerate(spans)
        ]
        self.runners = [RunnerProcess.start(spec, KEY, functools.partial(self.heard, spec.rank)) for spec in self.specs]

    def heard(self, rank: int, event: ControlEvent) -> None:
        self.events.put((rank, event))

    def next_event(self) -> tuple[int, ControlEvent]:
        """Wait for what a runner says next, and note it."""
        rank, event = self.events.get(timeout=READY_SECONDS)
        self.said.append((rank, event))
        match event:
            case Loaded():
                self.loaded[rank] = event
            case Ready():
                self.ready[rank] = event
            case Exited(returncode=returncode):
                self.exited[rank] = returncode
        return rank, event

    def wait_loaded(self) -> None:
        """Wait until every rank has its weights."""
        while len(self.loaded) < self.world:
            self.expect_life(*self.next_event())

    def link(self) -> None:
        """Form the ring."""
        addresses = [f"127.0.0.1:{self.loaded[rank].port}" for rank in range(self.world)]
        for runner in self.runners:
            runner.link(addresses)

    def wait_ready(self) -> None:
        """Wait until the ring has run its first step."""
        while len(self.ready) < self.world:
            self.expect_life(*self.next_event())

    def wait_exited(self) -> None:
        """Wait until all processes are gone."""
        while len(self.exited) < self.world:
            self.next_event()

    @staticmethod
    def expect_life(rank: int, event: ControlEvent) -> None:
        assert not isinstance(event, Failed | Exited), f"rank {rank}: {event}"

    def stop(self) -> None:
        """End what still runs."""
        for runner in self.runners:
            runner.stop()


@contextlib.contextmanager
def ring(
    model_dir: Path, cuts: tuple[int, ...] | list[tuple[int, int]], **changes: Any
) -> Iterator[tuple[Group, EngineClient]]:
    """Form a ring, yield it with a client, end it."""
    group = Group(model_dir, cuts, **changes)
    try:
        group.wait_loaded()
        group.link()
        group.wait_ready()
        client = EngineClient(group.runners[0].socket_path)
        yield group, client
        client.close()
    finally:
        group.stop()


def run(client: EngineClient, name: str, **request: Any) -> tuple[list[int], Event]:
    """Run a request; return its token ids and its last event."""
    tokens: list[int] = []
    for event in client.generate(name, request):
        if isinstance(event, Delta):
            tokens += event.token_ids
    assert isinstance(event, Finished | Refused)
    return tokens, event


def run_all(client: EngineClient, requests: dict[str, dict[str, Any]]) -> dict[str, list[int]]:
    """Run requests at the same time; return the token ids of each."""
    found: dict[str, list[int]] = {}

    def one(name: str) -> None:
        found[name] = run(client, name, **requests[name])[0]

    threads = [threading.Thread(target=one, args=(name,)) for name in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
