"""What a model asks of the memory of a ring's nodes, counted in layers."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Self

from exo_celery.records.instance import PlacementRequest
from exo_celery.records.model import ModelCard


@dataclass(frozen=True, slots=True)
class Demand:
    """What the ranks must hold. `layer_bytes` is one layer's share; embedding and head sit whole on the first and the
    last rank and count as `first_layers` and `last_layers`, rounded up, 0 where the card does not tell.

    So a ring can hold the model when its nodes' capacities add up to `need` and each has room for `least`: one layer,
    and the larger end too, for any node of a ring may become its end. Each rank of a tensor ring holds its slice of
    `tensor_bytes` and all of `whole_bytes`.
    """

    layers: int
    layer_bytes: Fraction
    embedding_bytes: int = 0
    head_bytes: int = 0
    first_layers: int = 0
    last_layers: int = 0
    tensor_bytes: int = 0
    whole_bytes: int = 0

    @classmethod
    def of(cls, card: ModelCard, request: PlacementRequest) -> Self:
        """Read the demand from the card's total bytes, or weigh the ends and the KV cache in where both are told.

        Weighing needs a context in the request. The cache is `kv_bytes_per_token` (all layers together) times context
        times concurrent sequences, and is spread over the layers.
        """
        cache = (card.kv_bytes_per_token or 0) * (request.context_tokens or 0) * request.concurrency
        whole = card.storage_bytes + cache
        ends = (card.embedding_bytes, card.head_bytes, card.layers_bytes)
        if request.context_tokens is None or None in ends:
            return cls(card.n_layers, Fraction(whole, card.n_layers), tensor_bytes=whole)
        embedding, head, layers = (size or 0 for size in ends)
        layer = Fraction(layers + cache, card.n_layers)
        return cls(
            card.n_layers,
            layer,
            embedding,
            head,
            ceil(embedding / layer) if layer else 0,
            ceil(head / layer) if layer else 0,
            tensor_bytes=layers + cache,
            whole_bytes=max(0, card.storage_bytes - layers),
        )

    @property
    def need(self) -> int:
        """Layers that a ring must have room for, the ends included."""
        return self.layers + self.first_layers + self.last_layers

    @property
    def least(self) -> int:
        """Layers that each node must have room for."""
        return 1 + max(self.first_layers, self.last_layers)

    @property
    def least_bytes(self) -> int:
        """Bytes that each node must have free for this."""
        return ceil(self.least * self.layer_bytes)

    def capacities(self, free_bytes: Iterable[int]) -> list[int]:
        """Return how many layers fit into each of these bytes; a model of no bytes fits anywhere."""
        size, parts = self.layer_bytes.numerator, self.layer_bytes.denominator
        return [free * parts // size if size else self.need for free in free_bytes]

    def rank_bytes(self, layers: int, *, first: bool, last: bool) -> int:
        """Return what a rank of a pipeline will hold."""
        ends = self.embedding_bytes * first + self.head_bytes * last
        return ceil(layers * self.layer_bytes) + ends

    def slice_bytes(self, size: int) -> int:
        """Return what each of `size` ranks holds of a model that is cut through every layer, not through its ends."""
        return self.whole_bytes + -(-self.tensor_bytes // size)
