"""The two servers that benchmarks compare: our whole stack, and mlx_lm.server with the same weights, BLAS and threads.

`python benchmarks/servers.py copy MODEL_DIR COPY_DIR` writes a float32 copy of a model, which is what our runners
compute with on x86; `python benchmarks/servers.py serve MODEL_DIR PORT THREADS` is mlx_lm.server. Both are started by
this module: BLAS has to be in place before MLX is imported.
"""

import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from exo_celery import settings
from exo_celery.local import redis_server
from exo_celery.models.demo import MODEL
from exo_celery.runner import blas

COMMAND = str(Path(sys.executable).with_name("exo-celery"))
THREADS = os.cpu_count() or 1  # what `up` gives its only node
READY_SECONDS = 180


@dataclass(frozen=True)
class Server:
    """Where a server of OpenAI's API answers, how it calls the model, and the process that it began with."""

    name: str
    host: str
    port: int
    model: str
    pid: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def cpu_seconds(self) -> float:
        """Return what its processes have computed so far."""
        root = psutil.Process(self.pid)
        return sum(sum(process.cpu_times()[:2]) for process in [root, *root.children(recursive=True)])


def wait_until(good: Callable[[], bool], what: str) -> None:
    """Ask until it is so."""
    end = time.monotonic() + READY_SECONDS
    while not good():
        if time.monotonic() > end:
            raise SystemExit(f"{what} did not come up within {READY_SECONDS} s")
        time.sleep(0.3)


@contextlib.contextmanager
def stack(nodes: int = 1, min_nodes: int = 1, **environ: str) -> Iterator[Server]:
    """Run `exo-celery up` with the demo model placed on so many nodes, and ready."""
    with tempfile.TemporaryDirectory() as folder:
        command = [COMMAND, "up", "--nodes", str(nodes), "--port", "0", "--data-dir", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environ) as up:
            try:
                url = httpx.URL(up.stdout.readline().split()[1])
                with httpx.Client(base_url=url, timeout=120) as http:
                    place(http, min_nodes)
                yield Server("exo_celery", url.host, url.port or 80, MODEL, up.pid)
            finally:
                up.terminate()


def place(http: httpx.Client, min_nodes: int) -> None:
    """Place the demo model and wait until it is ready."""
    instance = http.post("/api/instances", json={"model": MODEL, "min_nodes": min_nodes}).json()["id"]
    wait_until(lambda: http.get(f"/api/instances/{instance}").json()["status"] == "ready", "the instance")


@contextlib.contextmanager
def mlx_lm_server(model_dir: Path, threads: int = THREADS) -> Iterator[Server]:
    """Run mlx_lm.server on a float32 copy of a model."""
    with float32_copy(model_dir) as copy:
        port = redis_server.free_port()
        command = [sys.executable, __file__, "serve", str(copy), str(port), str(threads)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            server = Server("mlx_lm.server", "127.0.0.1", port, str(copy), process.pid)
            try:
                wait_until(lambda: healthy(server), "mlx_lm.server")
                yield server
            finally:
                process.terminate()


@contextlib.contextmanager
def float32_copy(model_dir: Path) -> Iterator[Path]:
    """Make a copy of a model with float32 weights."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "float32")
        subprocess.run([sys.executable, __file__, "copy", str(model_dir), str(copy)], check=True, capture_output=True)
        yield copy


def healthy(server: Server) -> bool:
    """Say whether mlx_lm.server answers."""
    try:
        return httpx.get(f"{server.url}/health").status_code == 200
    except httpx.TransportError:
        return False


def copy_as_float32(model_dir: str, copy_dir: str) -> None:
    """Write the model with float32 weights, as mlx_lm.convert does."""
    convert = importlib.import_module("mlx_lm.convert")
    convert.convert(model_dir, copy_dir, dtype="float32", dequantize=True)


def serve(model_dir: str, port: str, threads: str) -> None:
    """Become mlx_lm.server, with OpenBLAS in MLX's way."""
    blas.load(settings.load().cache_dir, int(threads))
    sys.argv = ["mlx_lm.server", "--model", model_dir, "--port", port, "--log-level", "ERROR"]
    importlib.import_module("mlx_lm.server").main()


if __name__ == "__main__":
    {"copy": copy_as_float32, "serve": serve}[sys.argv[1]](*sys.argv[2:])
