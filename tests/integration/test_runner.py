"""What a serving worker gets from an engine: one ring of two with small layers, shared by the tests."""

import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ring_group import TINY_CONTEXT, TINY_LAYERS, Group, ring, run, run_all, tiny_model

from exo_celery.errors import InvalidRequestError, RunnerError
from exo_celery.runner import process
from exo_celery.runner.client import EngineClient
from exo_celery.runner.protocol import Delta, Exited, Failed, Finished, Loading, Refused, Started

SLOTS = 4
# Refuses a chat that does not begin with the user, as many models' templates do.
TEMPLATE = (
    "{% if messages[0]['role'] != 'user' %}{{ raise_exception('begin with the user') }}{% endif %}"
    "{% if messages[0]['content'] == 'for ever' %}"
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{% endif %}"
    "{% if messages[0]['content'] == 'by zero' %}{{ 1 / 0 }}{% endif %}"
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    return folder


@pytest.fixture(scope="module")
def formed(model: Path) -> Iterator[tuple[Group, EngineClient]]:
    with ring(model, (0, 3, TINY_LAYERS), slots=SLOTS) as made:
        yield made


@pytest.fixture
def client(formed: tuple[Group, EngineClient]) -> EngineClient:
    return formed[1]


def finished(client: EngineClient, name: str, **request: Any) -> Finished:
    last = run(client, name, **request)[1]
    assert isinstance(last, Finished)
    return last


def test_readiness_says_what_the_engine_can_do(formed: tuple[Group, EngineClient]) -> None:
    group, _ = formed
    assert {(ready.slots, ready.context_length) for ready in group.ready.values()} == {(SLOTS, TINY_CONTEXT)}
    layers = [event.layers for rank, event in group.said if rank == 0 and isinstance(event, Loading)]
    assert layers == [1, 2, 3]
    assert all(loaded.port > 0 and loaded.weights_bytes > 0 for loaded in group.loaded.values())


def test_events_come_in_order_and_add_up(client: EngineClient) -> None:
    events = list(client.generate("a", {"prompt": [5, 6, 7], "max_tokens": 8}))
    assert isinstance(events[0], Started)
    assert events[0].prompt_tokens == 3
    last = events[-1]
    assert isinstance(last, Finished)
    deltas = [event for event in events if isinstance(event, Delta)]
    assert "".join(delta.text for delta in deltas) == last.text
    assert sum(len(delta.token_ids) for delta in deltas) == last.usage.completion_tokens == 8
    assert last.finish_reason == "length"
    assert last.usage.total_tokens == 11
    assert last.usage.tokens_per_second > 0


def test_late_joiners_and_leavers_change_nobodys_tokens(client: EngineClient) -> None:
    requests = {
        str(i): {"prompt": [(7 * i + 3 * j) % 900 + 40 for j in range(1 + 5 * i)], "max_tokens": 6 + 4 * (i % 3)}
        for i in range(7)
    }
    alone = {name: run(client, name, **request)[0] for name, request in requests.items()}
    found: dict[str, list[int]] = {}

    def one(name: str) -> None:
        found[name] = run(client, name, **requests[name])[0]

    threads = [threading.Thread(target=one, args=(name,)) for name in requests]
    for thread in threads:
        thread.start()
        time.sleep(0.03)
    for thread in threads:
        thread.join()
    assert found == alone


def test_seeded_sampling_is_the_same_in_company(client: EngineClient) -> None:
    mine = {"prompt": [50, 60, 70], "max_tokens": 12, "temperature": 0.9, "top_p": 0.9, "seed": 42}
    alone = run(client, "alone", **mine)[0]
    others = {str(i): mine | {"seed": i, "prompt": [50 + i] * (4 * i)} for i in (1, 2, 3)}
    together = run_all(client, others | {"mine": mine})
    assert together["mine"] == alone
    assert run(client, "again", **mine)[0] == alone
    assert run(client, "other seed", **mine | {"seed": 43})[0] != alone


def test_a_small_nucleus_is_greedy(client: EngineClient) -> None:
    greedy = run(client, "greedy", prompt=[50, 60], max_tokens=6)[0]
    assert run(client, "nucleus", prompt=[50, 60], max_tokens=6, temperature=2.0, top_p=1e-6, seed=1)[0] == greedy


def test_logprobs_and_biases_reach_the_caller(client: EngineClient) -> None:
    asked = {"prompt": [50, 60], "max_tokens": 3, "logprobs": 2, "logit_bias": {1234: 100.0}}
    *_, last = events = list(client.generate("a", asked))
    deltas = [event for event in events if isinstance(event, Delta) and event.token_ids]
    assert isinstance(last, Finished)
    assert last.logprobs == tuple(one for delta in deltas for one in delta.logprobs)
    assert [delta.token_ids for delta in deltas] == [(1234,)] * 3
    for delta in deltas:
        (chosen,) = delta.logprobs
        assert chosen.token_id == 1234
        assert chosen.logprob == pytest.approx(0, abs=0.01)
        assert len(chosen.top) == 2
        assert chosen.top[0].token == chosen.token != ""


def test_a_known_prompt_is_not_computed_again_and_gives_the_same(model: Path, client: EngineClient) -> None:
    prompt = [(13 * i) % 900 + 40 for i in range(120)]

    def cached_and_tokens(name: str, tokens: list[int]) -> tuple[int, list[int]]:
        events = list(client.generate(name, {"prompt": tokens, "max_tokens": 8}))
        assert isinstance(events[0], Started)
        return events[0].cached_tokens, [t for event in events if isinstance(event, Delta) for t in event.token_ids]

    other = [*prompt[:100], 7, 8, 9]
    fresh = [7, *prompt]
    first, second = cached_and_tokens("first", prompt), cached_and_tokens("second", prompt)
    assert (first[0], second[0]) == (0, 119)
    assert first[1] == second[1]
    branch = cached_and_tokens("branch", other)
    assert branch[0] == 100
    turn = cached_and_tokens("turn", [*prompt, *first[1], 50])
    assert turn[0] == 120 + 7
    assert cached_and_tokens("fresh", fresh)[0] == 0
    with ring(model, (0, TINY_LAYERS)) as (_, unknowing):
        assert run(unknowing, "branch", prompt=other, max_tokens=8)[0] == branch[1]
    with ring(model, (0, TINY_LAYERS)) as (_, unknowing):
        assert run(unknowing, "turn", prompt=[*prompt, *first[1], 50], max_tokens=8)[0] == turn[1]


def test_a_stop_string_ends_the_answer_before_it(client: EngineClient) -> None:
    whole = finished(client, "whole", prompt=[90, 91, 92], max_tokens=20).text
    stop = whole[len(whole) // 2 :][:5]
    cut = finished(client, "cut", prompt=[90, 91, 92], max_tokens=20, stop=[stop, "never to be seen"])
    assert cut.finish_reason == "stop"
    assert cut.text == whole[: whole.index(stop)]


def test_the_end_token_stops(model: Path, tmp_path: Path, client: EngineClient) -> None:
    tokens = run(client, "a", prompt=[90, 91, 92], max_tokens=12)[0]
    end = tokens[6]
    folder = tmp_path / "ends"
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": [end]}))
    with ring(folder, (0, TINY_LAYERS)) as (_, other):
        got, last = run(other, "a", prompt=[90, 91, 92], max_tokens=12)
    assert got == tokens[: tokens.index(end)]
    assert isinstance(last, Finished)
    assert last.finish_reason == "stop"


def test_cancel_ends_the_request_and_frees_its_slot(client: EngineClient) -> None:
    streams = [client.generate(f"long-{i}", {"prompt": [i + 1], "max_tokens": 200}) for i in range(SLOTS)]
    for stream in streams:
        while not isinstance(next(stream), Delta):
            pass
    client.cancel("long-0")
    last = list(streams[0])[-1]
    assert isinstance(last, Finished)
    assert last.finish_reason == "cancelled"
    assert finished(client, "next", prompt=[3], max_tokens=2).finish_reason == "length"
    for stream in streams[1:]:
        stream.close()  # gives up the request as well
    started = time.monotonic()
    run_all(client, {str(i): {"prompt": [i + 1], "max_tokens": 2} for i in range(SLOTS)})
    assert time.monotonic() - started < 5


def test_a_prompt_beyond_the_context_is_refused_at_once(client: EngineClient) -> None:
    events = list(client.generate("a", {"prompt": [1] * TINY_CONTEXT, "max_tokens": 1}))
    assert len(events) == 1
    assert isinstance(events[0], Refused)
    assert (events[0].code, events[0].param) == ("context_length_exceeded", "prompt")
    assert str(TINY_CONTEXT) in events[0].message


def test_an_answer_ends_with_the_context(client: EngineClient) -> None:
    last = finished(client, "a", prompt=[1] * (TINY_CONTEXT - 3), max_tokens=100)
    assert last.finish_reason == "length"
    assert last.usage.completion_tokens == 3


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({"messages": [{"role": "assistant", "content": "hello"}]}, "template_error"),
        ({"messages": [{"role": "user", "content": "by zero"}]}, "template_error"),
        ({"messages": [{"role": "user", "content": "for ever"}]}, "template_error"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "invalid_request"),
        ({"prompt": ""}, "invalid_request"),
        ({"prompt": [1, 10**6]}, "invalid_request"),
        ({"prompt": [-1]}, "invalid_request"),
        ({"prompt": [1], "logit_bias": {10**6: 1.0}}, "invalid_request"),
    ],
    ids=str,
)
def test_what_cannot_run_is_refused(client: EngineClient, request_: dict[str, Any], code: str) -> None:
    last = run(client, "a", **request_)[1]
    assert isinstance(last, Refused)
    assert last.code == code
    assert finished(client, "b", prompt=[1], max_tokens=1).usage.completion_tokens == 1


def test_unknown_fields_never_reach_the_engine(client: EngineClient) -> None:
    with pytest.raises(InvalidRequestError, match="wings"):
        run(client, "a", prompt="x", wings=2)


def test_garbage_on_the_socket_cuts_off_the_speaker_only(formed: tuple[Group, EngineClient]) -> None:
    group, client = formed
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(group.runners[0].socket_path))
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        sock.settimeout(5)
        assert sock.recv(100) == b""
    assert finished(client, "a", prompt=[1], max_tokens=1).finish_reason == "length"


def test_a_client_that_hangs_up_leaves_no_work(formed: tuple[Group, EngineClient]) -> None:
    group, client = formed
    other = EngineClient(group.runners[0].socket_path)
    streams = [other.generate(str(i), {"prompt": [i + 1], "max_tokens": 200}) for i in range(SLOTS)]
    for stream in streams:
        next(stream)
    other.close()
    for stream in streams:
        with pytest.raises(RunnerError):
            list(stream)
    started = time.monotonic()
    assert finished(client, "a", prompt=[1], max_tokens=1).finish_reason == "length"
    assert time.monotonic() - started < 5


def test_two_requests_may_not_share_an_id(client: EngineClient) -> None:
    stream = client.generate("same", {"prompt": [1], "max_tokens": 100})
    next(stream)
    with pytest.raises(InvalidRequestError, match="running already"):
        run(client, "same", prompt=[1])
    stream.close()


def test_a_runner_that_does_not_load_in_time_is_killed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "load_deadline_seconds", lambda spec: 0.2)
    group = Group(model, (0, TINY_LAYERS))
    group.wait_exited()
    said = [event for _, event in group.said if not isinstance(event, Loading)]
    assert [type(event) for event in said] == [Failed, Exited]
    assert isinstance(said[0], Failed)
    assert said[0].code == "load_timeout"
    assert group.exited == {0: -9}


def test_a_ring_that_is_never_linked_by_all_fails_in_time(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "warm_deadline_seconds", lambda weights_bytes, world: 0.5)
    group = Group(model, (0, 3, TINY_LAYERS))
    try:
        group.wait_loaded()
        peers = [f"127.0.0.1:{group.loaded[rank].port}" for rank in range(2)]
        group.runners[0].link(peers)
        while not isinstance(event := group.next_event()[1], Failed):
            pass
        assert event.code == "warm_timeout"
    finally:
        group.stop()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_runner_that_is_stopped_is_killed_and_one_that_works_or_idles_is_not(
    model: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    monkeypatch.setattr(process, "PULSE_SECONDS", 0.1)
    monkeypatch.setattr(process, "SILENCE_SECONDS", 2.0)
    with ring(model, (0, 3, TINY_LAYERS)) as (group, client):
        assert finished(client, "a", prompt=[1], max_tokens=200).finish_reason == "length"
        time.sleep(1)
        assert [runner.returncode for runner in group.runners] == [None, None]
        os.kill(group.runners[rank].pid, signal.SIGSTOP)
        while not isinstance(event := group.next_event()[1], Failed):
            pass
        assert event.code == "silent"
        group.wait_exited()
        assert group.exited[rank] == -9


def test_stopping_leaves_neither_process_nor_socket(model: Path) -> None:
    with ring(model, (0, TINY_LAYERS)) as (group, client):
        path = group.runners[0].socket_path
        assert path.exists()
        assert path.parent.stat().st_mode & 0o777 == 0o700
        group.runners[0].stop()
        group.wait_exited()
        assert group.exited == {0: 0}
        assert client.wait_gone(2)
        with pytest.raises(RunnerError):
            run(client, "a", prompt=[1])
    assert not path.parent.exists()
    with pytest.raises(RunnerError, match="no runner listens"):
        EngineClient(path)
