"""The BLAS that MLX computes with is the package's, and it knows the processor it runs on."""

import subprocess
import sys
from pathlib import Path

import pytest

# What OpenBLAS calls processors without AVX2.
OLD = {"Generic", "Prescott", "Core2", "Penryn", "Dunnington", "Nehalem", "Sandybridge", "Atom", "Opteron", "Barcelona"}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="macOS brings a fast BLAS")

PROGRAM = """
import ctypes, pathlib, sys
from exo_celery.runner import blas
said = blas.load(pathlib.Path(sys.argv[1]), 1)
import mlx.core as mx
a = mx.arange(64 * 64, dtype=mx.float32).reshape(64, 64)
product = (a @ a).tolist()
assert product[1][2] == sum((64 + k) * (64 * k + 2) for k in range(64)), product[1][2]
address = ctypes.cast(ctypes.CDLL(None).cblas_sgemm, ctypes.c_void_p).value
for line in open("/proc/self/maps"):
    begin, end = (int(part, 16) for part in line.split()[0].split("-"))
    if begin <= address < end:
        assert line.split()[-1] == said, (line, said)
corename = ctypes.CDLL(said).scipy_openblas_get_corename
corename.restype = ctypes.c_char_p
print(said, corename().decode())
"""


def has_avx2() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and "avx2" in cpuinfo.read_text()


def computes_with(cache: Path) -> tuple[Path, str]:
    """Return the library that MLX's products go to, and the processor that it takes this one for."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, cache], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    library, core = done.stdout.split()
    return Path(library), core


def test_the_library_is_prepared_once_and_used(tmp_path: Path) -> None:
    library, _ = computes_with(tmp_path)
    assert library.parent == tmp_path / "blas"
    made_at = library.stat().st_mtime_ns
    assert computes_with(tmp_path)[0] == library
    assert library.stat().st_mtime_ns == made_at
    assert [path.name for path in (tmp_path / "blas").iterdir()] == [library.name]


@pytest.mark.skipif(not has_avx2(), reason="a processor without AVX2 is old")
def test_a_new_processor_is_not_taken_for_the_oldest_one(tmp_path: Path) -> None:
    _, core = computes_with(tmp_path)
    assert core not in OLD
