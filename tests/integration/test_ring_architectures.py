"""Any architecture, any split: the logits of one process, and the same tokens in a batch that rows join late.

The ranks of a ring run here in one process, one after another, with queues for links.
"""

import importlib
import threading
from collections import deque
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache
from tiny_architectures import ARCHITECTURES, LAYERS, build

from exo_celery.errors import RunnerError
from exo_celery.runner.cores import Cores
from exo_celery.runner.executor import Executor, batches
from exo_celery.runner.load import Shard
from exo_celery.runner.parallel import Boundary, stage
from exo_celery.runner.step import Admission, Chunk, Keep, Step

SPLITS = [(0, 3, LAYERS), (0, 1, LAYERS), (0, 2, 4, LAYERS), (0, 1, 3, LAYERS)]
PROMPT = [[(7 * i + 13 * row + 5) % 250 for i in range(12)] for row in range(2)]
DECODED = [[[(31 * i + 11 * row) % 250] for row in range(2)] for i in range(12)]
# Row: (joins at step, prompt, tokens to generate). Prompts longer and shorter than the sliding window of 8.
ROWS = {
    0: (0, [(7 * i + 3) % 250 for i in range(5)], 10),
    1: (0, [(11 * i + 1) % 250 for i in range(17)], 14),
    2: (4, [(3 * i + 2) % 250 for i in range(11)], 6),
    3: (6, [9], 5),
    4: (15, [(5 * i + 4) % 250 for i in range(7)], 6),  # row 0 has left by then, and row 2
    5: (15, [(9 * i + 4) % 250 for i in range(4)], 4),
    6: (18, [(2 * i + 8) % 250 for i in range(3)], 9),
}
GAP = 1e-3
# mlx-lm's own batches fail on these.
UNBATCHED = {"gemma2"}


class Pipe:
    """A link that stays in the process."""

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()

    def send(self, frame: bytes) -> None:
        self.frames.append(frame)

    def receive(self) -> bytearray:
        return bytearray(self.frames.popleft())


def executors(name: str, cuts: tuple[int, ...]) -> list[Executor]:
    """Return the ranks of a ring."""
    pipes = [None, *(Pipe() for _ in cuts[2:]), None]
    made = []
    for rank in range(len(cuts) - 1):
        model, boundary = build(name), Boundary()
        stage(model, cuts[rank], cuts[rank + 1], boundary)
        shard = Shard(model, {}, boundary, 0)
        if len(cuts) == 2:  # alone, with parts of prefills side by side
            return [Executor(shard, None, None, nullcontext(), Cores(2))]
        made.append(Executor(shard, pipes[rank], pipes[rank + 1], threading.Lock()))
    return made


def run_rows(ranks: list[Executor]) -> dict[int, list[int]]:
    """Generate for all rows, which join and leave as they like; return the tokens of each."""
    found: dict[int, list[int]] = {row: [] for row in ROWS}
    tokens: dict[int, int] = {}
    done: set[int] = set()
    for number in range(100):
        drop = tuple(row for row in tokens if row in done)
        tokens = {row: token for row, token in tokens.items() if row not in done}
        joining = tuple(row for row, (at, _, _) in ROWS.items() if at == number)
        admit = tuple(Admission(row=row, tokens=tuple(ROWS[row][1])) for row in joining)
        chunk = Chunk(rows=joining, count=max(len(ROWS[r][1]) for r in joining), completes=True) if joining else None
        step = Step(drop=drop, admit=admit, prefill=chunk, tokens=() if chunk else tuple(tokens.values()))
        sampled = [rank.run(step) for rank in ranks][-1]
        choices = sampled.choices if sampled else ()
        for row, choice in zip(joining or tuple(tokens), choices, strict=True):
            tokens[row] = choice.token
            found[row].append(choice.token)
            if len(found[row]) == ROWS[row][2]:
                done.add(row)
        assert ranks[-1].rows == tuple(tokens)
        if len(done) == len(ROWS) and done >= set(tokens):
            return found
    raise AssertionError(f"rows never finished: {found}")


def alone(model: Any, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    """Return mlx-lm's own tokens for one prompt, and the gap between the two likeliest at each."""
    generate = importlib.import_module("mlx_lm.generate")
    tokens, gaps = [], []
    for token, logprobs in generate.generate_step(mx.array(prompt), model, max_tokens=count):
        two = np.sort(np.array(logprobs.astype(mx.float32)))[-2:]
        tokens.append(int(token))
        gaps.append(float(two[1] - two[0]))
    return tokens, gaps


def logits_of(model: Any) -> np.ndarray:
    """Return the logits of a prompt and some decoded tokens, (batch, positions, vocabulary)."""
    cache = make_prompt_cache(model)
    out = []
    for tokens in (PROMPT, *DECODED):
        logits = model(mx.array(tokens), cache=cache).astype(mx.float32)
        mx.eval(logits, [entry.state for entry in cache])
        out.append(np.array(logits))
    return np.concatenate(out, axis=1)


def logits_of_split(name: str, cuts: tuple[int, ...]) -> np.ndarray:
    """Return the same from the stages of a pipeline."""
    boundaries = [Boundary() for _ in cuts[1:]]
    models = [build(name) for _ in cuts[1:]]
    for i, model in enumerate(models):
        stage(model, cuts[i], cuts[i + 1], boundaries[i])
    caches = [make_prompt_cache(model) for model in models]
    out = []
    for tokens in (PROMPT, *DECODED):
        for i, model in enumerate(models):
            boundaries[i].incoming = boundaries[i - 1].outgoing if i else None
            logits = model(mx.array(tokens), cache=caches[i])
            mx.eval(boundaries[i].outgoing, [entry.state for entry in caches[i]])
        out.append(np.array(logits.astype(mx.float32)))
    return np.concatenate(out, axis=1)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_are_those_of_one_process(name: str) -> None:
    expected = logits_of(build(name))
    assert np.abs(expected).max() > 1e-2
    for cuts in SPLITS:
        assert np.abs(logits_of_split(name, cuts) - expected).max() <= 1e-4, cuts


@pytest.mark.parametrize("name", sorted(ARCHITECTURES.keys() - UNBATCHED))
def test_rows_that_join_late_get_the_tokens_they_get_alone(name: str) -> None:
    model = build(name)
    expected = {row: alone(model, prompt, count) for row, (_, prompt, count) in ROWS.items()}
    for cuts in [(0, LAYERS), *SPLITS[1:3]]:
        got = run_rows(executors(name, cuts))
        for row, (tokens, gaps) in expected.items():
            differing = next((i for i, (a, b) in enumerate(zip(tokens, got[row], strict=True)) if a != b), None)
            assert differing is None or gaps[differing] < GAP, (cuts, row, differing, tokens, got[row])


def test_layers_that_pass_more_than_a_hidden_state_are_refused() -> None:
    model = build("llama")
    layer = type(model.model.layers[2])

    class Leaky(layer):  # type: ignore[misc,valid-type]
        """Returns more than its hidden state, as layers of gemma4 return their keys."""

        def __call__(self, x: Any, mask: Any = None, cache: Any = None) -> Any:
            return super().__call__(x, mask, cache), x

    model.model.layers[2].__class__ = Leaky
    with pytest.raises(RunnerError, match="layer 2 returns more than a hidden state"):
        stage(model, 0, 3, Boundary())


def test_layers_that_share_a_cache_are_refused() -> None:
    model = build("llama")
    model.make_cache = lambda: [make_prompt_cache(build("llama"))[0]] * LAYERS
    with pytest.raises(RunnerError, match="share a cache"):
        stage(model, 0, 3, Boundary())


def test_what_happens_between_layers_is_refused() -> None:
    model = build("llama")

    def call(self: Any, inputs: mx.array, cache: Any = None, input_embeddings: Any = None) -> mx.array:
        h = self.embed_tokens(inputs)
        for entry, each in zip(cache, self.layers, strict=True):
            h = each(h, None, cache=entry) * 2
        return self.norm(h)

    outer = type(model.model)
    model.model.__class__ = type("Doubling", (outer,), {"__call__": call})
    with pytest.raises(RunnerError, match="something happens between layers 0 and 1"):
        stage(model, 0, 3, Boundary())


def test_what_mlx_lm_cannot_batch_is_served_one_at_a_time() -> None:
    assert {name for name in ARCHITECTURES if not batches(Shard(build(name), {}, Boundary(), 0))} == UNBATCHED


def test_the_readme_names_what_is_tested_and_what_is_served_one_at_a_time() -> None:
    readme = " ".join(Path(__file__).parents[2].joinpath("README.md").read_text().split())
    assert ", ".join(sorted({name.split(",")[0] for name in ARCHITECTURES})) in readme
    assert f"Of these, {', '.join(sorted(UNBATCHED))} is served one sequence at a time" in readme


@pytest.mark.parametrize(
    "name", ["llama", "llama, sliding", "deepseek_v3", "gemma3_text", "lfm2", "mamba2", "qwen3_next"]
)
def test_a_kept_cache_serves_a_longer_prompt(name: str) -> None:
    ranks = executors(name, (0, 2, LAYERS))

    def run(step: Step) -> tuple[int, ...]:
        sampled = [rank.run(step) for rank in ranks][-1]
        return tuple(choice.token for choice in sampled.choices) if sampled else ()

    prompt = tuple(ROWS[1][1])
    chunk = Chunk(rows=(0,), count=len(prompt), completes=True)
    (first,) = run(Step(admit=(Admission(row=0, tokens=prompt),), prefill=chunk))
    (second,) = run(Step(tokens=(first,)))
    known = (*prompt, first)
    longer = (*known, second, 30, 31)
    admission = Admission(row=1, tokens=longer, entry=5, reused=len(known))
    keep = Keep(row=0, entry=5, count=len(known))
    rest = Chunk(rows=(1,), count=3, completes=True)
    got = run(Step(keep=(keep,), drop=(0,), admit=(admission,), forget=(5,), prefill=rest))
    for _ in range(4):
        got += run(Step(tokens=got[-1:]))
    tokens, gaps = alone(build(name), list(longer), 5)
    differing = next((i for i, (a, b) in enumerate(zip(tokens, got, strict=True)) if a != b), None)
    assert differing is None or gaps[differing] < GAP, (tokens, got)
