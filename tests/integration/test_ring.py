"""The same answer on one, two and three ranks, as mlx-lm gives it; and how a ring ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ring_group import TINY_LAYERS, Group, demo_model, ring, run, run_all, tiny_model

from exo_celery.errors import RunnerError
from exo_celery.runner.client import EngineClient
from exo_celery.runner.protocol import Exited, Failed, Finished

PROMPTS = ([504, 282, 338, 2812, 365, 4649], [(7 * i + 3) % 40_000 + 100 for i in range(24)])
MAX_TOKENS = 10
# What the group may take from the death of one to the end of all.
END_SECONDS = 5.0


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def reference(model_dir: Path, loader: str = "mlx-lm") -> list[list[int]]:
    """Return the tokens of mlx-lm's own generate, with weights as mlx-lm loads them or as a runner does; same BLAS."""
    script = Path(__file__).parents[2] / "benchmarks" / "reference.py"
    lines = "".join(json.dumps({"prompt": prompt, "max_tokens": MAX_TOKENS}) + "\n" for prompt in PROMPTS)
    done = subprocess.run(
        [sys.executable, script, model_dir, "1", loader], input=lines, capture_output=True, text=True, check=True
    )
    return [json.loads(line)["tokens"] for line in done.stdout.splitlines()[1:]]


@pytest.fixture(scope="module")
def expected_demo() -> list[list[int]]:
    return reference(demo_model(), "runner")  # dequantised to float32


@pytest.fixture(scope="module")
def expected_tiny(tiny: Path) -> list[list[int]]:
    return reference(tiny)


def answers(client: EngineClient) -> tuple[list[list[int]], list[list[int]]]:
    """Return the tokens of the prompts, one after another and all at once."""
    requests = {str(i): {"prompt": prompt, "max_tokens": MAX_TOKENS} for i, prompt in enumerate(PROMPTS)}
    alone = [run(client, name, **request)[0] for name, request in requests.items()]
    together = run_all(client, requests)
    return alone, [together[name] for name in requests]


@pytest.mark.parametrize("cuts", [(0, 30), (0, 15, 30), (0, 4, 13, 30)], ids=str)
def test_the_demo_model_answers_as_in_mlx_lm(cuts: tuple[int, ...], expected_demo: list[list[int]]) -> None:
    with ring(demo_model(), cuts) as (group, client):
        assert answers(client) == (expected_demo, expected_demo)
        question = [{"role": "user", "content": "What is the capital of France?"}]
        _, last = run(client, "paris", messages=question, max_tokens=40)
        _, story = run(client, "story", prompt="Once upon", max_tokens=3)
        assert story.text.startswith(" the")  # a plain prompt goes on, space and all
        held = [loaded.weights_bytes for loaded in group.loaded.values()]
    assert isinstance(last, Finished)
    assert "Paris" in last.text
    assert last.finish_reason == "stop"
    if cuts == (0, 15, 30):
        whole = 134_515_008 * 4  # the demo model's parameters in float32
        assert max(held) / whole <= 0.62


@pytest.mark.parametrize("cuts", [(0, 5, 6), (0, 2, 4, 6), (0, 1, 3, 6)], ids=str)
def test_any_split_answers_as_mlx_lm_does(tiny: Path, cuts: tuple[int, ...], expected_tiny: list[list[int]]) -> None:
    with ring(tiny, cuts) as (_, client):
        assert answers(client) == (expected_tiny, expected_tiny)


def test_rows_in_several_lanes_get_the_tokens_they_get_alone(tiny: Path) -> None:
    requests = {str(i): {"prompt": [40 + i] * (i + 1), "max_tokens": 8} for i in range(20)}
    with ring(tiny, (0, 2, 4, 6), slots=20) as (_, client):
        together = run_all(client, requests)
        alone = {name: run(client, name, **request)[0] for name, request in requests.items()}
    assert together == alone


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_the_death_of_any_rank_ends_all(tiny: Path, victim: int) -> None:
    with ring(tiny, (0, 2, 4, 6)) as (group, client):
        events = client.generate("a", {"prompt": "hello", "max_tokens": 200})
        next(events)
        started = time.monotonic()
        os.kill(group.runners[victim].pid, signal.SIGKILL)
        with pytest.raises(RunnerError):
            list(events)
        group.wait_exited()
        assert time.monotonic() - started < END_SECONDS
        assert group.exited[victim] == -signal.SIGKILL
        assert all(code != 0 for code in group.exited.values())
        assert client.wait_gone(1)


def test_an_idle_ring_also_ends_with_one_of_its_ranks(tiny: Path) -> None:
    with ring(tiny, (0, 3, 6)) as (group, client):
        started = time.monotonic()
        os.kill(group.runners[1].pid, signal.SIGKILL)
        group.wait_exited()
        assert time.monotonic() - started < END_SECONDS
        assert client.wait_gone(1)


def test_idle_ranks_use_no_cpu(tiny: Path) -> None:
    with ring(tiny, (0, 3, 6)) as (group, client):
        run(client, "a", prompt="hello", max_tokens=5)
        time.sleep(0.5)
        processes = [psutil.Process(runner.pid) for runner in group.runners]
        before = [sum(process.cpu_times()[:2]) for process in processes]
        time.sleep(4)
        used = [sum(process.cpu_times()[:2]) - start for process, start in zip(processes, before, strict=True)]
        assert sum(used) / 4 < 0.01


def test_strangers_at_the_ports_hold_nobody_up(tiny: Path) -> None:
    group = Group(tiny, (0, 3, 6))
    try:
        group.wait_loaded()
        strangers = [
            socket.create_connection(("127.0.0.1", loaded.port)) for loaded in group.loaded.values() for _ in "abc"
        ]
        strangers[0].sendall(b"\xff" * 1000)
        strangers[1].sendall(b"\x10\x00\x00\x00" + b"{" * 16)
        started = time.monotonic()
        group.link()
        group.wait_ready()
        assert time.monotonic() - started < 5
        for stranger in strangers:
            stranger.close()
    finally:
        group.stop()


def test_a_rank_of_another_epoch_is_not_let_in(tiny: Path) -> None:
    old, new = Group(tiny, (0, 3, 6)), Group(tiny, (0, 3, 6), epoch=4)
    try:
        old.wait_loaded()
        new.wait_loaded()
        peers = [f"127.0.0.1:{old.loaded[0].port}", f"127.0.0.1:{new.loaded[1].port}"]
        old.runners[0].link(peers)
        while not isinstance(event := old.next_event()[1], Failed):
            pass
        assert event.code == "link_failed"
    finally:
        old.stop()
        new.stop()


def test_a_wrong_number_of_layers_is_refused(tiny: Path) -> None:
    group = Group(tiny, (0, TINY_LAYERS + 1))
    try:
        group.wait_exited()
        failed = next(event for _, event in group.said if isinstance(event, Failed))
        assert "6 layers" in failed.message
    finally:
        group.stop()


def test_a_broken_folder_is_refused(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((tiny / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(b"not tensors")
    group = Group(tmp_path, (0, TINY_LAYERS))
    try:
        group.wait_exited()
        codes = [event.code for _, event in group.said if isinstance(event, Failed)]
        assert codes == ["model_folder"]
        assert isinstance(group.said[-1][1], Exited)
    finally:
        group.stop()


@pytest.fixture
def orphan(tiny: Path) -> Iterator[psutil.Process]:
    """A runner whose parent has been killed."""
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); from ring_group import Group; from pathlib import Path\n"
        "group = Group(Path(sys.argv[2]), (0, 6)); print(group.runners[0].pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(Path(__file__).parent), str(tiny)], stdout=subprocess.PIPE, text=True
    )
    runner = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate()
    yield runner
    if runner.is_running():
        runner.kill()


def test_a_runner_ends_with_its_parent(orphan: psutil.Process) -> None:
    assert psutil.wait_procs([orphan], timeout=10)[1] == []
