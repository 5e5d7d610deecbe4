"""mlx-lm's own generate in one process, with the weights and the BLAS of a runner: what others are measured by.

`python benchmarks/reference.py MODEL_DIR THREADS` reads JSON lines `{"prompt": [ids], "max_tokens": n}` and answers
each with `{"tokens": [ids], "seconds": first to last token, "first_seconds": until the first}`; before that it
prints `{"weights_bytes": n}`.
"""

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from exo_celery import settings
from exo_celery.runner import blas


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


def main(model_dir: Path, threads: int) -> None:
    """Answer lines until the input ends."""
    blas.load(settings.load().cache_dir, threads)
    # After BLAS: these import MLX.
    load = importlib.import_module("exo_celery.runner.load")
    protocol = importlib.import_module("exo_celery.runner.protocol")
    n_layers = json.loads((model_dir / "config.json").read_text())["num_hidden_layers"]
    spec = protocol.ShardSpec(
        instance="reference", epoch=0, rank=0, world=1, model_dir=model_dir,
        start_layer=0, end_layer=n_layers, n_layers=n_layers,
    )  # fmt: skip
    shard = load.load_shard(spec, lambda done: None)
    end = shard.config.get("eos_token_id", ())
    end_tokens = frozenset([end] if isinstance(end, int) else end)
    print(json.dumps({"weights_bytes": shard.weights_bytes}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        answered = answer_batch(shard.model, asked) if "prompts" in asked else answer(shard.model, end_tokens, asked)
        print(json.dumps(answered), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
