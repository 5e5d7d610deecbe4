"""Settings: what the environment says, whose name wins, and what is refused."""

from pathlib import Path

import pytest

from exo_celery.errors import ConfigurationError
from exo_celery.settings import load, node_id, parse_bytes


def test_nothing_set_gives_the_defaults() -> None:
    settings = load({})
    assert settings.redis_url == "redis://127.0.0.1:6379/0"
    assert settings.namespace == "exo"
    assert settings.report_seconds == 300
    assert settings.auto_place
    assert settings.writable_dirs == (settings.data_dir / "models",)


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({"REDIS_URL": "redis://c"}, "redis://c"),
        ({"REDIS_URL": "redis://c", "CELERY_BROKER_URL": "redis://b"}, "redis://b"),
        ({"REDIS_URL": "redis://c", "CELERY_BROKER_URL": "redis://b", "EXO_REDIS_URL": "redis://a"}, "redis://a"),
        ({"CELERY_BROKER_URL": "redis://b", "EXO_REDIS_URL": ""}, "redis://b"),
    ],
)
def test_our_own_name_wins(environ: dict[str, str], url: str) -> None:
    assert load(environ).redis_url == url


def test_lists_sizes_and_switches_are_read_as_people_write_them() -> None:
    settings = load(
        {
            "EXO_MODELS_DIRS": "/a:/b",
            "EXO_LABELS": "fast, upstairs",
            "EXO_MEMORY_LIMIT": "7.5GiB",
            "EXO_OFFLINE": "1",
            "EXO_AUTO_PLACE": "false",
            "EXO_REPORT_SECONDS": "5",
        }
    )
    assert settings.models_dirs == settings.writable_dirs == (Path("/a"), Path("/b"))
    assert settings.labels == ("fast", "upstairs")
    assert settings.memory_limit == int(7.5 * 2**30)
    assert settings.offline
    assert not settings.auto_place
    assert settings.report_seconds == 5


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("8G", 8 * 10**9), ("8 GB", 8 * 10**9), ("1kib", 1024), ("0.5Ti", 2**39)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("EXO_MEMORY_LIMIT", "much"),
        ("EXO_MEMORY_LIMIT", "-1G"),
        ("EXO_REPORT_SECONDS", "0"),
        ("EXO_REPORT_SECONDS", "soon"),
        ("EXO_NAMESPACE", "a b"),
        ("EXO_NAMESPACE", "a:b"),
        ("EXO_SERVE_SLOTS", "0"),
    ],
)
def test_a_bad_value_is_refused_and_named(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text if name == "EXO_MEMORY_LIMIT" else name[4:].lower()):
        load({name: text})


def test_a_misspelt_name_is_told() -> None:
    with pytest.warns(UserWarning, match="EXO_REDIS_ULR"):
        load({"EXO_REDIS_ULR": "redis://a"})


def test_the_secret_may_lie_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    assert load({"EXO_CLUSTER_SECRET_FILE": str(tmp_path / "secret")}).cluster_secret == "s3cret"
    with pytest.raises(ConfigurationError, match="EXO_CLUSTER_SECRET_FILE"):
        load({"EXO_CLUSTER_SECRET_FILE": str(tmp_path / "none")})


def test_a_node_id_is_made_once_and_kept(tmp_path: Path) -> None:
    settings = load({"EXO_DATA_DIR": str(tmp_path / "data")})
    first = node_id(settings)
    assert first == node_id(settings) == (tmp_path / "data" / "node_id").read_text()
    assert node_id(settings.model_copy(update={"node_id": "mine"})) == "mine"


@pytest.mark.parametrize("text", ["a b", "a.b", "-a", "a/b", "a" * 64])
def test_a_node_id_must_fit_keys_and_queue_names(text: str) -> None:
    with pytest.raises(ConfigurationError, match="EXO_NODE_ID"):
        node_id(load({"EXO_NODE_ID": text}))
