"""POST to first token through the whole stack against mlx-lm in one process: what REST, Celery and the runner add.

`python benchmarks/first_token.py [--json FILE]`: one node, the same prompt, weights, BLAS and threads; interleaved
rounds, the median of the differences with the spread.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from servers import THREADS, stack
from transformers import AutoTokenizer

from exo_celery import settings
from exo_celery.models.demo import MODEL, ensure_demo_model

ROUNDS = 5
ASKED_PER_ROUND = 4


def question(number: int) -> list[dict[str, str]]:
    """Return a chat that no kept prompt begins like: what is measured is the way, not the memory."""
    told = {"role": "system", "content": f"{number} is your lucky number."}
    return [told, {"role": "user", "content": "What is the capital of France?"}]


def served_seconds(http: httpx.Client, number: int) -> float:
    """Return the seconds from POST to the first chunk that carries text."""
    body = {"model": MODEL, "messages": question(number), "stream": True, "max_tokens": 4, "temperature": 0}
    started = time.perf_counter()
    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                return time.perf_counter() - started
    raise SystemExit(f"no token came: status {answer.status_code}")


def alone_seconds(reference: "subprocess.Popen[str]", prompt: list[int]) -> float:
    """Return the seconds to the first token in one process."""
    reference.stdin.write(json.dumps({"prompt": prompt, "max_tokens": 1}) + "\n")
    reference.stdin.flush()
    return float(json.loads(reference.stdout.readline())["first_seconds"])


def measure(model_dir: Path) -> dict[str, Any]:
    """Run the rounds."""
    tokenizer = AutoTokenizer.from_pretrained(model_dir)

    def prompt(number: int) -> list[int]:
        ids: list[int] = tokenizer.apply_chat_template(question(number), add_generation_prompt=True, return_dict=False)
        return ids

    numbers = itertools.count(100)
    peer = [sys.executable, str(Path(__file__).with_name("reference.py")), str(model_dir), str(THREADS), "runner"]
    with stack() as server, subprocess.Popen(
        peer, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reference:  # fmt: skip
        reference.stdout.readline()
        with httpx.Client(base_url=server.url, timeout=120) as http:
            served_seconds(http, next(numbers)), alone_seconds(reference, prompt(next(numbers)))
            rounds = []
            for _ in range(ROUNDS):
                alone = statistics.median(
                    alone_seconds(reference, prompt(next(numbers))) for _ in range(ASKED_PER_ROUND)
                )
                served = statistics.median(served_seconds(http, next(numbers)) for _ in range(ASKED_PER_ROUND))
                rounds.append({"alone_ms": alone * 1000, "served_ms": served * 1000})
        reference.stdin.close()
    added = sorted(one["served_ms"] - one["alone_ms"] for one in rounds)
    return {"rounds": rounds, "added_ms": statistics.median(added), "added_ms_spread": [added[0], added[-1]]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    wanted = parser.parse_args()
    result = measure(ensure_demo_model(settings.load().cache_dir, lambda *_: None))
    print(f"{'round':>5} {'in process ms':>14} {'POST to token ms':>17}")
    for number, one in enumerate(result["rounds"]):
        print(f"{number:>5} {one['alone_ms']:>14.1f} {one['served_ms']:>17.1f}")
    low, high = result["added_ms_spread"]
    print(f"added: median {result['added_ms']:.1f} ms (from {low:.1f} to {high:.1f}), wanted <= 80")
    if wanted.json:
        wanted.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
