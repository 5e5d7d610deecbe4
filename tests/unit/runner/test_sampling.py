"""Choosing tokens: each knob does what its paper or OpenAI says, on a vocabulary of a few tokens."""

import math
import threading
from collections import Counter
from typing import Any

import mlx.core as mx
import pytest

from exo_celery.runner.sampling import Sampler, sample
from exo_celery.runner.step import Sampling

LOGITS = [2.0, 1.0, 0.0, -1.0, -2.0]


def draw(count: int, *, prompt: tuple[int, ...] = (0,), **options: Any) -> list[int]:
    sampler = Sampler(Sampling(**options), prompt)
    return [sample(mx.array([LOGITS]), [sampler])[0].token for _ in range(count)]


def test_temperature_zero_takes_the_likeliest() -> None:
    assert draw(5) == [0] * 5


def test_sampling_follows_the_distribution() -> None:
    counts = Counter(draw(2000, temperature=1.0, seed=1))
    total = sum(math.exp(logit) for logit in LOGITS)
    for token, logit in enumerate(LOGITS):
        assert counts[token] / 2000 == pytest.approx(math.exp(logit) / total, abs=0.04)


@pytest.mark.parametrize(
    ("options", "possible"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 50}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.7}, {0, 1}),
        ({"top_p": 1e-9}, {0}),
        ({"min_p": 0.1}, {0, 1, 2}),
        ({"min_p": 1.0}, {0}),
        ({"logit_bias": {0: -100.0, 1: -100.0}}, {2, 3, 4}),
        ({"logit_bias": {4: 100.0}}, {4}),
    ],
    ids=str,
)
def test_cuts(options: dict[str, Any], possible: set[int]) -> None:
    assert set(draw(600, temperature=1.0, seed=3, **options)) == possible


def test_the_seed_decides() -> None:
    assert draw(30, temperature=1.0, seed=5) == draw(30, temperature=1.0, seed=5)
    assert draw(30, temperature=1.0, seed=5) != draw(30, temperature=1.0, seed=6)


def test_presence_counts_generated_tokens_once() -> None:
    assert draw(4, presence_penalty=1.5) == [0, 1, 0, 0]


def test_frequency_counts_every_time() -> None:
    # Logits 2 and 1 fall by 0.6 for each time they were chosen.
    assert draw(6, frequency_penalty=0.6) == [0, 0, 1, 0, 1, 0]


def test_repetition_counts_the_prompt_and_treats_signs_apart() -> None:
    assert draw(1, prompt=(0,), repetition_penalty=4.0) == [1]
    negative = Sampler(Sampling(repetition_penalty=4.0), (0,))
    assert sample(mx.array([[-1.0, -3.0]]), [negative])[0].token == 1


def test_company_changes_nothing() -> None:
    alone = draw(10, temperature=1.0, seed=9)
    samplers = [Sampler(Sampling(temperature=1.0, seed=seed), (0,)) for seed in (3, 9)] + [Sampler(Sampling(), (0,))]
    together = [[choice.token for choice in sample(mx.array([LOGITS] * 3), samplers)] for _ in range(10)]
    assert [row[1] for row in together] == alone
    assert {row[2] for row in together} == {0}


def test_logprobs_are_of_the_adjusted_distribution_and_only_where_asked() -> None:
    samplers = [Sampler(Sampling(logprobs=2, logit_bias={4: 4.5}), (0,)), Sampler(Sampling(), (0,))]
    asked, silent = sample(mx.array([LOGITS] * 2), samplers)
    total = sum(math.exp(logit) for logit in [*LOGITS[:4], 2.5])
    assert asked.token == 4
    assert asked.logprob == pytest.approx(2.5 - math.log(total), abs=1e-5)
    assert [token for token, _ in asked.top] == [4, 0]
    assert asked.top[1][1] == pytest.approx(2.0 - math.log(total), abs=1e-5)
    assert (silent.token, silent.logprob, silent.top) == (0, None, ())


def test_logprobs_without_alternatives() -> None:
    (choice,) = sample(mx.array([LOGITS]), [Sampler(Sampling(logprobs=0), (0,))])
    assert choice.logprob is not None
    assert choice.top == ()


def test_a_row_can_go_on_in_another_thread() -> None:
    samplers = [Sampler(Sampling(temperature=1.0, seed=3), (0,)) for _ in range(2)]
    expected = [sample(mx.array([LOGITS]), samplers[:1])[0].token for _ in range(2)]
    found: list[int] = []

    def elsewhere() -> None:
        with mx.stream(mx.new_stream(mx.default_device())):
            found.append(sample(mx.array([LOGITS]), samplers[1:])[0].token)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    found.append(sample(mx.array([LOGITS]), samplers[1:])[0].token)
    assert found == expected
