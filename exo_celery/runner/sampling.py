"""Choosing tokens, on the last rank. Each row has its own stream of random numbers, so company changes nothing."""

import mlx.core as mx
import numpy as np

from exo_celery.runner.step import Sampling


class Sampler:
    """One row's way to choose."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._key = mx.random.key(sampling.seed)

    @property
    def greedy(self) -> bool:
        """Say whether the likeliest token is taken."""
        return self.sampling.temperature == 0

    def choose(self, logits: mx.array) -> mx.array:
        """Return a token, shape (), for logits of shape (vocabulary,)."""
        self._key, key = mx.random.split(self._key)
        logits = logits.astype(mx.float32) / self.sampling.temperature
        return mx.random.categorical(nucleus(logits, self.sampling.top_p), key=key)


def nucleus(logits: mx.array, top_p: float) -> mx.array:
    """Keep the likeliest tokens that together have the probability `top_p` (Holtzman et al. 2020, top-p)."""
    if top_p >= 1:
        return logits
    order = mx.argsort(-logits)
    above = mx.cumsum(mx.softmax(logits[order], axis=-1), inclusive=False)
    kept = mx.where(above < top_p, logits[order], -mx.inf)
    return mx.put_along_axis(logits, order, kept, axis=-1)


def sample(logits: mx.array, samplers: list[Sampler]) -> tuple[int, ...]:
    """Return one token for each row of logits (rows, vocabulary)."""
    if all(sampler.greedy for sampler in samplers):
        return integers(mx.argmax(logits, axis=-1))
    likeliest = mx.argmax(logits, axis=-1)
    chosen = [likeliest[i] if s.greedy else s.choose(logits[i]) for i, s in enumerate(samplers)]
    return integers(mx.stack([token.astype(mx.uint32) for token in chosen]))


def integers(array: mx.array) -> tuple[int, ...]:
    """Return the values of an array of shape (n,)."""
    return tuple(int(value) for value in np.array(array))
