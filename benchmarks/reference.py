"""mlx-lm's own generate in one process, with the BLAS of a runner: what others are measured by.

`python benchmarks/reference.py MODEL_DIR THREADS LOADER` reads JSON lines `{"prompt": [ids], "max_tokens": n}` and
answers each with `{"tokens": [ids], "seconds": first to last token, "first_seconds": until the first}`; with
`prompts` instead it generates for all of them at once. Before that it prints `{"weights_bytes": n}`. LOADER is
`runner` for weights as a runner lays them out, `mlx-lm` for those of the folder.
"""

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from exo_celery import settings
from exo_celery.runner import blas
from exo_celery.runner.protocol import ShardSpec


def answer(model: Any, end_tokens: frozenset[int], line: dict[str, Any]) -> dict[str, Any]:
    """Generate greedily, to the end token or max_tokens."""
    mx = importlib.import_module("mlx.core")
    generate = importlib.import_module("mlx_lm.generate")
    tokens, times = [], []
    asked = time.perf_counter()
    for token, _ in generate.generate_step(mx.array(line["prompt"]), model, max_tokens=line["max_tokens"]):
        times.append(time.perf_counter())
        if int(token) in end_tokens:
            break
        tokens.append(int(token))
    return {"tokens": tokens, "seconds": times[-1] - times[0], "first_seconds": times[0] - asked}


def answer_batch(model: Any, line: dict[str, Any]) -> dict[str, Any]:
    """Generate for many prompts at once; count what comes while all of them run."""
    generate = importlib.import_module("mlx_lm.generate")
    count = len(line["prompts"])
    batch = generate.BatchGenerator(
        model, max_tokens=line["max_tokens"], completion_batch_size=count, prefill_batch_size=count
    )
    rows = batch.insert(line["prompts"])
    begun, tokens, started, ended = set(), 0, 0.0, 0.0
    while responses := batch.next_generated():
        if len(begun) == len(rows):
            tokens += len(responses)
            ended = time.perf_counter()
        else:
            begun |= {response.uid for response in responses}
            started = time.perf_counter()
    batch.close()
    return {"tokens": tokens, "seconds": ended - started}


def load_as_runner(model_dir: Path) -> tuple[Any, dict[str, Any]]:
    """Load a model as a runner does that holds all of it."""
    load = importlib.import_module("exo_celery.runner.load")
    n_layers = json.loads((model_dir / "config.json").read_text())["num_hidden_layers"]
    spec = ShardSpec(
        instance="reference", epoch=0, rank=0, world=1, model_dir=model_dir,
        start_layer=0, end_layer=n_layers, n_layers=n_layers,
    )  # fmt: skip
    shard = load.load_shard(spec, lambda done: None)
    return shard.model, shard.config


def load_as_mlx_lm(model_dir: Path) -> tuple[Any, dict[str, Any]]:
    """Load a model as mlx-lm does."""
    loaded: tuple[Any, dict[str, Any]] = importlib.import_module("mlx_lm.utils").load_model(model_dir)
    return loaded


def main(model_dir: Path, threads: int, loader: str) -> None:
    """Answer lines until the input ends."""
    blas.load(settings.load().cache_dir, threads)  # before MLX is imported
    model, config = {"runner": load_as_runner, "mlx-lm": load_as_mlx_lm}[loader](model_dir)
    end = config.get("eos_token_id", ())
    end_tokens = frozenset([end] if isinstance(end, int) else end)
    weights_bytes = importlib.import_module("mlx.core").get_active_memory()
    print(json.dumps({"weights_bytes": weights_bytes}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        answered = answer_batch(model, asked) if "prompts" in asked else answer(model, end_tokens, asked)
        print(json.dumps(answered), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
