"""How many tokens of key-value cache fit into this machine. Pure."""

from dataclasses import dataclass
from typing import Any, Final

# Shares of the memory that is free once the weights are loaded.
LIVE_SHARE: Final = 0.5
KEPT_SHARE: Final = 0.1
# What a token takes in a layer where the configuration does not tell: 32 heads of 128 numbers, twice.
UNKNOWN_ITEMS: Final = 2 * 32 * 128


@dataclass(frozen=True)
class TokenBudget:
    """Tokens in the caches of live rows, and in those kept for later prompts."""

    live: int
    kept: int


def token_budget(config: dict[str, Any], layers: int, item_bytes: int, free_bytes: int) -> TokenBudget:
    """Return how many tokens a rank has room for, with so many layers and so many bytes for each number."""
    each = kv_items_per_layer(config.get("text_config") or config) * layers * item_bytes
    return TokenBudget(live=int(free_bytes * LIVE_SHARE / each), kept=int(free_bytes * KEPT_SHARE / each))


def kv_items_per_layer(config: dict[str, Any]) -> int:
    """Return how many numbers one token's keys and values are in one layer, from the checkpoint's configuration."""
    heads = config.get("num_attention_heads")
    hidden = config.get("hidden_size")
    if not heads or not hidden:
        return UNKNOWN_ITEMS
    head_dim = config.get("head_dim") or hidden // heads
    return int(2 * (config.get("num_key_value_heads") or heads) * head_dim)
