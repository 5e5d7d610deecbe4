"""Our whole stack (REST, Celery, runner, SSE; one rank) against mlx_lm.server: same weights, BLAS and threads.

`python benchmarks/serving.py [--rounds N] [--concurrent N …] [--tokens N …] [--prompts short long shared] [--json F]`.
Each round runs a case on both, in turns; ratios are ours to the peer's within a round, their median with the spread.
No two prompts begin alike, except with `shared`, where a system prompt is used twice.
The short form, three minutes: `--rounds 1 --tokens 64 --concurrent 1 8 16 --prompts short shared`.
"""

import argparse
import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from servers import Server, mlx_lm_server, stack
from streams import ask_together

from exo_celery import settings
from exo_celery.models.demo import ensure_demo_model

LONG_WORDS = 800  # about 1,000 tokens with what is around them
SHARED_WORDS = 500
LONGEST_WITH_LONG_PROMPTS = 64  # tokens: beyond that the prompt hardly counts
WORDS = (
    "river garden window mountain letter summer morning kitchen doctor village silver shadow bridge engine market "
    "island forest captain teacher candle winter yellow ancient quiet simple narrow bright heavy travel listen follow"
)

Chat = list[dict[str, str]]
# Ours to the peer's, by concurrent streams.
LEAST_THROUGHPUT = {1: 1.0, 8: 1.05, 16: 1.15, 32: 1.15}
MOST_FIRST_TOKEN = {16: 0.7}


@dataclass(frozen=True)
class Case:
    """So many streams at once, of so many tokens, after prompts of a kind."""

    prompt: str
    tokens: int
    concurrent: int


def words(number: int, count: int) -> str:
    """Return words that no other number gives."""
    dice = random.Random(number)
    return " ".join(dice.choice(WORDS.split()) for _ in range(count))


def short_chat(number: int) -> Chat:
    """Return a question that is answered at length."""
    told = {"role": "system", "content": f"{number} is your lucky number."}
    return [told, {"role": "user", "content": f"Tell me a very long story about a {words(number, 2)}."}]


def long_chat(number: int) -> Chat:
    """Return a chat of about 1,000 tokens."""
    told, asked = short_chat(number)
    return [told, asked | {"content": f"{words(number, LONG_WORDS)}. {asked['content']}"}]


def shared_chats(number: int) -> list[Chat]:
    """Return two chats with one long system prompt."""
    told = {"role": "system", "content": f"{number} is your lucky number. {words(number, SHARED_WORDS)}"}
    asked = ("Tell me about the river.", "What do you know of gardens?")
    return [[told, {"role": "user", "content": text}] for text in asked]


PROMPTS: dict[str, Callable[[int], Chat]] = {"short": short_chat, "long": long_chat}


def run_case(case: Case, servers: list[Server], numbers: Iterator[int]) -> dict[str, Any]:
    """Run a case on each server, in this order."""
    found: dict[str, Any] = {}
    chats = [PROMPTS[case.prompt](next(numbers)) for _ in range(case.concurrent)]
    for server in servers:
        before = server.cpu_seconds()
        answers, seconds = ask_together(server, chats, case.tokens)
        found[server.name] = {
            "tokens_per_second": sum(one.tokens for one in answers) / seconds,
            "first_seconds": statistics.median(one.first_seconds for one in answers),
            "cpu_seconds": server.cpu_seconds() - before,
            "tokens": sum(one.tokens for one in answers),
            "prompt_tokens": round(statistics.mean(one.prompt_tokens for one in answers)),
        }
    return found


def run_shared(servers: list[Server], numbers: Iterator[int]) -> dict[str, Any]:
    """Use a system prompt twice on each server; return the seconds to both first tokens."""
    chats = shared_chats(next(numbers))
    found = {}
    for server in servers:
        first, second = (ask_together(server, [chat], 8)[0][0].first_seconds for chat in chats)
        found[server.name] = {"first_use_seconds": first, "second_use_seconds": second}
    return found


def spread(ratios: list[float]) -> dict[str, float]:
    """Return the median of ratios, and their ends."""
    return {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def ratios(rounds: list[dict[str, Any]], figure: str, peer_figure: str = "", peer: str = "mlx_lm.server") -> Any:
    """Return a figure of ours over one of the peer's (or of ours), round by round."""
    return spread([one["exo_celery"][figure] / one[peer][peer_figure or figure] for one in rounds])


def compare(case: Case, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a case's figures."""
    return asdict(case) | {
        "rounds": rounds,
        "throughput": ratios(rounds, "tokens_per_second"),
        "first_token": ratios(rounds, "first_seconds"),
    }


def measure(model_dir: Path, cases: list[Case], shared: bool, count: int) -> dict[str, Any]:
    """Run all rounds of all cases."""
    numbers = itertools.count(1000)
    with mlx_lm_server(model_dir) as peer, stack() as ours:
        order = itertools.cycle([[peer, ours], [ours, peer]])
        for server in (peer, ours):
            ask_together(server, [short_chat(next(numbers))], 4)
        result: dict[str, Any] = {"idle_percent_of_a_core": {one.name: idle(one) for one in (peer, ours)}, "cases": []}
        for case in cases:
            rounds = [run_case(case, next(order), numbers) for _ in range(count)]
            result["cases"].append(compare(case, rounds))
            show(result["cases"][-1])
        if shared:
            rounds = [run_shared(next(order), numbers) for _ in range(count)]
            result["shared"] = {
                "rounds": rounds,
                "to_own_first": ratios(rounds, "second_use_seconds", "first_use_seconds", "exo_celery"),
                "to_peers_second": ratios(rounds, "second_use_seconds"),
            }
            show_shared(result["shared"])
    return result


def idle(server: Server, seconds: float = 5.0) -> float:
    """Return what a server takes of a core while nobody asks anything: the other one lacks it."""
    before = server.cpu_seconds()
    time.sleep(seconds)
    return round((server.cpu_seconds() - before) / seconds * 100, 1)


def verdict(found: dict[str, float], least: float | None = None, most: float | None = None) -> str:
    """Say a ratio, and whether it is what was wanted."""
    text = f"{found['median']:.2f} ({found['least']:.2f}-{found['most']:.2f})"
    wanted = "" if least is None and most is None else f" >= {least}" if least is not None else f" <= {most}"
    good = (least is None or found["median"] >= least) and (most is None or found["median"] <= most)
    return text + (f" wanted{wanted}: {'met' if good else 'MISSED'}" if wanted else "")


def show(case: dict[str, Any]) -> None:
    """Print a case."""
    middle = {
        name: {figure: statistics.median(one[name][figure] for one in case["rounds"]) for figure in one_round}
        for name, one_round in case["rounds"][0].items()
    }
    ours, peer = middle["exo_celery"], middle["mlx_lm.server"]
    print(f"{case['prompt']} prompts ({ours['prompt_tokens']}), {case['tokens']} tokens, {case['concurrent']} at once")
    least = LEAST_THROUGHPUT.get(case["concurrent"]) if case["prompt"] == "short" else None
    speeds = f"{ours['tokens_per_second']:7.1f} tok/s, peer {peer['tokens_per_second']:7.1f}"
    print(f"  {speeds}, ratio {verdict(case['throughput'], least=least)}")
    most = MOST_FIRST_TOKEN.get(case["concurrent"]) if case["prompt"] == "short" else None
    firsts = f"{ours['first_seconds'] * 1000:7.0f} ms first, peer {peer['first_seconds'] * 1000:7.0f}"
    print(f"  {firsts}, ratio {verdict(case['first_token'], most=most)}", flush=True)


def show_shared(shared: dict[str, Any]) -> None:
    """Print what a second use of a system prompt costs."""
    print("a shared system prompt, first token at its second use")
    print(f"  to our own first use: {verdict(shared['to_own_first'], most=0.5)}")
    print(f"  to the peer's second: {verdict(shared['to_peers_second'], most=1.0)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrent", type=int, nargs="+", default=[1, 8, 16, 32])
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--prompts", nargs="+", choices=[*PROMPTS, "shared"], default=["short", "long", "shared"])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    wanted = parser.parse_args()
    cases = [
        Case(prompt, tokens, concurrent)
        for prompt in PROMPTS
        for tokens in wanted.tokens
        for concurrent in wanted.concurrent
        if prompt in wanted.prompts and (prompt == "short" or tokens <= LONGEST_WITH_LONG_PROMPTS)
    ]
    model_dir = ensure_demo_model(settings.load().cache_dir, lambda *_: None)
    result = measure(model_dir, cases, "shared" in wanted.prompts, wanted.rounds)
    print(f"while idle, in percent of a core: {result['idle_percent_of_a_core']}")
    if wanted.json:
        wanted.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
