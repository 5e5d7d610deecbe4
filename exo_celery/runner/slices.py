"""One rank's slices of any model: mlx-lm's own `shard` cuts every layer, and the ranks add up what they computed.

The model is cut before a group exists, so that nothing has to be linked to load; until the ranks are joined it computes
with its own slices alone, which is wrong in numbers and right in shapes.
"""

import os
from dataclasses import dataclass

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.cache import make_prompt_cache

from exo_celery.errors import RunnerError
from exo_celery.runner.parallel import Boundary, Edge, layer_list, name_of

Members = tuple[tuple[Module, str], ...]


@dataclass(frozen=True)
class Place:
    """A place in a group that does not exist yet: all that `shard` asks of one."""

    number: int
    world: int

    def rank(self) -> int:
        """Return this rank."""
        return self.number

    def size(self) -> int:
        """Return how many ranks there are."""
        return self.world


@dataclass(frozen=True)
class Slices:
    """What adds up over the group: modules, and where each keeps its group; and the numbers that are added up.

    `head_is_cut`: so does what follows the layers, hence no rank gets logits without the others.
    """

    members: Members
    head_is_cut: bool
    dtype: mx.Dtype

    def join(self, group: mx.distributed.Group) -> None:
        """Let all members add up over this group from now on."""
        join(self.members, group)


def cut(model: Module, rank: int, world: int, boundary: Boundary) -> Slices:
    """Turn a lazily loaded model into one rank's slices of every layer, in place. Nothing is computed or read.

    Raises:
        RunnerError: mlx-lm cannot cut this architecture, or not into so many parts.
    """
    if not hasattr(model, "shard"):
        raise RunnerError(f"mlx-lm cannot cut {name_of(model)} into slices: ask for sharding pipeline")
    place = Place(rank, world)
    try:
        model.shard(place)
        model.update(tree_map(mx.contiguous, model.parameters()))  # a view would keep the whole array in memory
        members = keepers(model, place)
        layers = layer_list(model)
        inner = {id(module) for layer in layers for module in layer.modules()}
        layers[-1] = Edge(layers[-1], boundary, first=False, last=True)
        join(members, alone())
        model(mx.array([[0, 0]]), cache=make_prompt_cache(model))
    except (ValueError, ArithmeticError, IndexError, AssertionError) as error:
        raise RunnerError(
            f"{name_of(model)} cannot be cut into {world} slices: {error}; ask for another number of nodes or for "
            "sharding pipeline"
        ) from error
    hidden = dict(tree_flatten(boundary.outgoing))
    boundary.outgoing = None
    dtype = next(iter(hidden.values())).dtype
    return Slices(members, any(id(module) not in inner for module, _ in members), dtype)


def keepers(model: Module, place: Place) -> Members:
    """Return who keeps the group that the model was cut for."""
    members = [(module, name) for module in model.modules() for name, value in vars(module).items() if value is place]
    if not members:
        raise ValueError("nothing in it adds up over the ranks")
    return tuple(members)


def join(members: Members, group: mx.distributed.Group) -> None:
    """Give a group to whoever adds up over one."""
    for module, name in members:
        setattr(module, name, group)


def alone() -> mx.distributed.Group:
    """Return a group of this process only, whatever ring the environment tells of."""
    for name in ("MLX_HOSTFILE", "MLX_RANK"):
        os.environ.pop(name, None)
    return mx.distributed.init(strict=False, backend="ring")
