"""The documents tell all: every setting, queue, command and make target stands in one of them."""

import re
from pathlib import Path

import pytest

from exo_celery import queues
from exo_celery.cli import main
from exo_celery.settings import OTHER_VARIABLES, Settings, variables

ROOT = Path(__file__).parents[2]
DOCUMENTS = "\n".join((ROOT / name).read_text() for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"))
# Set by a parent process for its child, never by people.
INTERNAL = {"serve_instance", "serve_model", "serve_socket"}


@pytest.mark.parametrize("name", sorted(set(Settings.model_fields) - INTERNAL))
def test_each_setting(name: str) -> None:
    assert all(f"`{variable}`" in DOCUMENTS for variable in variables(name))


@pytest.mark.parametrize("variable", sorted(OTHER_VARIABLES))
def test_each_other_variable(variable: str) -> None:
    assert f"`{variable}`" in DOCUMENTS


@pytest.mark.parametrize("queue", [queues.CLUSTER, queues.node_queue("<id>"), queues.model_queue("<model id>")])
def test_each_queue(queue: str) -> None:
    assert f"`{queue}`" in DOCUMENTS


@pytest.mark.parametrize("command", sorted(main.commands))
def test_each_command(command: str) -> None:
    assert f"exo-celery {command}" in DOCUMENTS


@pytest.mark.parametrize("target", re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
def test_each_make_target(target: str) -> None:
    assert f"make {target}" in DOCUMENTS or target in ("install", "clean")


def test_pages_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", DOCUMENTS)
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]
