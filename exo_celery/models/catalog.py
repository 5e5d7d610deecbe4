"""Model cards: from a folder on disk, or from a source that has the model. MLX is not imported."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from exo_celery.errors import ModelFolderError
from exo_celery.invalid import invalid
from exo_celery.models.architectures import module_of, supports_tensor
from exo_celery.models.cuts import tensor_parts
from exo_celery.models.disk import read_index
from exo_celery.models.fetch import checked
from exo_celery.models.folders import is_weights
from exo_celery.models.headers import read_header
from exo_celery.models.manifest import read_manifest
from exo_celery.models.sources import Source
from exo_celery.models.stop import Stop
from exo_celery.records.model import ModelCard

# One fact, as different architectures spell it in config.json.
LAYERS: Final = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
HIDDEN: Final = ("hidden_size", "n_embd", "d_model", "dim", "model_dim")
HEADS: Final = ("num_attention_heads", "n_heads", "n_head")
KV_HEADS: Final = ("num_key_value_heads", "n_kv_heads", "num_kv_heads", "multi_query_group_num")
CONTEXT: Final = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len", "seq_length")
# The same for the tensors outside the layers.
EMBEDDINGS: Final = frozenset({"embed_tokens", "wte", "word_embeddings", "tok_embeddings", "embed_in", "embeddings"})
LAYER_LISTS: Final = frozenset({"layers", "h", "blocks"})
OUTPUTS: Final = frozenset({"lm_head", "embed_out"})
KV_ELEMENT_BYTES: Final = 2  # a cache in 16 bit, as on a GPU; twice that where MLX computes in float32


def card_from_folder(model_id: str, folder: Path) -> ModelCard:
    """Make the card of a model whose folder is complete.

    Raises:
        ModelFolderError: a file is missing or unreadable, or mlx-lm cannot run the architecture.
    """
    config = read_config(folder)
    files = weight_files(folder)
    try:
        tensors = [(name, header.tensor_bytes(name), tensor["dtype"]) for header in map(read_header, files)
                   for name, tensor in header.tensors.items()]  # fmt: skip
        storage = sum(path.stat().st_size for path in files)
    except OSError as error:
        raise ModelFolderError(f"{folder}: {error}") from error
    manifest = read_manifest(folder)
    card = card_from_config(
        model_id, config, storage, source=str(folder), revision=manifest.revision if manifest else ""
    )
    sizes = {name: size for name, size, _ in tensors}
    return card.evolve(
        **split_bytes(sizes), quantization=card.quantization or main_dtype((d, size) for _, size, d in tensors)
    )


def card_from_config(
    model_id: str, config: Mapping[str, Any], storage_bytes: int, *, source: str = "", revision: str = ""
) -> ModelCard:
    """Make a card from a config alone; the bytes of embedding and head stay unknown.

    Raises:
        ModelFolderError: mlx-lm cannot run the architecture, or the config lacks a fact.
    """
    module = module_of(config)
    try:
        return ModelCard(
            id=model_id,
            storage_bytes=storage_bytes,
            n_layers=needed(config, LAYERS),
            hidden_size=needed(config, HIDDEN),
            num_attention_heads=fact(config, HEADS),
            num_key_value_heads=fact(config, KV_HEADS) or fact(config, HEADS),
            supports_tensor=supports_tensor(module),
            tensor_parts=tensor_parts(config),
            architecture=next(iter(config.get("architectures") or ()), "") or config["model_type"],
            quantization=quantization(config),
            context_length=fact(config, CONTEXT),
            kv_bytes_per_token=kv_bytes_per_token(config),
            source=source,
            revision=revision,
        )
    except ValidationError as error:
        wrong = invalid(error, dict.fromkeys(ModelCard.model_fields))
        raise ModelFolderError(f"no card can be made of {model_id}: {wrong.message}") from error


def card_from_source(model_id: str, source: Source, stop: Stop, revision: str = "") -> ModelCard:
    """Make the card of a model from a source's listing and its config.json alone, without fetching the weights.

    Raises:
        ModelFolderError: mlx-lm cannot run the architecture, or the config cannot be read.
        DownloadError: the source does not have the model, or may not give it; also when it cannot be reached.
    """
    manifest = checked(source.manifest(model_id, revision, stop))
    with source.open(manifest, "config.json", 0, stop) as stream:
        text = b"".join(stream.chunks)
    config = parse_config(text, f"config.json of {model_id} at {source.label}")
    storage = sum(entry.size for name, entry in manifest.files.items() if is_weights(name))
    return card_from_config(model_id, config, storage, source=source.label, revision=manifest.revision)


def read_config(folder: Path) -> dict[str, Any]:
    """Read a folder's config.json."""
    path = folder / "config.json"
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ModelFolderError(f"{path} cannot be read: {error}") from error
    return parse_config(text, str(path))


def parse_config(text: bytes, name: str) -> dict[str, Any]:
    """Parse a config.json."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFolderError(f"{name} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelFolderError(f"{name} holds no JSON object")
    return config


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files of a folder: those of its index, else all."""
    index, _ = read_index(folder)
    names = set(index.get("weight_map", {}).values()) or {
        path.name for path in folder.iterdir() if is_weights(path.name)
    }
    if not names:
        raise ModelFolderError(f"{folder} holds no weights: mlx-lm reads model*.safetensors")
    return [folder / name for name in sorted(names)]


def fact(config: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """Return the first of these numbers that the config knows, in its text part first; None for none."""
    text = config.get("text_config")
    for part in (text if isinstance(text, dict) else {}, config):
        for name in names:
            value = part.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def needed(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """Return a number without which no model can be placed."""
    value = fact(config, names)
    if value is None:
        raise ModelFolderError(f"config.json does not tell {names[0]} (nor {', '.join(names[1:])})")
    return value


def kv_bytes_per_token(config: Mapping[str, Any]) -> int | None:
    """Return the bytes that one token of context takes in the cache of all layers, or None if it can't be told."""
    layers, hidden, heads = fact(config, LAYERS), fact(config, HIDDEN), fact(config, HEADS)
    if layers is None or hidden is None or heads is None:
        return None
    latent = fact(config, ("kv_lora_rank",))
    if latent is not None:  # multi-head latent attention keeps one compressed vector and the rotary part
        per_layer = latent + (fact(config, ("qk_rope_head_dim",)) or 0)
    else:
        per_layer = 2 * (fact(config, KV_HEADS) or heads) * (fact(config, ("head_dim",)) or hidden // heads)
    return layers * per_layer * KV_ELEMENT_BYTES


def quantization(config: Mapping[str, Any]) -> str:
    """Name the quantisation that the config tells, for example `4-bit`; '' for none."""
    found = config.get("quantization") or config.get("quantization_config")
    if not isinstance(found, dict):
        return ""
    if isinstance(found.get("bits"), int):
        return f"{found['bits']}-bit"
    return str(found.get("quant_method") or found.get("mode") or "")


def main_dtype(tensors: Iterable[tuple[str, int]]) -> str:
    """Return the type that most bytes are in, in safetensors' spelling: `BF16`."""
    sums: dict[str, int] = {}
    for dtype, size in tensors:
        sums[dtype] = sums.get(dtype, 0) + size
    return max(sums, key=lambda dtype: sums[dtype], default="")


def split_bytes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return what the first rank, the last rank and all layers together hold.

    Without a head of its own the model uses the embedding again, and the last rank holds it a second time.
    """
    embedding = head = layers = 0
    for name, size in sizes.items():
        parts = set(name.split("."))
        if parts & OUTPUTS:
            head += size
        elif parts & LAYER_LISTS and not any(part.startswith("vision") for part in parts):
            layers += size
        elif parts & EMBEDDINGS:
            embedding += size
    return {"embedding_bytes": embedding, "head_bytes": head or embedding, "layers_bytes": layers}
