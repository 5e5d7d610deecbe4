"""The embedded server: private, on loopback, keeps what it was told, and says why it does not start."""

import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import AuthenticationError, Redis

from exo_celery.errors import UnavailableError
from exo_celery.local import redis_server
from exo_celery.settings import Settings
from exo_celery.store.client import connect


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / 'a "quoted" folder'


@pytest.fixture
def server(folder: Path) -> Iterator[redis_server.RedisServer]:
    server = redis_server.prepare(folder, redis_server.wheel_binary())
    process = redis_server.start(server, folder / "log")
    yield server
    process.terminate()
    assert process.wait(10) == 0


def test_it_is_private(server: redis_server.RedisServer, folder: Path) -> None:
    assert stat.S_IMODE((folder / "redis.conf").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    stranger = connect(Settings(redis_url=f"redis://127.0.0.1:{server.port}/0"), retries=0)
    with stranger, pytest.raises(AuthenticationError):
        stranger.ping()


def test_it_is_set_up_as_a_record_store(server: redis_server.RedisServer) -> None:
    with Redis.from_url(server.url, decode_responses=True) as client:
        told = client.config_get("bind", "appendonly", "appendfsync", "maxmemory-policy", "save")
    assert told == {
        "bind": "127.0.0.1",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "save": "",
    }


def test_it_keeps_its_data_over_a_kill(folder: Path) -> None:
    server = redis_server.prepare(folder, redis_server.wheel_binary())
    process = redis_server.start(server, folder / "log")
    with Redis.from_url(server.url, decode_responses=True) as client:
        client.set("kept", "yes")
        time.sleep(1.2)  # appendfsync everysec
    process.kill()
    process.wait()
    process = redis_server.start(server, folder / "log")
    with Redis.from_url(server.url, decode_responses=True) as client:
        assert client.get("kept") == "yes"
    process.terminate()
    process.wait()


def test_a_server_that_ends_at_once_is_told_with_its_log(server: redis_server.RedisServer, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="log-of-second"):
        redis_server.start(
            redis_server.RedisServer(server.argv, redis_server.free_port(), server.password),
            tmp_path / "log-of-second",
        )
