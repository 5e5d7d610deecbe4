"""Files and batches on a real Redis, the pump driven by hand: any step may be repeated, or the last before a crash."""

import json
import zlib
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from redis import Redis
from stand.worker import MODEL, Worker

from exo_celery import batches, queues
from exo_celery.batches import Wanted
from exo_celery.context import Context
from exo_celery.errors import ConflictError, IdempotencyError, InvalidRequestError, NotFoundError, StorageFullError
from exo_celery.pump.step import step
from exo_celery.pump.work import Work
from exo_celery.records.batch import Batch, BatchStatus, Cursor
from exo_celery.records.job import JobState
from exo_celery.settings import Settings
from exo_celery.store import batches as batch_store
from exo_celery.store import files as file_store
from exo_celery.store import jobs, keys

SLOTS = 6  # four lines of a batch in work at once
CHAT = "/v1/chat/completions"


@pytest.fixture
def cluster(redis: Redis, redis_url: str, namespace: str) -> Context:
    settings = Settings(redis_url=redis_url, namespace=namespace, serve_slots=SLOTS, files_quota=10**7)
    Worker(redis, namespace).set_up()
    return Context(settings, redis, queues.sender(settings))


@pytest.fixture
def worker(cluster: Context) -> Worker:
    return Worker(cluster.redis, cluster.ns)


def content(count: int, start: int = 0, **change: Any) -> bytes:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Where?"}]} | change
    rows = ({"custom_id": f"c-{n}", "method": "POST", "url": CHAT, "body": body} for n in range(start, start + count))
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def started(cluster: Context, text: bytes, **facts: Any) -> Batch:
    file = batches.save_file(cluster, "in.jsonl", [text])
    wanted = {"endpoint": CHAT, "completion_window": "24h", "window_seconds": 86_400} | facts
    return batches.create_batch(cluster, Wanted(input_file_id=file.id, **wanted))


def now(cluster: Context, batch: Batch) -> Batch:
    return batches.batch(cluster, batch.id)


def in_state(cluster: Context, state: JobState) -> list[str]:
    return list(cluster.redis.zrange(keys.jobs(cluster.ns, state), 0, -1))


def rows(cluster: Context, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    text = b"".join(batches.file_content(cluster, batches.file(cluster, file_id)))
    return [json.loads(line) for line in text.splitlines()]


def both(cluster: Context, batch: Batch) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    ended = now(cluster, batch)
    return rows(cluster, ended.output_file_id), rows(cluster, ended.error_file_id)


def test_a_file_comes_back_as_it_went(cluster: Context) -> None:
    text = Random(7).randbytes(3 * file_store.CHUNK_BYTES + 5)
    pieces = [text[at : at + 100_003] for at in range(0, len(text), 100_003)]
    saved = batches.save_file(cluster, "x.bin", pieces)
    assert (saved.bytes, saved.chunks) == (len(text), 4)
    assert b"".join(batches.file_content(cluster, saved)) == text
    at = 2 * file_store.CHUNK_BYTES + 17
    assert b"".join(file_store.read(cluster.redis, cluster.ns, saved, at)) == text[at:]


def test_the_quota_counts_what_is_stored_and_gives_it_back(cluster: Context) -> None:
    saved = batches.save_file(cluster, "zeros", [bytes(10**6)])
    assert file_store.used_bytes(cluster.redis, cluster.ns) == saved.stored_bytes < 10**5
    noise = Random(1).randbytes(2 * 10**6)
    small = Context(cluster.settings.model_copy(update={"files_quota": 10**6}), cluster.redis, cluster.app)
    with pytest.raises(StorageFullError, match="EXO_FILES_QUOTA"):
        batches.save_file(small, "noise", [noise])
    assert file_store.used_bytes(cluster.redis, cluster.ns) == saved.stored_bytes
    batches.delete_file(cluster, saved.id)
    assert file_store.used_bytes(cluster.redis, cluster.ns) == 0
    with pytest.raises(NotFoundError):
        batches.file(cluster, saved.id)
    left = [key for key in cluster.redis.scan_iter(f"{cluster.ns}:file*") if not key.endswith(":bytes")]
    assert left == []


def test_files_expire_and_so_do_uploads_that_stopped(cluster: Context) -> None:
    def stopped() -> Any:
        yield bytes(file_store.CHUNK_BYTES)
        raise ConnectionResetError

    saved = batches.save_file(cluster, "a", [b"x"], keep_seconds=3600)
    with pytest.raises(ConnectionResetError):
        batches.save_file(cluster, "b", stopped())
    assert [one.id for one in batches.files(cluster)[0]] == [saved.id]
    at = saved.expires_at
    assert file_store.drop_expired(cluster.redis, cluster.ns, at - 100) == []
    assert len(file_store.drop_expired(cluster.redis, cluster.ns, at + 100)) == 2
    assert file_store.used_bytes(cluster.redis, cluster.ns) == 0


def test_lists_go_on_after_any_file(cluster: Context) -> None:
    saved = [batches.save_file(cluster, str(n), [b"x"]).id for n in range(5)]
    first, more = batches.files(cluster, limit=2)
    assert ([one.id for one in first], more) == (saved[:2:-1], True)
    rest, more = batches.files(cluster, after=saved[3], limit=3)
    assert ([one.id for one in rest], more) == (saved[2::-1], False)
    assert [one.id for one in batches.files(cluster, newest_first=False)[0]] == saved
    with pytest.raises(InvalidRequestError, match="not the id"):
        batches.files(cluster, after="file-unknown")


def test_another_owners_files_and_batches_do_not_exist(cluster: Context) -> None:
    saved = batches.save_file(cluster, "a", [content(1)], owner="ann")
    wanted = Wanted(saved.id, "/v1/chat/completions", "24h", 86_400)
    batch = batches.create_batch(cluster, wanted, owner="ann", sees="ann")
    for ask in (
        lambda: batches.file(cluster, saved.id, "bob"),
        lambda: batches.delete_file(cluster, saved.id, "bob"),
        lambda: batches.create_batch(cluster, wanted, owner="bob", sees="bob"),
        lambda: batches.batch(cluster, batch.id, "bob"),
        lambda: batches.cancel_batch(cluster, batch.id, "bob"),
    ):
        with pytest.raises(NotFoundError):
            ask()
    assert batches.files(cluster, owner="bob") == batches.batches(cluster, owner="bob") == ([], False)
    assert len(batches.files(cluster, owner="ann")[0]) == len(batches.batches(cluster)[0]) == 1


def test_a_batch_keeps_its_window_and_ends_whole(cluster: Context, worker: Worker) -> None:
    batch = started(cluster, content(10))
    counts = []
    step(cluster, batch.id)
    assert now(cluster, batch).status is BatchStatus.IN_PROGRESS
    while not now(cluster, batch).over:
        queued = in_state(cluster, JobState.QUEUED)
        assert len(queued) == min(SLOTS - 2, 10 - sum(counts[-1:]))
        worker.finish(worker.next_job())
        step(cluster, batch.id)
        step(cluster, batch.id)
        counts.append(now(cluster, batch).completed)
    assert counts == list(range(1, 11))
    ended = now(cluster, batch)
    assert (ended.status, ended.total, ended.failed) == (BatchStatus.COMPLETED, 10, 0)
    assert (ended.prompt_tokens, ended.completion_tokens) == (30, 20)
    good, bad = both(cluster, batch)
    assert [row["custom_id"] for row in good] == [f"c-{n}" for n in range(10)]
    assert (bad, ended.error_file_id) == ([], None)
    assert 0 < ended.in_progress_at <= ended.finalizing_at <= ended.completed_at


def test_jobs_of_lines_leave_the_lists_once_the_batch_has_their_lines(cluster: Context, worker: Worker) -> None:
    batch = started(cluster, content(1))
    step(cluster, batch.id)
    job = worker.next_job()
    assert (job.id, job.priority) == (batch.job_id(1), 9)
    worker.finish(job)
    step(cluster, batch.id)
    assert now(cluster, batch).over
    lists = [keys.jobs(cluster.ns, name) for name in ("all", *JobState)]
    assert not any(cluster.redis.zcard(one) for one in lists)
    assert 0 < cluster.redis.ttl(keys.job(cluster.ns, job.id)) <= keys.LINE_JOB_TTL
    assert not cluster.redis.exists(keys.batch_flights(cluster.ns, batch.id))
    assert 0 < cluster.redis.ttl(keys.batch_results(cluster.ns, batch.id)) <= keys.LINE_JOB_TTL
    assert cluster.redis.ttl(keys.batch(cluster.ns, batch.id)) > 0


def test_when_all_lines_fail_there_is_no_output_file(cluster: Context, worker: Worker) -> None:
    batch = started(cluster, content(3))
    step(cluster, batch.id)
    for _ in range(3):
        worker.fail(worker.next_job(), {"message": "too long", "code": "context_length_exceeded"})
    step(cluster, batch.id)
    ended = now(cluster, batch)
    assert (ended.status, ended.output_file_id, ended.failed) == (BatchStatus.COMPLETED, None, 3)
    bad = both(cluster, batch)[1]
    assert [row["response"]["status_code"] for row in bad] == [400] * 3
    assert [row["error"] for row in bad] == [None] * 3


def test_a_bad_file_fails_whole_and_nothing_runs(cluster: Context) -> None:
    batch = started(cluster, content(2) + content(1, start=1) + b"{\n")
    step(cluster, batch.id)
    failed = now(cluster, batch)
    assert (failed.status, failed.total, failed.failed_at > 0) == (BatchStatus.FAILED, 0, True)
    assert [(one.line, one.code) for one in failed.errors] == [(3, "duplicate_custom_id"), (4, "invalid_json_line")]
    assert in_state(cluster, JobState.QUEUED) == []
    step(cluster, batch.id)
    assert now(cluster, batch) == failed


def test_a_bad_request_costs_its_own_line_only(
    cluster: Context, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    bad = content(6, 3, max_tokens=0)  # more than may be in work at once
    batch = started(cluster, content(3) + bad + content(1, 9))
    with monkeypatch.context() as patch:
        patch.setattr(batch_store, "record", die)
        with pytest.raises(KeyboardInterrupt):
            step(cluster, batch.id)
    step(cluster, batch.id)
    assert now(cluster, batch).failed == 6
    for _ in range(4):
        worker.finish(worker.next_job())
    step(cluster, batch.id)
    ended = now(cluster, batch)
    assert (ended.status, ended.total, ended.completed, ended.failed) == (BatchStatus.COMPLETED, 10, 4, 6)
    good, refused = both(cluster, batch)
    assert [row["custom_id"] for row in good + refused] == [f"c-{n}" for n in (0, 1, 2, 9, 3, 4, 5, 6, 7, 8)]
    assert {(row["response"]["status_code"], row["response"]["body"]["error"]["param"]) for row in refused} == {
        (400, "max_tokens")
    }


def test_a_batch_of_bad_requests_ends_at_once(cluster: Context) -> None:
    batch = started(cluster, content(20, stream=True))
    step(cluster, batch.id)
    ended = now(cluster, batch)
    assert (ended.status, ended.output_file_id, ended.failed) == (BatchStatus.COMPLETED, None, 20)
    assert in_state(cluster, JobState.QUEUED) == []


def test_the_same_key_and_wish_are_one_batch(cluster: Context) -> None:
    file = batches.save_file(cluster, "in.jsonl", [content(1)])
    wanted = Wanted(file.id, CHAT, "24h", 86_400, {"a": "b"}, idempotency_key="letters-7")
    batch = batches.create_batch(cluster, wanted)
    batches.cancel_batch(cluster, batch.id)
    step(cluster, batch.id)
    batches.delete_file(cluster, file.id)
    assert batches.create_batch(cluster, wanted).id == batch.id
    assert now(cluster, batch).status is BatchStatus.CANCELLED
    with pytest.raises(IdempotencyError, match=batch.id):
        batches.create_batch(cluster, replace(wanted, metadata=None))
    with pytest.raises(NotFoundError):  # another owner's key is another key
        batches.create_batch(cluster, wanted, owner="bea")
    assert len(batches.batches(cluster)[0]) == 1


def test_a_key_for_other_models_gets_no_batch(cluster: Context) -> None:
    file = batches.save_file(cluster, "in.jsonl", [content(1)])
    wanted = Wanted(file.id, "/v1/chat/completions", "24h", 86_400)
    batch = batches.create_batch(cluster, wanted, models=["org/other"])
    step(cluster, batch.id)
    assert [one.code for one in now(cluster, batch).errors] == ["model_not_found"]


def test_a_cancel_keeps_what_was_answered(cluster: Context, worker: Worker) -> None:
    batch = started(cluster, content(9))
    step(cluster, batch.id)
    worker.finish(worker.next_job())
    running, done_late = worker.next_job(), worker.next_job()
    asked = batches.cancel_batch(cluster, batch.id)
    assert (asked.status, asked.cancelling_at > 0) == (BatchStatus.CANCELLING, True)
    assert batches.cancel_batch(cluster, batch.id) == asked
    worker.finish(done_late)
    step(cluster, batch.id)
    ended = now(cluster, batch)
    assert (ended.status, ended.completed, ended.failed) == (BatchStatus.CANCELLED, 2, 7)
    assert ended.cancelling_at == asked.cancelling_at <= ended.cancelled_at
    good, bad = both(cluster, batch)
    assert len(good) == 2
    assert {row["error"]["code"] for row in bad} == {"batch_cancelled"}
    assert sorted(row["custom_id"] for row in good + bad) == [f"c-{n}" for n in range(9)]
    assert worker.state(running) is JobState.CANCELLED
    assert in_state(cluster, JobState.QUEUED) == in_state(cluster, JobState.RUNNING) == []
    with pytest.raises(ConflictError, match="cancelled"):
        batches.cancel_batch(cluster, batch.id)


def test_a_cancel_before_validation_ends_empty(cluster: Context) -> None:
    batch = started(cluster, content(3))
    batches.cancel_batch(cluster, batch.id)
    step(cluster, batch.id)
    ended = now(cluster, batch)
    assert (ended.status, ended.total, ended.output_file_id, ended.error_file_id) == ("cancelled", 0, None, None)


def test_a_window_that_is_over_ends_the_batch(cluster: Context, worker: Worker) -> None:
    batch = started(cluster, content(7))
    step(cluster, batch.id)
    worker.finish(worker.next_job())
    cluster.redis.hset(keys.batch(cluster.ns, batch.id), "expires_at", "1")
    step(cluster, batch.id)
    ended = now(cluster, batch)
    assert (ended.status, ended.completed, ended.failed) == (BatchStatus.EXPIRED, 1, 6)
    good, bad = both(cluster, batch)
    assert {row["error"]["code"] for row in bad} == {"batch_expired"}
    assert len(good) + len(bad) == 7


def test_two_models_of_one_batch_do_not_wait_for_each_other(cluster: Context, worker: Worker) -> None:
    other = "org/other"
    card = cluster.redis.hgetall(keys.model(cluster.ns, MODEL)) | {"id": other}
    cluster.redis.hset(keys.model(cluster.ns, other), mapping=card)
    cluster.redis.sadd(keys.models(cluster.ns), other)
    batch = started(cluster, content(10) + content(2, start=10, model=other))
    step(cluster, batch.id)
    assert now(cluster, batch).lines == {MODEL: 10, other: 2}
    models = [job.model for job in jobs.many(cluster.redis, cluster.ns, in_state(cluster, JobState.QUEUED))]
    assert sorted(models) == [MODEL] * 4 + [other] * 2


def test_a_pump_that_died_after_taking_a_line_loses_nothing(
    cluster: Context, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    batch = started(cluster, content(2))
    with monkeypatch.context() as patch:
        patch.setattr(Work, "submit", die)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                step(cluster, batch.id)
    assert in_state(cluster, JobState.QUEUED) == []
    step(cluster, batch.id)
    assert sorted(in_state(cluster, JobState.QUEUED)) == [batch.job_id(1), batch.job_id(2)]


def test_a_slow_pump_leaves_no_job_of_a_line_that_has_its_result(cluster: Context, worker: Worker) -> None:
    batch = started(cluster, content(9))
    step(cluster, batch.id)
    work = Work(cluster, now(cluster, batch), batches.file(cluster, batch.input_file_id))
    flight = batch_store.flights(cluster.redis, cluster.ns, batch.id)[0]
    line = next(work.lines(Cursor(line=flight.line - 1, offset=flight.offset)))
    batches.cancel_batch(cluster, batch.id)
    step(cluster, batch.id)  # another pump, which ends the batch
    cluster.redis.delete(keys.job(cluster.ns, batch.job_id(flight.line)))  # as if the line was only taken before
    work.begin(line, flight.custom_id)
    assert in_state(cluster, JobState.QUEUED) == []
    assert jobs.get(cluster.redis, cluster.ns, batch.job_id(flight.line)).state is JobState.CANCELLED


def test_a_pump_that_died_while_writing_files_writes_them_once(
    cluster: Context, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    batch = started(cluster, content(2))
    step(cluster, batch.id)
    worker.finish(worker.next_job())
    worker.fail(worker.next_job(), {"message": "no", "code": "template_error"})
    with monkeypatch.context() as patch:
        patch.setattr(batch_store, "end", die)
        with pytest.raises(KeyboardInterrupt):
            step(cluster, batch.id)
    assert now(cluster, batch).status is BatchStatus.FINALIZING
    used = file_store.used_bytes(cluster.redis, cluster.ns)
    step(cluster, batch.id)
    assert now(cluster, batch).status is BatchStatus.COMPLETED
    assert [len(part) for part in both(cluster, batch)] == [1, 1]
    assert file_store.used_bytes(cluster.redis, cluster.ns) == used


def test_a_result_counts_once_whoever_brings_it(cluster: Context, worker: Worker) -> None:
    batch = started(cluster, content(3))
    step(cluster, batch.id)
    worker.finish(worker.next_job())
    stale = batch_store.flights(cluster.redis, cluster.ns, batch.id)
    file = batches.file(cluster, batch.input_file_id)
    for _ in range(3):
        Work(cluster, now(cluster, batch), file).gather(stale, "")
    assert now(cluster, batch).completed == 1
    assert len(batch_store.flights(cluster.redis, cluster.ns, batch.id)) == 2


def test_whoever_comes_while_a_batch_is_held_is_not_forgotten(cluster: Context) -> None:
    batch = started(cluster, content(1))
    redis, ns = cluster.redis, cluster.ns
    assert batch_store.hold(redis, ns, batch.id, "one")
    assert not batch_store.hold(redis, ns, batch.id, "two")
    assert batch_store.release(redis, ns, batch.id, "one")
    assert batch_store.hold(redis, ns, batch.id, "two")
    assert not batch_store.release(redis, ns, batch.id, "two")


def test_the_input_of_a_running_batch_is_kept(cluster: Context) -> None:
    file = batches.save_file(cluster, "in.jsonl", [content(1)], keep_seconds=3600)
    wanted = Wanted(file.id, "/v1/chat/completions", "24h", 86_400)
    batch = batches.create_batch(cluster, wanted)
    assert batches.file(cluster, file.id).expires_at > now(cluster, batch).expires_at
    with pytest.raises(ConflictError, match=batch.id):
        batches.delete_file(cluster, file.id)
    batches.cancel_batch(cluster, batch.id)
    step(cluster, batch.id)
    batches.delete_file(cluster, file.id)


def test_an_output_file_is_no_input(cluster: Context, worker: Worker) -> None:
    batch = started(cluster, content(1))
    step(cluster, batch.id)
    worker.finish(worker.next_job())
    step(cluster, batch.id)
    output = str(now(cluster, batch).output_file_id)
    with pytest.raises(InvalidRequestError, match="batch_output"):
        batches.create_batch(cluster, Wanted(output, "/v1/chat/completions", "24h", 86_400))


def test_each_status_is_told_as_an_event(cluster: Context, worker: Worker) -> None:
    batch = started(cluster, content(1))
    step(cluster, batch.id)
    worker.finish(worker.next_job())
    step(cluster, batch.id)
    told = [
        fields["status"] for _, fields in cluster.redis.xrange(keys.events(cluster.ns)) if fields["kind"] == "batch"
    ]
    assert told == ["validating", "in_progress", "finalizing", "completed"]


def test_a_batch_in_redis_is_small(cluster: Context) -> None:
    text = content(2000)
    file = batches.save_file(cluster, "in.jsonl", [text])
    assert file.stored_bytes < len(text) / 5
    packed = sum(len(zlib.compress(line)) for line in text.splitlines())
    assert file.stored_bytes < packed
