"""A ring of two ranks against mlx-lm's generate in one process, one BLAS thread per process, one sequence.

`python benchmarks/ring.py [--json FILE]`: interleaved rounds, the median of their ratios with the spread, and the
weights that each rank holds.
"""

import argparse
import contextlib
import json
import queue
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from exo_celery import settings
from exo_celery.models.demo import ensure_demo_model
from exo_celery.runner.client import EngineClient
from exo_celery.runner.process import RunnerProcess
from exo_celery.runner.protocol import ControlEvent, Delta, Exited, Failed, Loaded, Ready, ShardSpec

ROUNDS = 5
TOKENS = 64
LAYERS = 30
CUTS = (0, 15, 30)
PROMPT = [(7 * i + 3) % 40_000 + 100 for i in range(32)]
READY_SECONDS = 120


@contextlib.contextmanager
def ring(model_dir: Path) -> Iterator[tuple[EngineClient, list[int]]]:
    """Form a ring of two on this machine; yield a client and the bytes of weights by rank."""
    events: queue.SimpleQueue[tuple[int, ControlEvent]] = queue.SimpleQueue()
    specs = [
        ShardSpec(instance="benchmark", epoch=1, rank=rank, world=2, model_dir=model_dir, threads=1,
                  start_layer=CUTS[rank], end_layer=CUTS[rank + 1], n_layers=LAYERS)
        for rank in range(2)
    ]  # fmt: skip
    runners = [RunnerProcess.start(s, b"benchmark", lambda e, rank=s.rank: events.put((rank, e))) for s in specs]
    try:
        loaded: dict[int, Loaded] = {}
        ready = 0
        while ready < 2:
            rank, event = events.get(timeout=READY_SECONDS)
            match event:
                case Loaded():
                    loaded[rank] = event
                    if len(loaded) == 2:
                        for runner in runners:
                            runner.link([f"127.0.0.1:{loaded[r].port}" for r in range(2)])
                case Ready():
                    ready += 1
                case Failed() | Exited():
                    raise SystemExit(f"rank {rank}: {event}")
        yield EngineClient(runners[0].socket_path), [loaded[r].weights_bytes for r in range(2)]
    finally:
        for runner in runners:
            runner.stop()


def ring_speed(client: EngineClient, name: str) -> tuple[float, list[int]]:
    """Return decoded tokens per second, and the tokens."""
    times, tokens = [], []
    for event in client.generate(name, {"prompt": PROMPT, "max_tokens": TOKENS}):
        if isinstance(event, Delta) and event.token_ids:
            times.append(time.perf_counter())
            tokens += event.token_ids
    return (len(times) - 1) / (times[-1] - times[0]), tokens


def reference_speed(process: "subprocess.Popen[str]") -> tuple[float, list[int]]:
    """Return decoded tokens per second of mlx-lm in one process, and the tokens."""
    process.stdin.write(json.dumps({"prompt": PROMPT, "max_tokens": TOKENS}) + "\n")
    process.stdin.flush()
    answer = json.loads(process.stdout.readline())
    return (len(answer["tokens"]) - 1) / answer["seconds"], answer["tokens"]


def measure(model_dir: Path) -> dict[str, object]:
    """Run the rounds."""
    command = [sys.executable, str(Path(__file__).with_name("reference.py")), str(model_dir), "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reference:
        whole = json.loads(reference.stdout.readline())["weights_bytes"]
        with ring(model_dir) as (client, held):
            rounds = []
            for number in range(ROUNDS):
                (alone, expected), (ringed, got) = reference_speed(reference), ring_speed(client, str(number))
                rounds.append({"one_process_tps": alone, "ring_tps": ringed, "same_tokens": expected == got})
        reference.stdin.close()
    ratios = sorted(r["ring_tps"] / r["one_process_tps"] for r in rounds)
    return {
        "rounds": rounds,
        "decode_ratio": statistics.median(ratios),
        "decode_ratio_spread": [ratios[0], ratios[-1]],
        "weights_share": [part / whole for part in held],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    wanted = parser.parse_args()
    result = measure(ensure_demo_model(settings.load().cache_dir, lambda *_: None))
    print(f"{'round':>5} {'one process tok/s':>18} {'ring of 2 tok/s':>16} {'same tokens':>12}")
    for number, r in enumerate(result["rounds"]):
        print(f"{number:>5} {r['one_process_tps']:>18.2f} {r['ring_tps']:>16.2f} {r['same_tokens']!s:>12}")
    low, high = result["decode_ratio_spread"]
    print(f"decode ratio: median {result['decode_ratio']:.3f} (from {low:.3f} to {high:.3f}), wanted >= 0.8")
    print("weights held: " + ", ".join(f"{share:.3f}" for share in result["weights_share"]) + ", wanted <= 0.62")
    if wanted.json:
        wanted.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
