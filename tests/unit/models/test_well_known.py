"""The built-in facts agree with what the models' pages count, and with what mlx-lm can run."""

import pytest

from exo_celery.models.architectures import supports_tensor
from exo_celery.models.well_known import SHAPES, well_known


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("mlx-community/Llama-3.2-1B-Instruct-4bit", 1_235_814_400),
        ("mlx-community/Llama-3.2-3B-Instruct-4bit", 3_212_749_824),
        ("mlx-community/Meta-Llama-3.1-8B-Instruct-4bit", 8_030_261_248),
        ("mlx-community/Llama-3.3-70B-Instruct-4bit", 70_553_706_496),
        ("mlx-community/Mistral-7B-Instruct-v0.3-4bit", 7_248_023_552),
        ("mlx-community/Qwen2.5-7B-Instruct-4bit", 7_615_616_512),
        ("mlx-community/Qwen3-0.6B-4bit", 596_049_920),
        ("mlx-community/Qwen3-4B-4bit", 4_022_468_096),
        ("mlx-community/Qwen3-8B-4bit", 8_190_735_360),
        ("mlx-community/Qwen3-32B-4bit", 32_762_123_264),
    ],
)
def test_shapes_have_the_published_number_of_parameters(model: str, parameters: int) -> None:
    assert SHAPES[model].parameters == parameters


def test_a_card_knows_the_bytes_of_four_bit_weights() -> None:
    card = well_known("mlx-community/Llama-3.2-1B-Instruct-4bit")
    assert card is not None
    assert 695_000_000 < card.storage_bytes < 695_300_000
    assert card.embedding_bytes == 128256 * 2048 * 9 // 16


def test_all_of_them_can_be_split_by_tensors() -> None:
    modules = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}
    for model, shape in SHAPES.items():
        assert supports_tensor(modules.get(shape.architecture, "qwen3"))
        assert well_known(model) is not None


def test_others_are_not_known() -> None:
    assert well_known("org/other") is None
