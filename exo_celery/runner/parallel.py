"""One pipeline stage out of any model: ghost layers.

Every layer slot of the model stays. A layer that another rank holds becomes a ghost: it passes its input on and only
advances its cache entry, so every index, pattern and mask choice of the model's own code stays valid. The stage's
first layer takes the hidden state that came in, its last layer shows the one that goes out; what the model computes
around them (embedding, norm, head) is never evaluated where nobody asks for it, because MLX is lazy.
"""

import inspect
import threading
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import make_prompt_cache

from exo_celery.errors import RunnerError


class Boundary(threading.local):
    """The hidden states at a stage's edges, (batch, length, hidden); each thread has its own.

    `ends` (batch,) names the one position of each row that norm and head are wanted for; None is for all.
    """

    incoming: mx.array | None = None
    outgoing: mx.array | None = None
    ends: mx.array | None = None


class Wrapped(Module):
    """A layer in disguise: the model still finds the layer's own attributes on it."""

    def __init__(self, layer: Module) -> None:
        Module.__init__(self)
        self["layer"] = layer  # an attribute would be looked up on the layer first

    def __getattr__(self, key: str) -> Any:
        if key in self:
            return self[key]
        return getattr(self["layer"], key)


class Edge(Wrapped):
    """A local layer at an edge of the stage."""

    def __init__(self, layer: Module, boundary: Boundary, *, first: bool, last: bool) -> None:
        super().__init__(layer)
        # Kept away from nn.Module's own bookkeeping: it is not a parameter.
        object.__setattr__(self, "_edge", (boundary, first, last))

    def __call__(self, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        """Run the layer on what came in, show what goes out, and pass on what is wanted of it."""
        boundary, first, last = object.__getattribute__(self, "_edge")
        if first and boundary.incoming is not None:
            x = boundary.incoming
        y: mx.array = self["layer"](x, *args, **kwargs)
        if last:
            boundary.outgoing = y
            if boundary.ends is not None:
                y = mx.take_along_axis(y, boundary.ends[:, None, None], axis=1)
        return y


class Ghost(Wrapped):
    """A layer that another rank holds."""

    def __init__(self, layer: Module) -> None:
        super().__init__(layer)
        for module in layer.modules():
            for key in [key for key, value in module.items() if isinstance(value, mx.array)]:
                del module[key]

    def __call__(self, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        """Pass the input on and advance the layer's cache."""
        advance(cache_argument(self["layer"], x, args, kwargs), x)
        return x


def cache_argument(layer: Module, x: mx.array, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the cache entry that a layer is called with."""
    bound = inspect.signature(type(layer).__call__).bind_partial(layer, x, *args, **kwargs)
    return bound.arguments.get("cache")


def advance(cache: Any, x: mx.array) -> None:
    """Let a cache entry see as many positions as `x` has, at next to no cost."""
    batch, length = x.shape[:2]
    entry = cache[0] if hasattr(cache, "caches") else cache
    if entry is None:
        return
    if hasattr(entry, "update_and_fetch"):
        nothing = mx.zeros((batch, 1, length, 1), dtype=x.dtype)
        entry.update_and_fetch(nothing, nothing)
    elif hasattr(entry, "advance"):
        if entry.cache[0] is None:
            entry.cache = [mx.zeros((batch, 1), dtype=x.dtype) for _ in entry.cache]
        entry.advance(length)


def layer_list(model: Module) -> list[Module]:
    """Return the list in which the model keeps its layers, for changing it in place.

    Raises:
        RunnerError: the model has no such list.
    """
    layers = list(getattr(model, "layers", ()))
    for module in model.modules():
        for value in module.values():
            if isinstance(value, list) and layers and len(value) == len(layers) and value[0] is layers[0]:
                return value
    raise RunnerError(f"{name_of(model)} keeps no list of layers: run it on one node")


def name_of(model: Module) -> str:
    """Return an architecture's name for people."""
    return str(getattr(model, "model_type", type(model).__module__.rsplit(".", 1)[-1]))


def stage(model: Module, start: int, end: int, boundary: Boundary) -> None:
    """Turn a lazily loaded model into the stage that holds layers `[start, end)`, in place.

    Raises:
        RunnerError: this architecture cannot be split between layers.
    """
    layers = layer_list(model)
    check_chain(model, layers)
    for i, layer in enumerate(layers):
        if not start <= i < end:
            layers[i] = Ghost(layer)
        elif i in (start, end - 1):
            layers[i] = Edge(layer, boundary, first=i == start, last=i == end - 1)


Call = tuple[mx.array, mx.array, Any]  # input, output, cache entry


class Probe(Wrapped):
    """A layer that notes how it is called."""

    def __init__(self, layer: Module, calls: list[Call]) -> None:
        super().__init__(layer)
        object.__setattr__(self, "_calls", calls)

    def __call__(self, x: mx.array, *args: Any, **kwargs: Any) -> Any:
        """Run the layer; note its input, its output and its cache entry."""
        calls = object.__getattribute__(self, "_calls")
        y = self["layer"](x, *args, **kwargs)
        if not isinstance(y, mx.array) or y.shape != x.shape:
            raise RunnerError(f"layer {len(calls)} returns more than a hidden state")
        calls.append((x, y, cache_argument(self["layer"], x, args, kwargs)))
        return y


def check_chain(model: Module, layers: list[Module]) -> None:
    """Refuse a model whose layers are not a plain chain. Nothing is computed: the call only builds a graph.

    Raises:
        RunnerError: what passes between two layers is more than one hidden state, or layers share a cache.
    """
    calls: list[Call] = []
    plain = list(layers)
    layers[:] = [Probe(layer, calls) for layer in plain]
    cache = make_prompt_cache(model)
    try:
        model(mx.array([[0, 0]]), cache=cache)
        check_calls(calls, cache, len(plain))
    except RunnerError as error:
        raise RunnerError(
            f"{name_of(model)} cannot be split into a pipeline: {error.message}; run it on one node"
        ) from error
    finally:
        layers[:] = plain


def check_calls(calls: list[Call], cache: list[Any], n_layers: int) -> None:
    """Check that calls of layers (input, output, cache entry) are a chain in the layers' order.

    Raises:
        RunnerError: they are not; the message says where.
    """
    if len(calls) != n_layers:
        raise RunnerError(f"{len(calls)} of its {n_layers} layers run in a step")
    if len({id(entry) for _, _, entry in calls}) != n_layers or len(cache) != n_layers:
        raise RunnerError("layers share a cache")
    for i in range(1, n_layers):
        if calls[i][0] is not calls[i - 1][1]:
            raise RunnerError(f"something happens between layers {i - 1} and {i}")
