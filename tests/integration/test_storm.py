"""Redis killed while trivial tasks are drained: no worker exits, none is deaf, a free slot is filled at once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from redis import Redis

from exo_celery.local import leash, redis_server
from exo_celery.queues import broker_settings, send, sender
from exo_celery.settings import Settings

HERE = Path(__file__).parent
NAMESPACE = "storm"
QUEUE = f"{NAMESPACE}:celery:storm"
WORKERS = ("one", "two")
SLOTS = 16  # of both workers
ROUNDS = ("idle", "half", "full", "full", "half", "full")
FULL = 2000  # messages: far more than is done until the server is killed


class Storm:
    """A server that can be killed, and workers on it."""

    def __init__(self, folder: Path, binary: Path) -> None:
        self.log = folder / "redis.log"
        self.done = folder / "done"
        self.done.touch()
        self.server = redis_server.prepare(folder / "redis", binary)
        self.process = redis_server.start(self.server, self.log)
        self.sender = sender(Settings(redis_url=self.server.url, namespace=NAMESPACE))
        self.folder = folder

    @contextmanager
    def worker(self, name: str, *flags: str, **environ: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Run a worker on the queue `storm` and on one of its own."""
        env = {name: text for name, text in os.environ.items() if not name.startswith("EXO_")}
        env |= {"EXO_REDIS_URL": self.server.url, "EXO_NAMESPACE": NAMESPACE, "STORM_DONE": str(self.done)}
        env |= environ
        argv = [sys.executable, "-m", "celery", "-A", "storm_app", "worker", "-n", f"{name}@storm"]
        argv += ["-Q", f"storm,{name}", "-l", "INFO", *flags]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = leash.spawn(argv, log, env, cwd=HERE)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def send(self, task: str, *args: str, queue: str = "storm", count: int = 1) -> None:
        """Publish a task `count` times."""
        for _ in range(count):
            send(self.sender, task, *args, queue=queue)

    def told(self, word: str) -> list[float]:
        """Return the times at which tasks told this word."""
        return [float(line.split()[1]) for line in self.done.read_text().splitlines() if line.split()[0] == word]

    def has_told(self, word: str, times: int) -> bool:
        """Tell if tasks told this word at least so many times."""
        return len(self.told(word)) >= times

    def waiting(self) -> int:
        """Return how many messages wait in the queue of all."""
        with self.client() as client:
            return int(client.llen(QUEUE))

    def client(self) -> Redis:
        """Return a client of the server."""
        return Redis.from_url(self.server.url, decode_responses=True)

    def kill(self) -> None:
        """End the server as a crash would, and start it again on what its log of commands holds."""
        self.process.kill()
        self.process.wait()
        self.process = redis_server.start(self.server, self.log)

    def close(self) -> None:
        """Stop the server."""
        self.sender.close()
        self.process.kill()
        self.process.wait()


def binaries() -> list[Path]:
    """Return the servers to test: the embedded one, and redis-server where it is installed (CI installs it)."""
    return list(dict.fromkeys([redis_server.wheel_binary(), redis_server.find_binary()]))


@pytest.fixture(params=binaries(), ids=lambda path: path.name)
def storm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storm]:
    """A server of each kind."""
    storm = Storm(tmp_path, request.param)
    yield storm
    storm.close()


def wait_for(met: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Wait until a condition is met; the limit is only there to fail."""
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, f"not in {seconds} s: {what}"
        time.sleep(0.01)


def check_hearing(storm: Storm, name: str, round_: int) -> None:
    """Wait until this worker has done a task that only it can take."""
    word = f"{name}-{round_}"
    storm.send("storm.short", word, queue=name)
    wait_for(lambda: bool(storm.told(word)), f"worker {name} hears again in round {round_}")


@pytest.mark.timeout(240)
def test_workers_survive_kills_of_redis(storm: Storm) -> None:
    with ExitStack() as stack:
        workers = {name: stack.enter_context(storm.worker(name)) for name in WORKERS}
        for name in WORKERS:
            check_hearing(storm, name, -1)
        for round_, load in enumerate(ROUNDS):
            before = {word: len(storm.told(word)) for word in ("trivial", "begun", "held")}
            LOAD[load](storm, before, list(workers.values()))
            storm.kill()
            for name, process in workers.items():
                check_hearing(storm, name, round_)
                assert process.poll() is None, f"worker {name} exited in round {round_}, {load} load"
            wait_for(lambda: not storm.waiting(), "drained")
            if load == "full":  # at most what had left the server and not arrived
                wait_for(partial(storm.has_told, "trivial", before["trivial"] + FULL - SLOTS), "all were done")
            if load == "half":
                wait_for(partial(storm.has_told, "held", before["held"] + SLOTS // 2), "what ran went on")
            with storm.client() as client:
                assert not list(client.scan_iter(match="*unacked*"))


Workers = list["subprocess.Popen[bytes]"]


def idle(storm: Storm, before: dict[str, int], workers: Workers) -> None:
    """Let nothing run."""
    assert not storm.waiting()


def half(storm: Storm, before: dict[str, int], workers: Workers) -> None:
    """Let half of the slots be held."""
    storm.send("storm.hold", count=SLOTS // 2)
    wait_for(partial(storm.has_told, "begun", before["begun"] + SLOTS // 2), "slots are held")


def full(storm: Storm, before: dict[str, int], workers: Workers) -> None:
    """Let many messages wait, and some be done."""
    for worker in workers:  # or a slow publisher would never fill the queue
        worker.send_signal(signal.SIGSTOP)
    storm.send("storm.trivial", count=FULL)
    for worker in workers:
        worker.send_signal(signal.SIGCONT)
    wait_for(partial(storm.has_told, "trivial", before["trivial"] + 20), "draining")
    assert storm.waiting() > 0, "the queue was empty before the kill: raise the load"


LOAD = {"idle": idle, "half": half, "full": full}


def drain_seconds(storm: Storm, word: str, **environ: str) -> float:
    """Return how long one worker of eight slots takes for 48 tasks of 25 ms."""
    with storm.worker(word, STORM_QUIET="yes", **environ) as process:
        wait_for(lambda: " ready." in (storm.folder / f"{word}.log").read_text(), "worker ready")
        storm.send("storm.short", f"{word}-task", queue=word, count=48)
        wait_for(partial(storm.has_told, f"{word}-task", 48), "drained")
        assert process.poll() is None
    times = storm.told(f"{word}-task")
    return max(times) - min(times)


def test_a_free_slot_is_filled_at_once(storm: Storm) -> None:
    # Six rounds of 25 ms; the stock pool needs a second for each (when nothing else wakes its loop).
    assert drain_seconds(storm, "ours") < 3


def test_another_pool_is_refused(storm: Storm) -> None:
    with storm.worker("wrong", "-P", "threads") as process:
        assert process.wait(30) == 78
    said = (storm.folder / "wrong.log").read_text()
    assert "exo_celery.pool:TaskPool" in said
    assert "celery.concurrency.thread:TaskPool" in said


def test_gossip_and_mingle_are_off(storm: Storm) -> None:
    with storm.worker("quiet"):
        check_hearing(storm, "quiet", 0)
    said = (storm.folder / "quiet.log").read_text()
    assert "mingle" not in said
    assert "sync with" not in said


def test_broker_settings_name_one_server_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://elsewhere.invalid/0")
    app = sender(Settings(redis_url="redis://127.0.0.1:1/0"))
    assert app.conf.broker_read_url == app.conf.broker_write_url == "redis://127.0.0.1:1/0"
    assert broker_settings(Settings())["accept_content"] == ["json"]
