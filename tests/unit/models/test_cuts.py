"""Into how many slices a model can be cut, from its config."""

from typing import Any

import pytest

from exo_celery.models.cuts import tensor_parts


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"num_attention_heads": 9, "intermediate_size": 1536, "hidden_size": 576}, 3),
        ({"num_attention_heads": 32, "head_dim": 128, "intermediate_size": 11008}, 32),
        ({"num_attention_heads": 8, "intermediate_size": 96, "moe_intermediate_size": 20}, 4),
        ({"num_attention_heads": 8, "intermediate_size": 0}, 8),
        ({"text_config": {"num_attention_heads": 6, "intermediate_size": 64}, "intermediate_size": 5}, 2),
        ({"num_attention_heads": 8, "linear_num_key_heads": 2, "intermediate_size": 64}, 2),
        # In groups of 64 the inner width has 3 parts, though 192 is even.
        ({"num_attention_heads": 6, "intermediate_size": 192, "quantization": {"group_size": 64, "bits": 4}}, 3),
        ({"num_attention_heads": 4, "head_dim": 16, "quantization": {"group_size": 64}}, 1),
        ({"n_head": 4}, None),
        ({"num_attention_heads": 8, "quantization": "4-bit", "text_config": None}, 8),
    ],
)
def test_every_cut_width_divides(config: dict[str, Any], parts: int | None) -> None:
    assert tensor_parts(config) == parts
