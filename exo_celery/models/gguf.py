"""Turn a llama GGUF into a folder that mlx-lm loads: `python -m exo_celery.models.gguf SOURCE FOLDER`.

Runs as a child process only, because it imports MLX. The weights stay quantised as they are (groups of 32).
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

GROUP: Final = 32  # values that share a scale in every quantised GGUF type that MLX reads
CONTROL_TOKEN: Final = 3  # GGUF's token type of special tokens
NAMES: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}

Tensors = dict[str, mx.array]


def convert(source: Path, folder: Path) -> None:
    """Write weights, config and tokenizer of a llama GGUF into a folder."""
    loaded = mx.load(str(source), return_metadata=True)
    assert isinstance(loaded, tuple)
    found, facts = loaded
    # One float type for all, or MLX would compute in float32 wherever a norm is.
    tensors = {renamed(name): one_float_type(tensor) for name, tensor in found.items()}
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "mlx"})
    write_json(folder / "config.json", config(facts, tensors))
    write_json(folder / "tokenizer_config.json", tokenizer_config(facts))
    tokenizer(facts).save(str(folder / "tokenizer.json"))


def renamed(name: str) -> str:
    """Return mlx-lm's name of a tensor: `blk.0.attn_q.weight` is `model.layers.0.self_attn.q_proj.weight`."""
    match name.split("."):
        case ["blk", layer, module, part]:
            return f"model.layers.{layer}.{NAMES[module]}.{part}"
        case [module, part]:
            return f"{NAMES[module]}.{part}"
    raise ValueError(f"tensor {name!r} belongs to no llama")


def one_float_type(tensor: mx.array) -> mx.array:
    """Return the tensor with floats in float16."""
    return tensor.astype(mx.float16) if tensor.dtype == mx.float32 else tensor


def config(facts: dict[str, Any], tensors: Tensors) -> dict[str, Any]:
    """Return the config. GGUF permutes q and k, which mlx-lm calls `rope_traditional`."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": facts["llama.embedding_length"].item(),
        "num_hidden_layers": facts["llama.block_count"].item(),
        "intermediate_size": facts["llama.feed_forward_length"].item(),
        "num_attention_heads": facts["llama.attention.head_count"].item(),
        "num_key_value_heads": facts["llama.attention.head_count_kv"].item(),
        "rms_norm_eps": facts["llama.attention.layer_norm_rms_epsilon"].item(),
        "rope_theta": facts["llama.rope.freq_base"].item(),
        "rope_traditional": True,
        "max_position_embeddings": facts["llama.context_length"].item(),
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"].item(),
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"].item(),
        "torch_dtype": "float16",
        "quantization": quantization(tensors),
    }


def quantization(tensors: Tensors) -> dict[str, Any]:
    """Return the commonest width of the quantised tensors, and the exceptions by name."""
    widths = {
        name.removesuffix(".scales"): tensors[name.replace(".scales", ".weight")].shape[-1]
        * 32
        // scales.shape[-1]
        // GROUP
        for name, scales in tensors.items()
        if name.endswith(".scales")
    }
    usual = max(set(widths.values()), key=list(widths.values()).count)
    others = {name: {"group_size": GROUP, "bits": bits} for name, bits in widths.items() if bits != usual}
    return {"group_size": GROUP, "bits": usual, **others}


def tokenizer(facts: dict[str, Any]) -> Tokenizer:
    """Build the byte-level BPE tokenizer; digits one by one, as GGUF's pre-tokenizer `smollm` does."""
    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"].tolist()
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    built = Tokenizer(models.BPE(vocab={token: n for n, token in enumerate(tokens)}, merges=merges))
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    built.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    built.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return built


def tokenizer_config(facts: dict[str, Any]) -> dict[str, Any]:
    """Return what transformers reads beside the tokenizer."""

    def token(role: str) -> str:
        return str(facts["tokenizer.ggml.tokens"][facts[f"tokenizer.ggml.{role}_token_id"].item()])

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "pad_token": token("padding"),
        "unk_token": token("unknown"),
        "chat_template": facts["tokenizer.chat_template"],
        "model_max_length": facts["llama.context_length"].item(),
        "clean_up_tokenization_spaces": False,
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file as people can read it."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
