"""Tensor rings of real runners: the answers of mlx-lm, alone and in company, and how such a ring ends."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ring_group import TINY_LAYERS, Group, ring, run, run_all, tiny_model
from test_ring import END_SECONDS, PROMPTS, answers, reference

from exo_celery.errors import RunnerError
from exo_celery.runner.client import EngineClient
from exo_celery.runner.protocol import Delta, Failed, Finished

pytestmark = pytest.mark.timeout(300)
TENSOR = {"sharding": "tensor"}
Pair = tuple[Group, EngineClient]


def whole(world: int) -> list[tuple[int, int]]:
    """Return the layers of each rank: all of them."""
    return [(0, TINY_LAYERS)] * world


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def pair(tiny: Path) -> Iterator[Pair]:
    with ring(tiny, whole(2), **TENSOR) as formed:
        yield formed


def test_two_ranks_answer_as_mlx_lm_does(tiny: Path, pair: Pair) -> None:
    expected = reference(tiny)
    assert answers(pair[1]) == (expected, expected)


def test_company_late_joiners_seeds_and_a_cancel_change_nothing(pair: Pair) -> None:
    client = pair[1]
    requests = {str(i): {"prompt": [40 + i] * (1 + 9 * i), "max_tokens": 12} for i in range(6)}
    requests["seeded"] = {"prompt": [7, 8, 9], "max_tokens": 12, "temperature": 1.0, "seed": 5}
    alone = {name: run(client, name, **request)[0] for name, request in requests.items()}
    long = client.generate("long", {"prompt": [3] * 20, "max_tokens": 200})
    next(event for event in long if isinstance(event, Delta))
    together = run_all(client, requests)
    client.cancel("long")
    last = list(long)[-1]
    assert together == alone
    assert isinstance(last, Finished)
    assert last.finish_reason == "cancelled"


def test_a_kept_prompt_is_not_computed_again(pair: Pair) -> None:
    prompt = [(7 * i) % 900 for i in range(120)]
    first, _ = run(pair[1], "first", prompt=prompt, max_tokens=8)
    events = list(pair[1].generate("second", {"prompt": prompt, "max_tokens": 8}))
    assert events[0].cached_tokens == len(prompt) - 1
    assert [token for event in events if isinstance(event, Delta) for token in event.token_ids] == first


def test_idle_ranks_use_no_cpu(pair: Pair) -> None:
    time.sleep(0.5)
    processes = [psutil.Process(runner.pid) for runner in pair[0].runners]
    before = [sum(process.cpu_times()[:2]) for process in processes]
    time.sleep(4)
    used = [sum(process.cpu_times()[:2]) - start for process, start in zip(processes, before, strict=True)]
    assert sum(used) / 4 < 0.01


@pytest.mark.parametrize("victim", [0, 1])
def test_the_death_of_any_rank_ends_all(tiny: Path, victim: int) -> None:
    with ring(tiny, whole(2), **TENSOR) as (group, client):
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


def test_four_ranks_answer_as_mlx_lm_does_and_end_together(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "tiny", num_attention_heads=8, num_key_value_heads=4)
    expected = reference(folder)[0]
    with ring(folder, whole(4), **TENSOR) as (group, client):
        assert (
            run(client, "a", prompt=PROMPTS[0], max_tokens=4)[0] == expected[:4]
        )  # few: waiting ranks keep cores busy
        next(client.generate("a", {"prompt": "hello", "max_tokens": 200}))
        os.kill(group.runners[2].pid, signal.SIGKILL)  # rank 0 is no neighbour of its
        group.wait_exited()


def test_a_model_that_cannot_be_cut_so_is_refused_before_it_is_loaded(tiny: Path) -> None:
    group = Group(tiny, whole(3), **TENSOR)  # two KV heads
    try:
        group.wait_exited()
        messages = [event.message for _, event in group.said if isinstance(event, Failed)]
        assert all("llama cannot be cut into 3 slices" in message for message in messages)
        assert len(messages) == 3
        assert not group.loaded
    finally:
        group.stop()
