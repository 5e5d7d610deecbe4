"""Settings: the only reader of the environment.

Every setting is an `EXO_…` variable; Celery's and Hugging Face's own names are honoured where people have them set
already. `load()` reads once per call and keeps nothing, so a test can pass its own environment.
"""

import os
import re
import socket
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from exo_celery.errors import ConfigurationError

UNITS: Final = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
NODE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


class Settings(BaseModel):
    """What a process of exo_celery was told. Sizes in bytes, times in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    redis_url: str = "redis://127.0.0.1:6379/0"
    namespace: str = Field("exo", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    node_id: str | None = None
    data_dir: Path = Path("~/.exo_celery").expanduser()
    cache_dir: Path = Path("~/.cache/exo_celery").expanduser()
    models_dirs: tuple[Path, ...] = ()
    models_read_only_dirs: tuple[Path, ...] = ()
    source_dirs: tuple[Path, ...] = ()
    offline: bool = False
    download_limit: int | None = None
    upload_limit: int | None = None
    memory_limit: int | None = None
    cluster_secret: str | None = None
    api_key: str | None = None
    # Ask for a key on loopback too: where several people share the machine, or a proxy that hides itself runs on it.
    require_key: bool = False
    # Where `exo-celery run` finds the web; without one, on this machine.
    web_url: str | None = None
    auto_place: bool = True
    # Seconds without work after which what was placed by work is unloaded; without one it stays.
    keep_alive_s: float | None = Field(None, gt=0)
    job_retention_days: float = Field(30, gt=0, le=3650)
    # Where continuations of jobs are sent to; without one, to our own Redis.
    then_broker_url: str | None = None
    # What the files of the batch API may take in Redis, compressed.
    files_quota: int = Field(2**30, ge=0)
    report_seconds: float = Field(300, gt=0)
    # The address others reach this node at; when none is given, that of the way to Redis is found.
    node_host: str | None = None
    labels: tuple[str, ...] = ()
    threads: int | None = Field(None, ge=1)
    serve_slots: int = Field(32, ge=1, le=256)
    # Set by a node worker for the serving worker that it starts beside rank 0, by nobody else.
    serve_instance: str | None = None
    serve_model: str | None = None
    serve_socket: Path | None = None
    # Where gunicorn binds. Off loopback the guard still lets in nobody but this machine.
    web_host: str = "127.0.0.1"
    web_port: int = Field(8765, ge=0, le=65535)
    web_processes: int = Field(2, ge=1, le=64)
    allowed_hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")
    hf_home: Path = Path("~/.cache/huggingface").expanduser()
    # Where the hub's own client keeps its cache; without one, in `hf_home`.
    hf_hub_cache: Path | None = None
    hf_token: str | None = None
    hf_endpoint: str = "https://huggingface.co"

    @property
    def writable_dirs(self) -> tuple[Path, ...]:
        """Folders that hold this node's models, the first is written to first."""
        return self.models_dirs or (self.data_dir / "models",)

    @property
    def hub_cache(self) -> Path:
        """Folder of the hub's own cache, which is only read."""
        return self.hf_hub_cache or self.hf_home / "hub"


def parse_bytes(text: str) -> int:
    """Read a size as people write it: `8000000000`, `8G`, `7.5GiB`."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?)?b?\s*", text.lower())
    if not match:
        raise ConfigurationError(f"{text!r} is not a size: write bytes or a unit, for example 8G or 7.5GiB")
    return int(float(match[1]) * UNITS[match[2] or ""])


def parse_paths(text: str) -> tuple[Path, ...]:
    """Split a list of folders at the platform's path separator (`:`)."""
    return tuple(Path(part).expanduser() for part in text.split(os.pathsep) if part)


def parse_words(text: str) -> tuple[str, ...]:
    """Split a comma separated list."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


PARSERS: Final = {
    "files_quota": parse_bytes,
    "memory_limit": parse_bytes,
    "download_limit": parse_bytes,
    "upload_limit": parse_bytes,
    "models_dirs": parse_paths,
    "models_read_only_dirs": parse_paths,
    "source_dirs": parse_paths,
    "labels": parse_words,
    "allowed_hosts": parse_words,
}
# Other programs' names for the same thing, in order; ours wins.
ALIASES: Final = {
    "redis_url": ("EXO_REDIS_URL", "CELERY_BROKER_URL", "REDIS_URL"),
    "offline": ("EXO_OFFLINE", "HF_HUB_OFFLINE"),
    "hf_home": ("HF_HOME",),
    "hf_hub_cache": ("HF_HUB_CACHE",),
    "hf_token": ("HF_TOKEN",),
    "hf_endpoint": ("HF_ENDPOINT",),
}
OTHER_VARIABLES: Final = {"EXO_CLUSTER_SECRET_FILE", "EXO_TEST_REDIS_URL"}


def variables(name: str) -> tuple[str, ...]:
    """Return the environment variables that set a setting, the strongest first."""
    return ALIASES.get(name, (f"EXO_{name.upper()}",))


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from the environment.

    Raises:
        ConfigurationError: a value is not of its setting's form, or the secret's file cannot be read.
    """
    env = os.environ if environ is None else environ
    warn_of_unknown(env)
    found = {name: env[var] for name in Settings.model_fields for var in reversed(variables(name)) if env.get(var)}
    if "cluster_secret" not in found and env.get("EXO_CLUSTER_SECRET_FILE"):
        found["cluster_secret"] = read_secret(Path(env["EXO_CLUSTER_SECRET_FILE"]))
    values = {name: PARSERS[name](text) if name in PARSERS else text for name, text in found.items()}
    try:
        return Settings.model_validate(values)
    except ValueError as error:
        raise ConfigurationError(f"settings from the environment are not valid: {error}") from error


def warn_of_unknown(env: Mapping[str, str]) -> None:
    """Say which `EXO_…` variables mean nothing to us: most often a slip of the pen."""
    known = OTHER_VARIABLES | {var for name in Settings.model_fields for var in variables(name)}
    for var in sorted(env):
        if var.startswith("EXO_") and var not in known:
            warnings.warn(f"{var} is set, but exo_celery has no such setting", stacklevel=3)


def read_secret(path: Path) -> str:
    """Read a secret from a file, without the line's end."""
    try:
        return path.read_text().strip()
    except OSError as error:
        raise ConfigurationError(f"EXO_CLUSTER_SECRET_FILE: {error}") from error


def node_id(settings: Settings) -> str:
    """Return this machine's node id: the one that was set, else one made once and kept in the data dir."""
    if settings.node_id:
        return checked_node_id(settings.node_id)
    path = settings.data_dir / "node_id"
    if not path.exists():
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        host = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname().split(".")[0]).strip("-") or "node"
        fresh = path.with_name(f"node_id.{os.getpid()}")
        fresh.write_text(f"{host[:40]}-{uuid.uuid4().hex[:6]}")
        fresh.rename(path)
    return checked_node_id(path.read_text().strip())


def checked_node_id(text: str) -> str:
    """Return the id if it may stand in keys and queue names."""
    if not NODE_ID.fullmatch(text):
        raise ConfigurationError(f"EXO_NODE_ID is {text!r}: use letters, digits, '-' and '_', at most 63")
    return text
