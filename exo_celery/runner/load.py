"""Loading a shard: only the local tensors are read, in the precision that the machine computes fastest in."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import psutil
from mlx.nn.layers.base import Module
from mlx.nn.layers.distributed import AllToShardedLinear, ShardedToAllLinear
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import dequantize_model, load_model

from exo_celery.errors import ModelFolderError, RunnerError
from exo_celery.runner import cpu
from exo_celery.runner.parallel import Boundary, layer_list, stage
from exo_celery.runner.protocol import ShardSpec
from exo_celery.runner.slices import Slices, cut

# Where a checkpoint states its context, by family.
CONTEXT_FIELDS: Final = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")
DEFAULT_CONTEXT: Final = 4096
LINEAR: Final = (Linear, AllToShardedLinear, ShardedToAllLinear)


@dataclass(frozen=True)
class Shard:
    """A loaded shard. `boundary` carries the hidden states at its edges; `slices` is what a tensor ring joins."""

    model: Module
    config: dict[str, Any]
    boundary: Boundary
    weights_bytes: int
    slices: Slices | None = None

    @property
    def context_length(self) -> int:
        """How many positions the model was made for."""
        text = self.config.get("text_config") or {}
        found = (source[field] for source in (self.config, text) for field in CONTEXT_FIELDS if field in source)
        return int(next(found, DEFAULT_CONTEXT))

    @property
    def item_bytes(self) -> int:
        """Bytes of a number in the hidden states: norms may be kept in more than a model computes with."""
        return min(array.dtype.size for _, array in arrays(self.model) if mx.issubdtype(array.dtype, mx.floating))


def load_shard(spec: ShardSpec, on_layer: Callable[[int], None]) -> Shard:
    """Load a shard, layer by layer; `on_layer` hears how many layers are in memory.

    Raises:
        ModelFolderError: the files are not a model that mlx-lm can read.
        RunnerError: the model has another number of layers, or cannot be split or cut.
    """
    model, config = open_lazily(spec.model_dir)
    layers = layer_list(model)
    if len(layers) != spec.n_layers:
        raise RunnerError(f"{spec.model_dir.name} has {len(layers)} layers, the placement says {spec.n_layers}")
    local = slice(spec.start_layer, spec.end_layer)
    on_cpu = mx.default_device() == mx.cpu
    if on_cpu:
        memory_bytes = spec.memory_bytes or psutil.virtual_memory().available
        use_float32(model, layers[local], memory_bytes * (spec.world if spec.sliced else 1))
    boundary = Boundary()
    slices = cut(model, spec.rank, spec.world, boundary) if spec.sliced else None
    if on_cpu:
        cpu.speed_up(model)
        lay_out_by_input(model, has_head=spec.is_first if spec.sliced else spec.is_last)
    if not spec.sliced:
        take_place(model, spec, boundary)
    before = mx.get_active_memory()
    for done, layer in enumerate(layers[local], start=1):
        mx.eval(layer.parameters())
        mx.clear_cache()
        on_layer(done)
    if slices is None:
        touch_edges(model, boundary, spec)
    else:
        touch(model, boundary, head=spec.is_first or slices.head_is_cut)
    return Shard(model, config, boundary, mx.get_active_memory() - before, slices)


def take_place(model: Module, spec: ShardSpec, boundary: Boundary) -> None:
    """Make a rank's stage of the model; one rank alone is a stage too if its layers are a chain.

    Raises:
        RunnerError: the layers are no chain, and there are other ranks.
    """
    try:
        stage(model, spec.start_layer, spec.end_layer, boundary)
    except RunnerError:
        if spec.world > 1:
            raise


def open_lazily(model_dir: Path) -> tuple[Module, dict[str, Any]]:
    """Build the model with arrays that read their bytes when they are first needed."""
    try:
        model, config = load_model(model_dir, lazy=True)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise ModelFolderError(f"{model_dir.name} cannot be loaded: {error}") from error
    return model, config


def use_float32(model: Module, local: list[Module], memory_bytes: int) -> None:
    """Convert to float32, which CPUs compute fastest in; dequantise too where the result fits in half the memory.

    Nothing is computed here: the arrays are converted when they are read.
    """
    model.set_dtype(mx.float32)
    if sum(dequantized_bytes(layer) for layer in local) < memory_bytes / 2:
        dequantize_model(model)
        model.set_dtype(mx.float32)


def lay_out_by_input(model: Module, *, has_head: bool) -> None:
    """Store float32 weights so that what one input gives to all outputs lies together; shapes stay as they are.

    For a few rows BLAS spends most of its time on copying a weight into its own order, and copies this one twice as
    fast. An embedding is a weight too where a head is tied to it. Nothing is computed here.
    """
    tied = has_head and not any(name.endswith("lm_head") for name, _ in model.named_modules())
    for module in model.modules():
        is_weight = isinstance(module, LINEAR) or (tied and type(module) is Embedding)
        if is_weight and module.weight.dtype == mx.float32:
            module.weight = mx.contiguous(module.weight.T).T


def dequantized_bytes(module: Module) -> int:
    """Return the bytes of a module's parameters as float32 weights."""
    total = sum(array.nbytes for _, array in arrays(module))
    for part in module.modules():
        if hasattr(part, "bits"):
            total += part.weight.size * 32 // part.bits * 4 - part.weight.nbytes
    return int(total)


def arrays(module: Module) -> list[tuple[str, mx.array]]:
    """Return a module's parameters by their paths."""
    return list(dict(tree_flatten(module.parameters())).items())


def touch_edges(model: Module, boundary: Boundary, spec: ShardSpec) -> None:
    """Run the shard once on nothing, so that what it needs besides its layers (embedding, norm, head) is read too."""
    if not spec.is_first:
        model(mx.array([[0]]), cache=make_prompt_cache(model))
        assert boundary.outgoing is not None
        boundary.incoming = mx.zeros(boundary.outgoing.shape, boundary.outgoing.dtype)
    touch(model, boundary, head=spec.is_last)


def touch(model: Module, boundary: Boundary, *, head: bool) -> None:
    """Read what a step of this shard needs, with or without norm and head."""
    logits = model(mx.array([[0]]), cache=make_prompt_cache(model))
    mx.eval(logits if head else boundary.outgoing)
    boundary.incoming = boundary.outgoing = None
    mx.clear_cache()
