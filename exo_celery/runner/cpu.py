"""What MLX computes slowly on a CPU, in words that it computes fast: the same numbers but for their last bits.

mlx-lm's models call both by a name of their own module; a runner, which holds one model, lets the name mean ours.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import mlx.core as mx
from mlx.nn.layers.base import Module

# The logistic function is 1/2 + x P(x²) / Q(x²) up to here, and 0 or 1 beyond: a rational least-squares fit whose error
# is below that of float32. MLX's exponential takes thirty times as long as a product.
EDGE: Final = 18.0
P: Final = (1.2875232997811015e-11, 7.996813877753084e-08, 5.447785588330589e-05, 0.008358249440789223, 0.25)
Q: Final = (3.008855609110128e-09, 5.111542122904211e-06, 0.0016151239397004247, 0.11676623672246933, 1.0)
FEW: Final = 4096  # elements: for fewer, more operations cost more than they save

Function = Callable[..., mx.array]


def speed_up(model: Module) -> None:
    """Let a model's modules call these functions."""
    homes = {sys.modules[type(module).__module__] for module in model.modules()}
    for home in homes:
        for name, faster in (("scaled_dot_product_attention", sharing_keys), ("swiglu", rational)):
            if home.__name__.startswith("mlx_lm.models") and hasattr(home, name):
                setattr(home, name, faster(getattr(home, name)))


def sharing_keys(attention: Function) -> Function:
    """Compute query heads that share keys as if they were positions: else the keys are copied for each of them.

    This holds for one position a row, where all heads see the same; whatever else comes goes its usual way.
    """

    def attend(queries: mx.array, keys: mx.array, values: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        batch, heads, length, _ = queries.shape
        mask = kwargs.get("mask")
        plain = not args and kwargs.get("sinks") is None and isinstance(keys, mx.array)
        if not plain or length > 1 or keys.shape[1] == heads or not sees_alike(mask):
            return attention(queries, keys, values, *args, **kwargs)
        folded = queries.reshape(batch, keys.shape[1], heads // keys.shape[1], -1)
        return attention(folded, keys, values, **kwargs).reshape(batch, heads, 1, -1)

    return attend


def sees_alike(mask: Any) -> bool:
    """Say whether a mask is the same for all heads and positions."""
    return mask is None or (isinstance(mask, mx.array) and (mask.ndim < 3 or mask.shape[-3] == 1))


def rational(swiglu: Function) -> Function:
    """Compute swiglu (Shazeer 2020) with a rational logistic function, in float32."""

    def act(gate: mx.array, x: mx.array) -> mx.array:
        return swiglu(gate, x) if gate.dtype != mx.float32 or gate.size < FEW else rational_swiglu(gate, x)

    return act


@partial(mx.compile, shapeless=True)
def rational_swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """Return gate · logistic(gate) · x."""
    inner = mx.minimum(mx.maximum(gate, -EDGE), EDGE)
    square = inner * inner
    return gate * (0.5 + inner * horner(P, square) / horner(Q, square)) * x


def horner(coefficients: tuple[float, ...], x: mx.array) -> mx.array:
    """Return a polynomial's value, the highest power first."""
    first, second, *others = coefficients
    value = first * x + second
    for coefficient in others:
        value = value * x + coefficient
    return value
