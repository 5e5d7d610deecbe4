"""How commands show fields."""

import pytest

from exo_celery.local import show


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("total_bytes", 0, "0 B"),
        ("total_bytes", 98_351_102, "98.4 MB"),
        ("total_bytes", 5 * 10**15, "5000.0 TB"),
        ("alive", True, "yes"),
        ("error", None, "-"),
        ("backends", ["MlxMetal", "MlxCpu"], "MlxMetal, MlxCpu"),
        ("text", "a" * 121, "a" * 119 + "…"),
        ("ring", [{"node": "a", "start_layer": 0, "end_layer": 15}], "a [0, 15)"),
    ],
)
def test_cells(name: str, value: object, text: str) -> None:
    assert show.cell(name, value) == text
