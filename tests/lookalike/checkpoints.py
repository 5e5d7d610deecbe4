"""Tiny checkpoints in the real format: right names, right headers, a few kilobytes."""

import json
import random
import struct
from math import prod
from pathlib import Path

BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4}
Tensors = dict[str, tuple[str, tuple[int, ...]]]


def write_weights(path: Path, tensors: Tensors, seed: int = 0) -> Path:
    """Write a safetensors file of random bytes."""
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + random.Random(seed).randbytes(end))
    return path


def layer_tensors(layer: int, hidden: int, kv: int) -> Tensors:
    """Return the tensors of one llama layer."""
    at = f"model.layers.{layer}"
    return {
        f"{at}.self_attn.q_proj.weight": ("F32", (hidden, hidden)),
        f"{at}.self_attn.k_proj.weight": ("F32", (kv, hidden)),
        f"{at}.self_attn.v_proj.weight": ("F32", (kv, hidden)),
        f"{at}.self_attn.o_proj.weight": ("F32", (hidden, hidden)),
        f"{at}.mlp.gate_proj.weight": ("F32", (2 * hidden, hidden)),
        f"{at}.mlp.up_proj.weight": ("F32", (2 * hidden, hidden)),
        f"{at}.mlp.down_proj.weight": ("F32", (hidden, 2 * hidden)),
        f"{at}.input_layernorm.weight": ("F32", (hidden,)),
        f"{at}.post_attention_layernorm.weight": ("F32", (hidden,)),
    }


def write_model(
    folder: Path,
    *,
    layers: int = 4,
    hidden: int = 32,
    shards: int = 1,
    tied: bool = False,
    vocab: int = 64,
    seed: int = 0,
) -> Path:
    """Write a llama of `layers` layers in `shards` weight files, with config and tokenizer; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": 2 * hidden,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocab,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": []}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    parts: list[Tensors] = [{} for _ in range(shards)]
    parts[0]["model.embed_tokens.weight"] = ("F32", (vocab, hidden))
    for layer in range(layers):
        parts[layer * shards // layers] |= layer_tensors(layer, hidden, hidden // 2)
    parts[-1]["model.norm.weight"] = ("F32", (hidden,))
    if not tied:
        parts[-1]["lm_head.weight"] = ("F32", (vocab, hidden))
    names = ["model.safetensors"] if shards == 1 else [shard_name(n, shards) for n in range(1, shards + 1)]
    for n, (name, tensors) in enumerate(zip(names, parts, strict=True)):
        write_weights(folder / name, tensors, seed + n)
    if shards > 1:
        weight_map = {tensor: name for name, tensors in zip(names, parts, strict=True) for tensor in tensors}
        total = sum(prod(shape) * BYTES[dtype] for tensors in parts for dtype, shape in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def shard_name(number: int, count: int) -> str:
    """Return the usual name of one of several weight files."""
    return f"model-{number:05d}-of-{count:05d}.safetensors"


def cut(path: Path, size: int) -> Path:
    """Truncate a file."""
    with path.open("r+b") as file:
        file.truncate(size)
    return path
