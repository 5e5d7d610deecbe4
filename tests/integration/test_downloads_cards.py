"""Cards of models that somebody names: from here, from the hub, from what is built in."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from lookalike.checkpoints import cut, write_model
from lookalike.hub import Hub, status

from exo_celery.errors import ModelFolderError, ModelNotFoundError, UnavailableError
from exo_celery.models.known import find_card
from exo_celery.settings import Settings

MODEL = "org/tiny"
LLAMA = "mlx-community/Llama-3.2-1B-Instruct-4bit"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    write_model(tmp_path / "upstream", layers=3)
    with Hub({MODEL: tmp_path / "upstream"}) as made:
        yield made


@pytest.fixture
def settings(tmp_path: Path, hub: Hub) -> Settings:
    return Settings(
        hf_endpoint=hub.url,
        models_dirs=(tmp_path / "models",),
        source_dirs=(tmp_path / "source",),
        hf_home=tmp_path / "hf",
    )


@pytest.mark.parametrize("where", ["models", "source", "hf/hub/models--org--tiny/snapshots/c0ffee"])
def test_what_is_here_is_not_asked_for_elsewhere(settings: Settings, hub: Hub, tmp_path: Path, where: str) -> None:
    folder = tmp_path / where if "snapshots" in where else tmp_path / where / "org--tiny"
    write_model(folder, layers=7)
    card = find_card(settings, MODEL)
    assert (card.n_layers, card.source) == (7, str(folder))
    assert hub.seen == []


def test_what_is_not_whole_here_is_asked_for_at_the_hub(settings: Settings, hub: Hub, tmp_path: Path) -> None:
    cut(write_model(tmp_path / "models" / "org--tiny", layers=7) / "model.safetensors", 9000)
    assert find_card(settings, MODEL).n_layers == 3


def test_a_named_folder_must_be_whole(settings: Settings, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "anywhere", layers=5)
    assert find_card(settings, MODEL, folder).n_layers == 5
    cut(folder / "model.safetensors", 9000)
    with pytest.raises(ModelFolderError, match="truncated"):
        find_card(settings, MODEL, folder)
    with pytest.raises(ModelFolderError, match="no such folder"):
        find_card(settings, MODEL, tmp_path / "nowhere")


def test_what_the_hub_does_not_have_is_not_found(settings: Settings) -> None:
    with pytest.raises(ModelNotFoundError, match="Check the id at"):
        find_card(settings, "org/other")


def test_while_the_hub_is_away_only_the_well_known_are_known(settings: Settings, hub: Hub) -> None:
    hub.when("/api/models/", status(503), times=9)
    with pytest.raises(UnavailableError, match="Try again later"):
        find_card(settings, MODEL)
    assert find_card(settings, LLAMA).source == "built-in"


def test_offline_nothing_is_asked(settings: Settings, hub: Hub) -> None:
    offline = settings.model_copy(update={"offline": True})
    assert find_card(offline, LLAMA).n_layers == 16
    with pytest.raises(ModelNotFoundError, match="offline"):
        find_card(offline, MODEL)
    assert hub.seen == []
