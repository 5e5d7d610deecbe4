"""`exo-celery run`: a file of prompts, stopped in the middle and run again, and a web that goes away meanwhile."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live import COMMAND
from stand.front import eventually, served
from stand.worker import MODEL, Worker

from exo_celery.errors import InvalidRequestError
from exo_celery.local import prompts
from exo_celery.records.job import Job

NS = "test-run"


class Answering(threading.Thread):
    """A serving worker that echoes prompts until it is told to stop; `fail` names the prompts that fail once."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(daemon=True)
        self.worker = worker
        self.fail: set[str] = set()
        self.answered: list[str] = []
        self.go_on = threading.Event()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            self.go_on.wait()
            if not self.worker.redis.zcard(f"{NS}:jobs:queued"):
                self.over.wait(0.02)
                continue
            job = self.worker.next_job()
            prompt = asked(job)
            if prompt in self.fail:
                self.fail.discard(prompt)
                self.worker.fail(job, {"message": "no", "type": "server_error", "param": None, "code": "x"})
                continue
            self.answered.append(prompt)
            self.worker.finish(job, prompt.upper())


def asked(job: Job) -> str:
    """Return what a line asked: plain text comes as a user's message, `prompt` as it is."""
    if job.request.prompt is not None:
        return job.request.prompt
    (message,) = job.request.messages or ()
    assert message.role == "user"
    return str(message.content)


@pytest.fixture
def answering(worker: Worker) -> Iterator[Answering]:
    thread = Answering(worker)
    thread.start()
    yield thread
    thread.over.set()
    thread.go_on.set()
    thread.join(10)


def started(front: str, folder: Path, *options: str) -> subprocess.Popen[str]:
    argv = [COMMAND, "run", str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl"), "--model", MODEL, "--url", front]
    return subprocess.Popen([*argv, *options], env=os.environ.copy(), stderr=subprocess.PIPE, text=True)


def finished(front: str, folder: Path, *options: str) -> tuple[int, str]:
    process = started(front, folder, *options)
    _, said = process.communicate(timeout=90)
    return process.returncode, said


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def write(folder: Path, count: int) -> None:
    lines = [f"prompt {n}" if n % 2 else json.dumps({"prompt": f"prompt {n}", "id": n}) for n in range(1, count + 1)]
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n\n")


def test_stopped_and_run_again_nothing_is_asked_twice(
    front: str, tmp_path: Path, answering: Answering, worker: Worker
) -> None:
    write(tmp_path, 40)
    first = started(front, tmp_path, "--window", "8")
    assert eventually(lambda: worker.redis.zcard(f"{NS}:jobs:queued") == 8, 30)
    answering.go_on.set()
    assert eventually(lambda: len(answering.answered) >= 12, 30)
    answering.go_on.clear()
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=90)
    assert first.returncode == 130
    with (tmp_path / "out.jsonl").open("a") as out:
        out.write('{"line": 99, "sta')  # as a kill in the middle of a write leaves it
    answering.go_on.set()
    code, said = finished(front, tmp_path, "--window", "8")
    assert code == 0, said
    assert sorted(answering.answered) == sorted(f"prompt {n}" for n in range(1, 41))  # each exactly once
    found = {row["line"]: row for row in rows(tmp_path)}
    assert len(rows(tmp_path)) == len(found) == 40
    assert all(found[n]["text"] == f"PROMPT {n}" for n in found)
    assert found[2]["id"] == 2
    assert "id" not in found[1]
    code, said = finished(front, tmp_path)
    assert (code, len(answering.answered)) == (0, 40)
    assert "0 lines" in said


def test_a_line_that_failed_is_tried_again_by_the_next_run(front: str, tmp_path: Path, answering: Answering) -> None:
    write(tmp_path, 6)
    answering.fail = {"prompt 3"}
    answering.go_on.set()
    code, said = finished(front, tmp_path)
    assert code == 1
    assert "1 of them failed" in said
    assert [row["line"] for row in rows(tmp_path) if row["state"] == "failed"] == [3]
    assert finished(front, tmp_path)[0] == 0
    assert sorted(row["line"] for row in rows(tmp_path)) == [1, 2, 3, 4, 5, 6]
    assert {row["state"] for row in rows(tmp_path)} == {"succeeded"}


def test_a_refused_line_does_not_stop_the_others(front: str, tmp_path: Path, answering: Answering) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "a", "max_tokens": 0}\n{"prompt": "b", "model": "org/none"}\nc\n')
    answering.go_on.set()
    assert finished(front, tmp_path)[0] == 1
    states = {row["line"]: (row["state"], (row["error"] or {}).get("code")) for row in rows(tmp_path)}
    assert states == {1: ("failed", "invalid_request"), 2: ("failed", "model_not_found"), 3: ("succeeded", None)}


def test_a_web_that_is_away_is_waited_for(tmp_path: Path, answering: Answering, redis_url: str) -> None:
    write(tmp_path, 10)
    environ = {"EXO_REDIS_URL": redis_url, "EXO_NAMESPACE": NS}
    with served(**environ) as address:
        process = started(address, tmp_path)
        assert eventually(lambda: answering.worker.redis.zcard(f"{NS}:jobs:queued") == 10, 30)
    answering.go_on.set()  # and there is no web
    assert eventually(lambda: len(answering.answered) == 10, 30)
    port = address.rpartition(":")[2]
    argv = ["--bind", f"127.0.0.1:{port}"]
    with served(**environ, GUNICORN_CMD_ARGS=" ".join(argv)) as again:
        assert again == address
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "waiting" in said
    assert len(rows(tmp_path)) == 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('fine\n{"prompt": ', "line 2"),
        ('{"text": "x"}', "neither prompt nor messages"),
        ("\xff", "not UTF-8"),
    ],
)
def test_a_file_that_is_none_is_refused_before_anything_is_asked(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "in").write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidRequestError, match=message):
        prompts.read(tmp_path / "in", {"model": MODEL})


def test_a_line_needs_a_model(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("hello")
    with pytest.raises(InvalidRequestError, match="--model"):
        prompts.read(tmp_path / "in", {})
