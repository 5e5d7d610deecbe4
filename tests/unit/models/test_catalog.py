"""Cards from folders: the facts placement needs, and a clear refusal of what mlx-lm cannot run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lookalike.checkpoints import write_model, write_weights

from exo_celery.errors import ModelFolderError
from exo_celery.models.architectures import module_of, remappings, supports_tensor
from exo_celery.models.catalog import card_from_config, card_from_folder, kv_bytes_per_token


def change(folder: Path, **changes: Any) -> Path:
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return folder


def test_a_card_tells_what_placement_needs(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", layers=4, hidden=32, shards=2, vocab=64)
    card = card_from_folder("org/tiny", folder)
    assert card.storage_bytes == sum(path.stat().st_size for path in folder.glob("model*.safetensors"))
    assert (card.n_layers, card.hidden_size, card.num_attention_heads, card.num_key_value_heads) == (4, 32, 4, 2)
    assert card.embedding_bytes == card.head_bytes == 64 * 32 * 4
    assert card.layers_bytes == 4 * (4 * 32 * 32 * 4 - 2 * 16 * 32 * 4 + 3 * 64 * 32 * 4 + 2 * 32 * 4)
    assert card.kv_bytes_per_token == 4 * 2 * 2 * 8 * 2
    assert card.context_length == 512
    assert card.supports_tensor
    assert (card.architecture, card.quantization) == ("LlamaForCausalLM", "F32")


def test_a_tied_head_is_the_embedding_again(tmp_path: Path) -> None:
    card = card_from_folder("org/tiny", write_model(tmp_path / "m", tied=True, hidden=16, vocab=10))
    assert card.embedding_bytes == card.head_bytes == 10 * 16 * 4


def test_quantisation_counts_scales_and_is_named(tmp_path: Path) -> None:
    folder = change(write_model(tmp_path / "m", tied=True), quantization={"bits": 4, "group_size": 32})
    write_weights(
        folder / "model.safetensors",
        {
            "model.embed_tokens.weight": ("U32", (64, 4)),
            "model.embed_tokens.scales": ("F16", (64, 1)),
            "model.layers.0.mlp.up_proj.weight": ("U32", (64, 4)),
        },
    )
    card = card_from_folder("org/tiny", folder)
    assert card.quantization == "4-bit"
    assert card.embedding_bytes == 64 * 4 * 4 + 64 * 2


def test_an_unknown_architecture_is_refused_with_the_reason(tmp_path: Path) -> None:
    folder = change(write_model(tmp_path / "m"), model_type="sausage")
    with pytest.raises(ModelFolderError, match="'sausage' is not one that the installed mlx-lm can run"):
        card_from_folder("org/tiny", folder)


@pytest.mark.parametrize("kind", ["base", "cache", "../utils", "", None, "rope_utils"])
def test_a_module_that_is_no_model_is_refused(kind: str | None) -> None:
    with pytest.raises(ModelFolderError):
        module_of({"model_type": kind})


def test_code_that_comes_with_a_model_is_refused() -> None:
    with pytest.raises(ModelFolderError, match=r"'mine\.py'"):
        module_of({"model_type": "llama", "model_file": "mine.py"})


def test_types_that_stand_for_another_are_followed() -> None:
    assert module_of({"model_type": "mistral"}) == "llama"
    assert module_of({"model_type": "kimi_k2"}) == "deepseek_v3"
    by_type, by_architecture = remappings()
    assert len(by_type) > 5
    for (kind, architecture), module in by_architecture.items():
        assert module_of({"model_type": kind, "architectures": [architecture]}) == module
        assert module_of({"model_type": kind}) != module


@pytest.mark.parametrize(
    ("module", "expected"),
    [("llama", True), ("qwen3", True), ("glm_moe_dsa", True), ("qwen3_5_moe", True), ("phi", False), ("gemma", False)],
)
def test_tensor_support_is_that_of_the_class_also_inherited(module: str, expected: bool) -> None:
    assert supports_tensor(module) is expected


def test_the_text_part_of_a_multimodal_config_is_read() -> None:
    text = {"num_hidden_layers": 10, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2}
    card = card_from_config("org/x", {"model_type": "mistral3", "text_config": text}, 1000)
    assert (card.n_layers, card.hidden_size, card.num_key_value_heads) == (10, 64, 2)


def test_latent_attention_keeps_a_small_cache() -> None:
    config = {"num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "kv_lora_rank": 512}
    assert kv_bytes_per_token(config | {"qk_rope_head_dim": 64}) == 61 * 576 * 2


def test_a_missing_fact_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="num_hidden_layers"):
        card_from_folder("org/tiny", change(write_model(tmp_path / "m"), num_hidden_layers=None))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe"])
def test_a_broken_config_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ModelFolderError, match=r"config\.json"):
        card_from_folder("org/tiny", folder)


def test_no_weights_are_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFolderError, match="no weights"):
        card_from_folder("org/tiny", folder)


def test_neither_mlx_nor_the_hub_client_is_imported() -> None:
    code = (
        "import sys, exo_celery.models.catalog as c, exo_celery.models.survey\n"
        "from exo_celery.models.architectures import module_of, supports_tensor\n"
        "assert supports_tensor(module_of({'model_type': 'llama'}))\n"
        "assert not {'mlx', 'mlx.core', 'mlx_lm', 'transformers', 'huggingface_hub'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
