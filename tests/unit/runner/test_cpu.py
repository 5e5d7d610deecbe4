"""The fast ways to compute on a CPU give what mlx-lm's own do."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import llama
from mlx_lm.models.activations import swiglu
from mlx_lm.models.base import scaled_dot_product_attention as attention
from mlx_lm.models.cache import make_prompt_cache

from exo_celery.runner import cpu

ROWS, POSITIONS, SIZE = 3, 20, 8


def random(*shape: int) -> mx.array:
    return mx.random.normal(shape)


def mask(*shape: int) -> mx.array:
    return mx.arange(POSITIONS) >= mx.arange(ROWS).reshape(ROWS, *shape)


@pytest.mark.parametrize("heads", [1, 2, 6])
@pytest.mark.parametrize("seen", [None, mask(1, 1, 1)], ids=["all", "padded"])
def test_heads_that_share_keys_see_the_same(heads: int, seen: mx.array | None) -> None:
    queries, keys, values = random(ROWS, heads, 1, SIZE), *(random(ROWS, max(1, heads // 3), POSITIONS, SIZE),) * 2
    asked = {"cache": None, "scale": 0.3, "mask": seen}
    expected = attention(queries, keys, values, **asked)
    assert mx.abs(cpu.sharing_keys(attention)(queries, keys, values, **asked) - expected).max() < 1e-5


@pytest.mark.parametrize(
    ("length", "more"),
    [
        (2, {"mask": "causal"}),
        (1, {"mask": random(ROWS, 6, 1, POSITIONS)}),  # each head has its own
        (1, {"mask": None, "sinks": random(6)}),
    ],
)
def test_what_heads_see_differently_goes_its_usual_way(length: int, more: dict[str, Any]) -> None:
    queries, keys = random(ROWS, 6, length, SIZE), random(ROWS, 2, POSITIONS, SIZE)
    asked = {"cache": None, "scale": 0.3} | more
    expected = attention(queries, keys, keys, **asked)
    assert mx.array_equal(cpu.sharing_keys(attention)(queries, keys, keys, **asked), expected)


def test_the_rational_swiglu_is_as_exact_as_float32() -> None:
    gate = np.linspace(-60, 60, 200_001, dtype=np.float32)
    got = np.array(cpu.rational_swiglu(mx.array(gate), mx.ones(gate.shape)), np.float64)
    exact = gate / (1 + np.exp(-gate.astype(np.float64)))
    assert np.abs(got - exact).max() < 60 * 2**-22  # two units in the last place of the largest


def test_other_types_and_small_arrays_go_their_usual_way() -> None:
    fast = cpu.rational(swiglu)
    for gate in (random(10), random(cpu.FEW).astype(mx.bfloat16)):
        assert mx.array_equal(fast(gate, gate), swiglu(gate, gate))


def test_a_model_gives_the_same_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scaled_dot_product_attention", "swiglu"):
        monkeypatch.setattr(llama, name, getattr(llama, name))  # put back afterwards
    sizes = {"hidden_size": 96, "num_hidden_layers": 2, "intermediate_size": 512, "vocab_size": 100}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2}
    model = llama.Model(llama.ModelArgs(model_type="llama", rms_norm_eps=1e-5, **sizes, **heads))

    def logits() -> mx.array:
        cache = make_prompt_cache(model)
        return mx.concatenate([model(tokens, cache=cache) for tokens in (mx.arange(16)[None], mx.array([[5]]))], axis=1)

    expected = logits()
    cpu.speed_up(model)
    difference = mx.abs(logits() - expected).max()
    assert 0 < difference < 1e-5
