"""How many tokens of key-value cache fit into this machine. Pure."""

from dataclasses import dataclass
from typing import Any, Final

# Shares of the memory that is free once the weights are loaded.
LIVE_SHARE: Final = 0.5
KEPT_SHARE: Final = 0.05
# What a token takes where the configuration does not tell: a model of 8 billion parameters in float32.
UNKNOWN_BYTES: Final = 256 * 1024
CACHE_ITEM_BYTES: Final = 4


@dataclass(frozen=True)
class TokenBudget:
    """Tokens in the caches of live rows, and in those kept for later prompts."""

    live: int
    kept: int


def token_budget(config: dict[str, Any], layers: int, free_bytes: int) -> TokenBudget:
    """Return how many tokens a rank with so many layers has room for."""
    each = kv_bytes_per_layer(config.get("text_config") or config) * layers
    return TokenBudget(live=int(free_bytes * LIVE_SHARE / each), kept=int(free_bytes * KEPT_SHARE / each))


def kv_bytes_per_layer(config: dict[str, Any]) -> int:
    """Return the bytes of one token's keys and values in one layer, from the checkpoint's configuration."""
    heads = config.get("num_attention_heads")
    hidden = config.get("hidden_size")
    if not heads or not hidden:
        return UNKNOWN_BYTES
    head_dim = config.get("head_dim") or hidden // heads
    return int(2 * (config.get("num_key_value_heads") or heads) * head_dim * CACHE_ITEM_BYTES)
