import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.containers import Sequential
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm
from mlx.nn.layers.quantized import quantize

from exo_celery.runner.load import Shard
from exo_celery.runner.parallel import Boundary


def item_bytes(model: Module) -> int:
    return Shard(model, {}, Boundary(), 0).item_bytes


def test_numbers_are_as_long_as_those_that_the_model_computes_with() -> None:
    linear, norm = Linear(64, 64), RMSNorm(64)
    model = Sequential(linear, norm)
    assert item_bytes(model) == 4
    linear.set_dtype(mx.bfloat16)
    assert item_bytes(model) == 2, "a norm may be kept in more"
    quantize(model)
    assert item_bytes(model) == 2, "quantised weights are no such numbers, their scales are"
