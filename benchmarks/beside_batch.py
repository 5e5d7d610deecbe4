"""First tokens of chats beside a batch: `python benchmarks/beside_batch.py [--lines 5000] [--json FILE]`.

One node. Chats one after the other, each with a prompt that nothing is kept of: on the empty system, then while the
lines of a batch are worked off. What a batch may cost a chat is told in its own decode steps.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from servers import Server, stack
from streams import ask_together

CHATS = 30
STEPS_ALLOWED = 2
SETTLE_SECONDS = 10.0  # until the batch fills its share of the slots
LINE_TOKENS = 64


def chat(number: int) -> list[dict[str, str]]:
    """Return a chat of its own."""
    told = {"role": "system", "content": f"{number} is your lucky number."}
    return [told, {"role": "user", "content": "What is the capital of France?"}]


def first_tokens_ms(server: Server, numbers: Iterator[int]) -> list[float]:
    """Return the milliseconds to the first text of each chat, sorted."""
    answers = [ask_together(server, [chat(next(numbers))], 4)[0][0] for _ in range(CHATS)]
    return sorted(answer.first_seconds * 1000 for answer in answers)


def start_batch(http: httpx.Client, model: str, lines: int) -> str:
    """Upload so many lines and begin them."""
    body = {"model": model, "max_tokens": LINE_TOKENS, "temperature": 0}
    content = "".join(
        json.dumps(
            {
                "custom_id": f"line-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": body | {"messages": [{"role": "user", "content": f"Tell me about the number {number}."}]},
            }
        )
        + "\n"
        for number in range(lines)
    )
    file = http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("lines.jsonl", content)}).json()
    wanted = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return str(http.post("/v1/batches", json=wanted).json()["id"])


def gaps(http: httpx.Client) -> tuple[int, float]:
    """Return how many tokens came after another one, and after how many seconds in sum."""
    [placed] = http.get("/api/instances").json()["instances"]
    measured = placed["engine"]["inter_token_seconds"]
    return sum(measured["counts"]), measured["sum_seconds"]


def measure(lines: int) -> dict[str, Any]:
    """Measure the empty system, then the same beside a batch."""
    numbers = itertools.count(100)
    with stack() as server, httpx.Client(base_url=server.url, timeout=120) as http:
        first_tokens_ms(server, numbers)  # warm
        empty = first_tokens_ms(server, numbers)
        batch = start_batch(http, server.model, lines)
        time.sleep(SETTLE_SECONDS)
        count, seconds = gaps(http)
        beside = first_tokens_ms(server, numbers)
        count_after, seconds_after = gaps(http)
        left = http.get(f"/v1/batches/{batch}").json()["request_counts"]
        http.post(f"/v1/batches/{batch}/cancel")
    return {
        "empty_ms": empty,
        "beside_ms": beside,
        "step_ms": (seconds_after - seconds) / (count_after - count) * 1000,
        "lines_done": left["completed"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    wanted = parser.parse_args()
    result = measure(wanted.lines)
    medians = {}
    for name in ("empty", "beside"):
        times = result[f"{name}_ms"]
        medians[name] = statistics.median(times)
        print(f"{name:>7}: median {medians[name]:.0f} ms (from {times[0]:.0f} to {times[-1]:.0f})")
    steps = (medians["beside"] - medians["empty"]) / result["step_ms"]
    print(f"a step of the batch {result['step_ms']:.0f} ms; a chat waits {steps:.1f} more, wanted <= {STEPS_ALLOWED}")
    print(f"{result['lines_done']} of {wanted.lines} lines were done at the end")
    if wanted.json:
        wanted.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
