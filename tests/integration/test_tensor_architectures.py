"""Tensor rings of tiny models: the logits of one process, and the same tokens in a batch that rows join late.

The ranks are real processes over MLX's ring, which a process can join only once: they take one model after another.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_ring_architectures import GAP, ROWS, UNBATCHED, alone
from tiny_architectures import ARCHITECTURES, build

from exo_celery.errors import RunnerError
from exo_celery.runner.parallel import Boundary
from exo_celery.runner.slices import cut

pytestmark = pytest.mark.timeout(300)
CUTTABLE = sorted(name for name in ARCHITECTURES.keys() - UNBATCHED if hasattr(build(name), "shard"))


def found_by(world: int, names: list[str]) -> dict[str, Any]:
    """Let a tensor ring of `world` processes run the models; return what rank 0 printed of each."""
    command = [sys.executable, Path(__file__).with_name("tensor_rank.py")]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(world), *names], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for rank in range(world)
    ]
    try:
        peers = " ".join(f"127.0.0.1:{rank.stdout.readline().strip()}" for rank in ranks)
        for rank in ranks:
            rank.stdin.write(peers + "\n")
            rank.stdin.flush()
        lines = ranks[0].stdout.read().splitlines()
        assert ranks[0].wait() == 0
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    return {line["name"]: line for line in map(json.loads, lines)}


def test_two_ranks_give_the_logits_and_tokens_of_one_process() -> None:
    assert {"llama", "qwen2", "qwen3", "qwen3_moe", "qwen3_5", "deepseek_v3", "gpt_oss", "minimax"} <= set(CUTTABLE)
    found = found_by(2, CUTTABLE)
    assert found.keys() == set(CUTTABLE)
    for name in CUTTABLE:
        assert found[name]["difference"] <= 1e-4, name
        model = build(name)
        for row, (_, prompt, count) in ROWS.items():
            tokens, gaps = alone(model, prompt, count)
            got = found[name]["tokens"][str(row)]
            differing = next((i for i, (a, b) in enumerate(zip(tokens, got, strict=True)) if a != b), None)
            assert differing is None or gaps[differing] < GAP, (name, row, differing, tokens, got)


@pytest.mark.parametrize("name", ["phi3", "mamba2"])
def test_what_mlx_lm_does_not_cut_is_refused(name: str) -> None:
    with pytest.raises(RunnerError, match=f"cannot cut {name} into slices: ask for sharding pipeline"):
        cut(build(name), 0, 2, Boundary())


@pytest.mark.parametrize(("name", "world"), [("llama", 3), ("llama", 4), ("gpt_oss", 4), ("qwen3_moe", 4)])
def test_a_number_of_ranks_that_heads_do_not_divide_by_is_refused(name: str, world: int) -> None:
    with pytest.raises(RunnerError, match=f"cannot be cut into {world} slices"):
        cut(build(name), 0, world, Boundary())
