"""The processes of a cluster on one machine: how each is started, with which settings, in which folders."""

import os
import secrets
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import worker_config
from exo_celery.local.child import Spec

# What each process is told by us; whatever its starter was told of it is not for it.
OURS: Final = {
    "EXO_DATA_DIR",
    "EXO_MEMORY_LIMIT",
    "EXO_MODELS_DIRS",
    "EXO_MODELS_READ_ONLY_DIRS",
    "EXO_NODE_ID",
    "EXO_REDIS_URL",
    "EXO_SOURCE_DIRS",
    "EXO_THREADS",
}
GUNICORN_CONFIG: Final = Path(worker_config.__file__).parent / "gunicorn.conf.py"
CELERY: Final = (sys.executable, "-m", "celery", "-A", "exo_celery")


@dataclass(frozen=True)
class Layout:
    """A local cluster: `nodes` nodes in folders below `data_dir`, the web on a loopback port."""

    data_dir: Path
    redis_url: str
    web_port: int
    nodes: int
    memory_bytes: int
    source_dirs: tuple[Path, ...] = ()

    @property
    def web_url(self) -> str:
        """Where the web answers."""
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def node_ids(self) -> tuple[str, ...]:
        """`node-1 … node-N`."""
        return tuple(f"node-{i}" for i in range(1, self.nodes + 1))

    def models_dir(self, node: str) -> Path:
        """Return the folder of a node's models."""
        return self.data_dir / node / "models"

    def log(self, name: str) -> Path:
        """Return the log of a child."""
        return self.data_dir / "logs" / f"{name}.log"

    def environ(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the settings that all processes share."""
        env = {name: text for name, text in inherited.items() if name not in OURS and not name.startswith("CELERY_")}
        env |= {"EXO_REDIS_URL": self.redis_url, "EXO_DATA_DIR": str(self.data_dir), "PYTHONUNBUFFERED": "1"}
        if not (env.get("EXO_CLUSTER_SECRET") or env.get("EXO_CLUSTER_SECRET_FILE")):
            env["EXO_CLUSTER_SECRET_FILE"] = str(cluster_secret_file(self.data_dir))
        if self.source_dirs:
            env["EXO_SOURCE_DIRS"] = os.pathsep.join(str(folder) for folder in self.source_dirs)
        return env

    def beat(self, inherited: Mapping[str, str]) -> Spec:
        """Return the one beat."""
        schedule = self.data_dir / "beat-schedule"
        argv = (*CELERY, "beat", "-l", "INFO", "-s", str(schedule))
        return Spec("beat", argv, self.environ(inherited), self.log("beat"))

    def web(self, inherited: Mapping[str, str]) -> Spec:
        """Return the web server."""
        return Spec("web", gunicorn(self.web_port), self.environ(inherited), self.log("web"))

    def node(self, node: str, inherited: Mapping[str, str]) -> Spec:
        """Return a node worker, with its share of memory and cores."""
        env = self.environ(inherited) | {
            "EXO_NODE_ID": node,
            "EXO_DATA_DIR": str(self.data_dir / node),
            "EXO_MODELS_DIRS": str(self.models_dir(node)),
            "EXO_MEMORY_LIMIT": str(self.memory_bytes // self.nodes),
            "EXO_THREADS": str(max(1, (os.cpu_count() or 1) // self.nodes)),
        }
        env.setdefault("HF_HOME", str(self.data_dir / node / "huggingface"))  # else all nodes hold what the user holds
        argv = (*CELERY, "worker", "-n", f"{node}@{socket.gethostname()}", "-l", "INFO")
        return Spec(node, argv, env, self.log(node))


def gunicorn(port: int, host: str = "127.0.0.1") -> tuple[str, ...]:
    """Return the command of the web server."""
    command = (sys.executable, "-m", "gunicorn", "-c", str(GUNICORN_CONFIG))
    return (*command, "--bind", f"{host}:{port}", "web:create_app()")


def cluster_secret_file(data_dir: Path) -> Path:
    """Return the file (0600) of the cluster's secret, made on first use."""
    path = data_dir / "cluster_secret"
    if not path.exists():
        with open(path, "x", opener=private) as file:
            file.write(secrets.token_hex(32))
    return path


def private(path: str, flags: int) -> int:
    """Open a file that only its owner may read from the first moment on."""
    return os.open(path, flags, 0o600)
