"""Into how many slices a model's layers can be cut, from its config alone."""

from collections.abc import Iterable, Mapping
from math import gcd
from typing import Any, Final

HEADS: Final = ("num_attention_heads", "linear_num_key_heads", "linear_num_value_heads")
WIDTH: Final = "intermediate_size"  # the end of each inner width's name: moe_intermediate_size and so on


def tensor_parts(config: Mapping[str, Any]) -> int | None:
    """Return a number that the size of every tensor ring divides, besides hidden size and KV heads; None: not told.

    Every rank gets as many heads, and as much of each inner width; quantised weights are only cut between their groups.
    """
    text = part(config, "text_config") or config
    group = count(part(config, "quantization").get("group_size")) or 1
    widths = [count(value) for name, value in text.items() if name.endswith(WIDTH)]
    attention = count(text.get("num_attention_heads")) * count(text.get("head_dim"))
    heads = [count(text.get(name)) for name in HEADS]
    return gcd(*heads, *whole_groups([*widths, attention], group)) or None


def part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of a config; an empty one where there is none."""
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def count(value: Any) -> int:
    """Return a number above zero as it is, and 0 for everything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def whole_groups(widths: Iterable[int], group: int) -> list[int]:
    """Return how many groups each width has, or the width itself where groups do not fit into it."""
    return [width // group if width % group == 0 else width for width in widths]
