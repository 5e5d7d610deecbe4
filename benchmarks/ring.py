"""A ring of two ranks against mlx-lm in one process, one BLAS thread per process.

`python benchmarks/ring.py [--sequences N] [--cut LAYER] [--json FILE]`: interleaved rounds, the median of their ratios
with the spread, and the weights that each rank holds. One sequence is compared with mlx-lm's generate, several with
its batch generation, in tokens per second while all of them run.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from exo_celery import settings
from exo_celery.models.demo import ensure_demo_model
from exo_celery.runner.client import EngineClient
from exo_celery.runner.process import RunnerProcess
from exo_celery.runner.protocol import ControlEvent, Delta, Exited, Failed, Loaded, Ready, ShardSpec

ROUNDS = 5
TOKENS = 64
LAYERS = 30
CUT = 15
READY_SECONDS = 120


@contextlib.contextmanager
def ring(model_dir: Path, cut: int, sequences: int) -> Iterator[tuple[EngineClient, list[int]]]:
    """Form a ring of two on this machine; yield a client and the bytes of weights by rank."""
    events: queue.SimpleQueue[tuple[int, ControlEvent]] = queue.SimpleQueue()
    specs = [
        ShardSpec(instance="benchmark", epoch=1, rank=rank, world=2, model_dir=model_dir, threads=1,
                  start_layer=(0, cut)[rank], end_layer=(cut, LAYERS)[rank], n_layers=LAYERS, slots=sequences)
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


def prompts(count: int) -> list[list[int]]:
    """Return prompts of a few lengths that do not begin alike."""
    return [[(7 * i + 13 * row + 3) % 40_000 + 100 for i in range(32 + row % 5)] for row in range(count)]


def stream(client: EngineClient, name: str, prompt: list[int]) -> tuple[list[float], list[int]]:
    """Return the times and the ids of a request's tokens."""
    times, tokens = [], []
    for event in client.generate(name, {"prompt": prompt, "max_tokens": TOKENS}):
        if isinstance(event, Delta) and event.token_ids:
            times.append(time.perf_counter())
            tokens += event.token_ids
    return times, tokens


def ring_speed(client: EngineClient, sequences: int) -> tuple[float, list[int]]:
    """Return decoded tokens per second while all sequences run, and the first one's tokens."""
    with ThreadPoolExecutor(sequences) as pool:
        streams = list(pool.map(lambda each: stream(client, str(each[0]), each[1]), enumerate(prompts(sequences))))
    begin = max(times[0] for times, _ in streams)
    end = min(times[-1] for times, _ in streams)
    count = sum(begin < at <= end for times, _ in streams for at in times)
    return count / (end - begin), streams[0][1]


def reference_speed(process: "subprocess.Popen[str]", sequences: int) -> tuple[float, list[int]]:
    """Return decoded tokens per second of mlx-lm in one process, and the tokens where there is one sequence."""
    asked = {"prompt": prompts(1)[0]} if sequences == 1 else {"prompts": prompts(sequences)}
    process.stdin.write(json.dumps(asked | {"max_tokens": TOKENS}) + "\n")
    process.stdin.flush()
    answer = json.loads(process.stdout.readline())
    if sequences > 1:
        return answer["tokens"] / answer["seconds"], []
    return (len(answer["tokens"]) - 1) / answer["seconds"], answer["tokens"]


def measure(model_dir: Path, sequences: int, cut: int) -> dict[str, object]:
    """Run the rounds."""
    command = [sys.executable, str(Path(__file__).with_name("reference.py")), str(model_dir), "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reference:
        whole = json.loads(reference.stdout.readline())["weights_bytes"]
        with ring(model_dir, cut, sequences) as (client, held):
            rounds = []
            for _ in range(ROUNDS):
                (alone, expected), (ringed, got) = reference_speed(reference, sequences), ring_speed(client, sequences)
                same = expected == got if expected else None
                rounds.append({"one_process_tps": alone, "ring_tps": ringed, "same_tokens": same})
        reference.stdin.close()
    ratios = sorted(r["ring_tps"] / r["one_process_tps"] for r in rounds)
    return {
        "sequences": sequences,
        "cut": cut,
        "rounds": rounds,
        "decode_ratio": statistics.median(ratios),
        "decode_ratio_spread": [ratios[0], ratios[-1]],
        "weights_share": [part / whole for part in held],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=1, help="how many at once (1)")
    parser.add_argument("--cut", type=int, default=CUT, help=f"layers of the first rank, of {LAYERS} ({CUT})")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    wanted = parser.parse_args()
    result = measure(ensure_demo_model(settings.load().cache_dir, lambda *_: None), wanted.sequences, wanted.cut)
    print(f"{'round':>5} {'one process tok/s':>18} {'ring of 2 tok/s':>16} {'same tokens':>12}")
    for number, r in enumerate(result["rounds"]):
        print(f"{number:>5} {r['one_process_tps']:>18.2f} {r['ring_tps']:>16.2f} {r['same_tokens']!s:>12}")
    low, high = result["decode_ratio_spread"]
    print(f"decode ratio: median {result['decode_ratio']:.3f} (from {low:.3f} to {high:.3f})")
    print("weights held: " + ", ".join(f"{share:.3f}" for share in result["weights_share"]))
    if wanted.json:
        wanted.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
