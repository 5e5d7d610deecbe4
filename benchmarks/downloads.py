"""Downloads: the fetcher against huggingface_hub, a peer copy against cp, scans of many folders.

    python benchmarks/downloads.py [--megabytes 512] [--rounds 5] [--folders 1000] [--only fetch] [--json FILE]

Both clients get the same files from the same server, a node's peer server in a process of its own, on loopback; ours
verifies sha256 on the way. Rounds are interleaved; the ratio is ours to theirs by speed, with its median and spread.
"""

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import shutil
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.utils import disable_progress_bars

from exo_celery.models.fetch import fetch
from exo_celery.models.hub import HubSource
from exo_celery.models.rate import Rate
from exo_celery.models.shelf import Shelf
from exo_celery.models.stop import Stop
from exo_celery.models.survey import ScanCache, survey
from exo_celery.node.peer_server import PeerServer
from exo_celery.settings import Settings

MODEL = "org/big"
TOKEN = "benchmark"
FILES = 8
CAP = 125_000_000  # a gigabit
Row = dict[str, str | float]


def write_weights(path: Path, size: int, tensors: int = 1) -> None:
    """Write a safetensors file of so many bytes of noise, or of a hole for many tensors."""
    each = size // tensors
    header = {
        f"model.layers.{n}.weight": {"dtype": "U8", "shape": [each], "data_offsets": [n * each, (n + 1) * each]}
        for n in range(tensors)
    }
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        if tensors > 1:
            file.truncate(8 + len(text) + each * tensors)
        else:
            for start in range(0, each, 1 << 24):
                file.write(os.urandom(min(1 << 24, each - start)))


def write_model(folder: Path, files: int, size: int, tensors: int = 1) -> None:
    """Write a model of several weight files."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    for n in range(1, files + 1):
        write_weights(folder / f"model-{n:05d}-of-{files:05d}.safetensors", size, tensors)


def serve(folder: str, cap: int, address: "multiprocessing.connection.Connection") -> None:
    """Serve a models folder until the parent hangs up."""
    shelf = Shelf(Settings(models_dirs=(Path(folder),), hf_home=Path(folder) / "none"), Stop())
    server = PeerServer("127.0.0.1", shelf, TOKEN, Rate(cap))
    assert shelf.whole(MODEL), "hashed before the first round"
    address.send(server.port)
    address.poll(None)


@contextmanager
def server(folder: Path, cap: int) -> Iterator[str]:
    """Run a server in a process of its own, and yield its address."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=serve, args=(str(folder), cap, there))
    process.start()
    there.close()
    yield f"http://127.0.0.1:{here.recv()}"
    here.close()
    process.terminate()
    process.join()


def timed(action: Callable[[Path], object], root: Path) -> float:
    """Return the seconds that an action takes to fill an empty folder."""
    target = root / "target"
    shutil.rmtree(target, ignore_errors=True)
    os.sync()  # what others wrote is not to be paid for here
    began = time.perf_counter()
    action(target)
    took = time.perf_counter() - began
    shutil.rmtree(target)
    return took


def compare(name: str, size: int, rounds: int, root: Path, pair: tuple[Callable[[Path], object], ...]) -> Row:
    """Time two ways to bring the same bytes, in turns; each goes first in every other round."""
    times = []
    for number in range(rounds):
        first = number % 2
        took = {first: timed(pair[first], root), 1 - first: timed(pair[1 - first], root)}
        times.append((took[0], took[1]))
    ratios = sorted(theirs / ours for ours, theirs in times)
    ours, theirs = (statistics.median(column) for column in zip(*times, strict=True))
    return {
        "what": name,
        "ours MB/s": round(size / ours / 1e6),
        "theirs MB/s": round(size / theirs / 1e6),
        "ratio": round(statistics.median(ratios), 2),
        "from": round(ratios[0], 2),
        "to": round(ratios[-1], 2),
    }


def fetches(megabytes: int, rounds: int) -> list[Row]:
    """Measure the fetcher against huggingface_hub, and a peer copy against cp."""
    disable_progress_bars()
    rows = []
    size = megabytes * 1_000_000
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        source = root / "models" / "org--big"
        write_model(source, FILES, size // FILES)
        for cap in (0, CAP):
            with server(root / "models", cap) as url:

                def ours(target: Path, url: str = url) -> object:
                    return fetch(MODEL, [target], HubSource(url, TOKEN), lambda _: None, Stop())

                def theirs(target: Path, url: str = url) -> object:
                    return snapshot_download(MODEL, endpoint=url, token=TOKEN, local_dir=target)

                label = f"fetch of {megabytes} MB in {FILES} files, {'125 MB/s' if cap else 'unthrottled'}"
                rows.append(compare(f"{label} / huggingface_hub", size, rounds, root, (ours, theirs)))
                if not cap:
                    pair = (ours, lambda target: shutil.copytree(source, target))
                    rows.append(compare(f"peer copy of {megabytes} MB / cp", size, rounds, root, pair))
    return rows


def scans(folders: int) -> list[Row]:
    """Measure the first and the next survey of many folders of four files, each with 200 tensors."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for n in range(folders):
            write_model(root / "models" / f"org--m{n}", files=2, size=2_000_000, tensors=200)
        settings = Settings(models_dirs=(root / "models",), hf_home=root / "hf")
        cache = ScanCache()
        rows: list[Row] = []
        for what, target in (("cold", 8.0), ("unchanged", 2.0)):
            began = time.perf_counter()
            found = survey(settings, "n", cache)
            took = time.perf_counter() - began
            assert len(found) == folders
            rows.append({"what": f"scan of {folders} folders, {what}", "seconds": round(took, 2), "at most": target})
        return rows


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--megabytes", type=int, default=512)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--folders", type=int, default=1000)
    options.add_argument("--only", choices=("fetch", "scan"))
    options.add_argument("--json", type=Path)
    asked = options.parse_args()
    rows: list[Row] = []
    if asked.only in (None, "scan"):
        rows += scans(asked.folders)
    if asked.only in (None, "fetch"):
        rows += fetches(asked.megabytes, asked.rounds)
    for row in rows:
        print("  ".join(f"{value}" if key == "what" else f"{key} {value}" for key, value in row.items()))
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
