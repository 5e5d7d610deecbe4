"""Choosing tokens, on the last rank. Each row has its own stream of random numbers, so company changes nothing."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import mlx.core as mx
import numpy as np

from exo_celery.runner.step import Choice, Sampling

NEVER: Final = -mx.inf


class Sampler:
    """One row's way to choose, and what it has chosen so far."""

    def __init__(self, sampling: Sampling, prompt: tuple[int, ...]) -> None:
        self.sampling = sampling
        self.key = mx.random.key(sampling.seed)
        self._seen = Counter[int]()  # generated tokens
        self._prompt = frozenset(prompt) if sampling.repetition_penalty != 1 else frozenset()

    @property
    def plain(self) -> bool:
        """Say whether the likeliest token is all that is asked for."""
        return self.sampling.temperature == 0 and not self.sampling.changes_logits and self.sampling.logprobs is None

    def note(self, token: int) -> None:
        """Remember a chosen token, for the penalties."""
        if self.sampling.changes_logits:
            self._seen[token] += 1

    def adjust(self, logits: mx.array) -> mx.array:
        """Apply penalties and biases to logits of shape (vocabulary,).

        Presence and frequency count generated tokens, as OpenAI's do; repetition counts the prompt too (Keskar et al.
        2019, CTRL: a positive logit is divided, a negative one multiplied).
        """
        asked = self.sampling
        repeated = sorted(self._prompt | self._seen.keys())
        if asked.repetition_penalty != 1 and repeated:
            at = mx.array(repeated)
            old = logits[at]
            factor = asked.repetition_penalty
            logits = mx.put_along_axis(logits, at, mx.where(old > 0, old / factor, old * factor), axis=-1)
        if (asked.presence_penalty or asked.frequency_penalty) and self._seen:
            counts = mx.array(list(self._seen.values()), logits.dtype)
            minus = asked.presence_penalty + asked.frequency_penalty * counts
            logits = logits.at[mx.array(list(self._seen))].subtract(minus)
        if asked.logit_bias:
            bias = mx.array(list(asked.logit_bias.values()), logits.dtype)
            logits = logits.at[mx.array(list(asked.logit_bias))].add(bias)
        return logits

    def choose(self, logits: mx.array) -> mx.array:
        """Return a token, shape (), for adjusted logits of shape (vocabulary,)."""
        asked = self.sampling
        if asked.temperature == 0:
            return mx.argmax(logits, axis=-1)
        self.key, key = mx.random.split(self.key)
        logits = logits / asked.temperature
        logits = nucleus(likeliest(above(logits, asked.min_p), asked.top_k), asked.top_p)
        return mx.random.categorical(logits, key=key)


def likeliest(logits: mx.array, top_k: int) -> mx.array:
    """Keep the `top_k` likeliest tokens (and those as likely as the last of them); 0 keeps all."""
    if top_k == 0 or top_k >= logits.size:
        return logits
    return mx.where(logits >= mx.topk(logits, top_k).min(), logits, NEVER)


def above(logits: mx.array, min_p: float) -> mx.array:
    """Keep tokens that are at least `min_p` times as likely as the likeliest (Nguyen et al. 2024, min-p)."""
    if min_p == 0:
        return logits
    return mx.where(logits >= logits.max() + mx.log(mx.array(min_p)), logits, NEVER)


def nucleus(logits: mx.array, top_p: float) -> mx.array:
    """Keep the likeliest tokens that together have the probability `top_p` (Holtzman et al. 2020, top-p)."""
    if top_p >= 1:
        return logits
    order = mx.argsort(-logits)
    before = mx.cumsum(mx.softmax(logits[order], axis=-1), inclusive=False)
    kept = mx.where(before < top_p, logits[order], NEVER)
    return mx.put_along_axis(logits, order, kept, axis=-1)


def sample(logits: mx.array, samplers: Sequence[Sampler | None], states: Sequence[Any] = ()) -> list[Choice]:
    """Return a choice for each row of logits (rows, vocabulary) that has a sampler, in their order.

    Extra work is done only for the rows that ask for it. `states` are evaluated with the tokens, in one go.
    """
    greedy = mx.argmax(logits, axis=-1)
    asking = {i: sampler for i, sampler in enumerate(samplers) if sampler and not sampler.plain}
    adjusted = {i: sampler.adjust(logits[i].astype(mx.float32)) for i, sampler in asking.items()}
    drawn = {i: sampler.choose(adjusted[i]).astype(greedy.dtype) for i, sampler in asking.items()}
    tokens = mx.stack([drawn.get(i, greedy[i]) for i in range(len(samplers))]) if drawn else greedy
    mx.eval(tokens, list(states), [sampler.key for sampler in asking.values()])
    choices = []
    for i, (token, sampler) in enumerate(zip(integers(tokens), samplers, strict=True)):
        if sampler is None:
            continue
        sampler.note(token)
        wanted = sampler.sampling.logprobs
        choices.append(Choice(token=token) if wanted is None else explained(token, adjusted[i], wanted))
    return choices


def explained(token: int, logits: mx.array, count: int) -> Choice:
    """Return a choice with its log probability and those of the `count` likeliest tokens."""
    logprobs = np.array(logits - mx.logsumexp(logits))
    top = np.argsort(-logprobs, kind="stable")[:count] if count else ()
    return Choice(
        token=token,
        logprob=float(logprobs[token]),
        top=tuple((int(other), float(logprobs[other])) for other in top),
    )


def integers(array: mx.array) -> tuple[int, ...]:
    """Return the values of an array of shape (n,)."""
    return tuple(int(value) for value in np.array(array))
