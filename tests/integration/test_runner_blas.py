"""The BLAS that MLX computes with is the fast one, from the system or from the package."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="macOS brings a fast BLAS")

PROGRAM = """
import ctypes, pathlib, sys
from exo_celery.runner import blas
if sys.argv[2] == "packaged":
    blas.SYSTEM_NAMES = ()
blas.load(pathlib.Path(sys.argv[1]), 1)
import mlx.core as mx
a = mx.arange(64 * 64, dtype=mx.float32).reshape(64, 64)
product = (a @ a).tolist()
assert product[1][2] == sum((64 + k) * (64 * k + 2) for k in range(64)), product[1][2]
address = ctypes.cast(ctypes.CDLL(None).cblas_sgemm, ctypes.c_void_p).value
for line in open("/proc/self/maps"):
    begin, end = (int(part, 16) for part in line.split()[0].split("-"))
    if begin <= address < end:
        print(line.split()[-1])
"""


def computes_with(cache: Path, source: str) -> str:
    command = [sys.executable, "-c", PROGRAM, str(cache), source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_packaged_library_is_prepared_once_and_used(tmp_path: Path) -> None:
    library = computes_with(tmp_path, "packaged")
    assert Path(library).parent == tmp_path / "blas"
    made_at = Path(library).stat().st_mtime_ns
    assert computes_with(tmp_path, "packaged") == library
    assert Path(library).stat().st_mtime_ns == made_at
    assert [path.name for path in (tmp_path / "blas").iterdir()] == [Path(library).name]


def test_whatever_is_there_is_an_openblas(tmp_path: Path) -> None:
    assert "openblas" in computes_with(tmp_path, "any")
