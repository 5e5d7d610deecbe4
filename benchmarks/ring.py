"""A ring of ranks, pinned to one core each, against mlx-lm's own batch generation in one process on one core.

`python benchmarks/ring.py [--sequences N …] [--cuts LAYER …] [--rounds N] [--json FILE]`: decoded tokens per second
while all sequences run, in interleaved rounds; the median of their ratios with the spread. mlx-lm gets a float32 copy
of the model, which is what runners compute with on x86; one sequence is compared with its generate. `--cuts` are the
layers at which ranks begin, of 30: `19` weighs the head, as heavy as eight layers, for two ranks.
"""

import argparse
import contextlib
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from servers import float32_copy

from exo_celery import settings
from exo_celery.models.demo import ensure_demo_model
from exo_celery.runner.client import EngineClient
from exo_celery.runner.process import RunnerProcess
from exo_celery.runner.protocol import ControlEvent, Delta, Event, Exited, Failed, Finished, Loaded, Ready, ShardSpec

T = TypeVar("T")
TOKENS = 64
LAYERS = 30
READY_SECONDS = 120
# The ring's speed over that of one process, by sequences.
LEAST_RATIO = {8: 1.0, 16: 1.2, 32: 1.45, 64: 1.8}
CORES = sorted(os.sched_getaffinity(0))


class Ranks:
    """The runners of a ring on this machine, each on a core of its own, and what they say."""

    def __init__(self, model_dir: Path, cuts: list[int], slots: int) -> None:
        self.events: queue.SimpleQueue[tuple[int, ControlEvent]] = queue.SimpleQueue()
        starts, ends = [0, *cuts], [*cuts, LAYERS]
        self.runners = []
        for rank in range(len(starts)):
            spec = ShardSpec(
                instance="benchmark", epoch=1, rank=rank, world=len(starts), model_dir=model_dir, threads=1,
                start_layer=starts[rank], end_layer=ends[rank], n_layers=LAYERS, slots=slots,
            )  # fmt: skip
            self.runners.append(RunnerProcess.start(spec, b"benchmark", partial(self.hear, rank)))
            os.sched_setaffinity(self.runners[-1].pid, {CORES[rank % len(CORES)]})  # its threads are yet to come

    def hear(self, rank: int, event: ControlEvent) -> None:
        self.events.put((rank, event))

    def wait(self, kind: type[T]) -> list[T]:
        """Wait until each rank has said this; return it by rank."""
        said: dict[int, T] = {}
        while len(said) < len(self.runners):
            rank, event = self.events.get(timeout=READY_SECONDS)
            if isinstance(event, Failed | Exited):
                raise SystemExit(f"rank {rank}: {event}")
            if isinstance(event, kind):
                said[rank] = event
        return [said[rank] for rank in sorted(said)]


@contextlib.contextmanager
def ring(model_dir: Path, cuts: list[int], slots: int) -> Iterator[tuple[EngineClient, list[int]]]:
    """Form a ring on this machine; yield a client and the bytes of weights by rank."""
    ranks = Ranks(model_dir, cuts, slots)
    try:
        loaded = ranks.wait(Loaded)
        for runner in ranks.runners:
            runner.link([f"127.0.0.1:{one.port}" for one in loaded])
        ranks.wait(Ready)
        yield EngineClient(ranks.runners[0].socket_path), [one.weights_bytes for one in loaded]
    finally:
        for runner in ranks.runners:
            runner.stop()


def prompts(count: int) -> list[list[int]]:
    """Return prompts of a few lengths that do not begin alike."""
    return [[(7 * i + 13 * row + 3) % 40_000 + 100 for i in range(32 + row % 5)] for row in range(count)]


class Stream:
    """What comes of one request, and when; one thread hears them all, since the ranks need the cores."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.tokens: list[int] = []
        self.ended = threading.Event()

    def hear(self, event: Event | None) -> None:
        if isinstance(event, Delta) and event.token_ids:
            self.times.append(time.perf_counter())
            self.tokens += event.token_ids
        elif event is None or isinstance(event, Finished):
            self.ended.set()


def ring_speed(client: EngineClient, sequences: int) -> tuple[float, list[int]]:
    """Return decoded tokens per second while all sequences run, and the first one's tokens."""
    streams = [Stream() for _ in range(sequences)]
    with contextlib.ExitStack() as asked:
        for number, (stream, prompt) in enumerate(zip(streams, prompts(sequences), strict=True)):
            request = {"prompt": prompt, "max_tokens": TOKENS}
            asked.enter_context(client.asking(str(number), request, stream.hear))
        for stream in streams:
            stream.ended.wait()
    begin = max(stream.times[0] for stream in streams)
    end = min(stream.times[-1] for stream in streams)
    count = sum(begin < at <= end for stream in streams for at in stream.times)
    return count / (end - begin), streams[0].tokens


def reference_speed(process: "subprocess.Popen[str]", sequences: int) -> tuple[float, list[int]]:
    """Return decoded tokens per second of mlx-lm in one process, and the tokens where there is one sequence."""
    asked = {"prompt": prompts(1)[0]} if sequences == 1 else {"prompts": prompts(sequences)}
    process.stdin.write(json.dumps(asked | {"max_tokens": TOKENS}) + "\n")
    process.stdin.flush()
    answer = json.loads(process.stdout.readline())
    if sequences > 1:
        return answer["tokens"] / answer["seconds"], []
    return (len(answer["tokens"]) - 1) / answer["seconds"], answer["tokens"]


def measure(model_dir: Path, wanted: argparse.Namespace) -> dict[str, Any]:
    """Run the rounds."""
    cases = []
    with contextlib.ExitStack() as running:
        copy = running.enter_context(float32_copy(model_dir))
        command = [sys.executable, str(Path(__file__).with_name("reference.py")), str(copy), "1", "mlx-lm"]
        reference = running.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        os.sched_setaffinity(reference.pid, CORES[:1])
        whole = json.loads(reference.stdout.readline())["weights_bytes"]
        client, held = running.enter_context(ring(model_dir, wanted.cuts, max(wanted.sequences)))
        for sequences in wanted.sequences:
            rounds = []
            for _ in range(wanted.rounds):
                (alone, expected), (ringed, got) = reference_speed(reference, sequences), ring_speed(client, sequences)
                same = expected == got if expected else None
                rounds.append({"one_process_tps": alone, "ring_tps": ringed, "same_tokens": same})
            ratios = sorted(r["ring_tps"] / r["one_process_tps"] for r in rounds)
            spread = {"decode_ratio": statistics.median(ratios), "decode_ratio_spread": [ratios[0], ratios[-1]]}
            cases.append({"sequences": sequences, "rounds": rounds} | spread)
            show(cases[-1])
        reference.stdin.close()
    return {"cuts": wanted.cuts, "cases": cases, "weights_share": [part / whole for part in held]}


def show(case: dict[str, Any]) -> None:
    """Print what came of so many sequences."""
    for r in case["rounds"]:
        same = "" if r["same_tokens"] is None else f"  same tokens: {r['same_tokens']}"
        print(
            f"{case['sequences']:>4} at once: one process {r['one_process_tps']:7.1f}, ring {r['ring_tps']:7.1f}{same}"
        )
    low, high = case["decode_ratio_spread"]
    least = LEAST_RATIO.get(case["sequences"])
    verdict = "" if least is None else f", wanted >= {least}: {'met' if case['decode_ratio'] >= least else 'MISSED'}"
    print(f"     ratio {case['decode_ratio']:.2f} ({low:.2f}-{high:.2f}){verdict}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, nargs="+", default=[8, 16, 32, 64], help="how many at once")
    parser.add_argument("--cuts", type=int, nargs="*", default=[19], help="first layers of all ranks but the first")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    wanted = parser.parse_args()
    result = measure(ensure_demo_model(settings.load().cache_dir, lambda *_: None), wanted)
    print("weights held: " + ", ".join(f"{share:.3f}" for share in result["weights_share"]))
    if wanted.json:
        wanted.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
