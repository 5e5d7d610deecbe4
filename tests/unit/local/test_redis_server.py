"""Which server is embedded: a recent one on PATH, else the wheel's."""

from pathlib import Path

import pytest

from exo_celery.errors import ConfigurationError
from exo_celery.local import redis_server


def test_no_server_anywhere_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(redis_server, "wheel_binary", lambda: tmp_path / "none")
    with pytest.raises(ConfigurationError, match="EXO_REDIS_URL"):
        redis_server.find_binary()


def test_a_server_that_is_too_old_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "redis-server"
    old.write_text("#!/bin/sh\necho 'Redis server v=6.2.14 sha=0'\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/local/none")
    assert redis_server.version(old) == (6, 2)
    monkeypatch.setattr(redis_server.shutil, "which", lambda name: str(old))
    assert redis_server.find_binary() == redis_server.wheel_binary()
