"""Job transitions on a real Redis: each is atomic, fenced by the attempt, and harmless when sent twice."""

import json
import time

import pytest
from redis import Redis

from exo_celery.client import Client
from exo_celery.errors import NotFoundError
from exo_celery.records.job import Job, JobRequest, JobState, Usage
from exo_celery.store import job_lists, jobs, keys, outbox, tokens
from exo_celery.store.job_lists import Filter
from exo_celery.store.jobs import Outcome
from exo_celery.store.tokens import Piece

MODEL = "org/model"
DONE = Outcome(JobState.SUCCEEDED, "Paris", "stop", Usage(prompt_tokens=3, completion_tokens=1, total_tokens=4))


def submitted(redis: Redis, ns: str, job_id: str = "job-1", priority: int = 5) -> Job:
    request = JobRequest(model=MODEL, prompt="Where?", priority=priority)
    return jobs.submit(redis, ns, Job(id=job_id, model=MODEL, request=request, priority=priority))


def claimed(redis: Redis, ns: str, job_id: str = "job-1", token: str = "t1") -> Job:
    job = jobs.claim(redis, ns, job_id, "inst", ["a", "b"], token)
    assert job is not None
    return job


def lapse(redis: Redis, ns: str, job_id: str = "job-1") -> None:
    redis.hset(keys.job(ns, job_id), "lease_until", 1)
    redis.zadd(keys.jobs(ns, "running"), {job_id: 1})


def states(redis: Redis, ns: str, job_id: str = "job-1") -> list[str]:
    return [s for s in JobState if redis.zscore(keys.jobs(ns, s), job_id) is not None]


def test_a_job_goes_its_way_and_is_in_one_index_at_a_time(redis: Redis, namespace: str) -> None:
    submitted(redis, namespace)
    assert states(redis, namespace) == ["queued"]
    job = claimed(redis, namespace)
    assert (job.attempt, job.state, job.ring) == (1, JobState.RUNNING, ("a", "b"))
    assert states(redis, namespace) == ["running"]
    assert tokens.append(redis, namespace, [Piece(job.id, 1, 1, "Par")]) == [True]
    assert jobs.finish(redis, namespace, job.id, 1, DONE)
    ended = jobs.get(redis, namespace, job.id)
    assert (ended.state, ended.text, ended.usage.total_tokens) == (JobState.SUCCEEDED, "Paris", 4)
    assert ended.first_token_at >= ended.started_at >= ended.created_at > 0
    assert states(redis, namespace) == ["succeeded"]
    assert redis.zcard(keys.queued(namespace, MODEL, 5)) == 0


def test_submit_again_changes_nothing(redis: Redis, namespace: str) -> None:
    first = submitted(redis, namespace)
    claimed(redis, namespace)
    assert submitted(redis, namespace).published_at == first.published_at
    assert jobs.get(redis, namespace, "job-1").state is JobState.RUNNING


def test_one_claim_wins_and_the_same_token_claims_once(redis: Redis, namespace: str) -> None:
    submitted(redis, namespace)
    assert claimed(redis, namespace, token="t1").attempt == 1
    assert claimed(redis, namespace, token="t1").attempt == 1
    assert jobs.claim(redis, namespace, "job-1", "inst", [], "t2") is None


def test_a_zombie_is_refused_everywhere(redis: Redis, namespace: str) -> None:
    submitted(redis, namespace)
    claimed(redis, namespace)
    lapse(redis, namespace)
    assert jobs.requeue(redis, namespace, "job-1", None, "lost") is not None
    assert claimed(redis, namespace, token="t2").attempt == 2
    assert tokens.append(redis, namespace, [Piece("job-1", 1, 1, "old")]) == [False]
    assert jobs.renew(redis, namespace, [("job-1", 1), ("job-1", 2)]) == [("job-1", 1)]
    assert not jobs.finish(redis, namespace, "job-1", 1, DONE)
    assert jobs.finish(redis, namespace, "job-1", 2, DONE)


def test_a_late_finish_counts_until_the_next_claim(redis: Redis, namespace: str) -> None:
    submitted(redis, namespace)
    claimed(redis, namespace)
    lapse(redis, namespace)
    jobs.requeue(redis, namespace, "job-1", None, "lost")
    assert jobs.finish(redis, namespace, "job-1", 1, DONE)
    assert states(redis, namespace) == ["succeeded"]
    assert jobs.claim(redis, namespace, "job-1", "inst", [], "t3") is None


def test_finish_twice_is_one_result(redis: Redis, namespace: str) -> None:
    submitted(redis, namespace)
    claimed(redis, namespace)
    assert jobs.finish(redis, namespace, "job-1", 1, DONE)
    assert jobs.finish(redis, namespace, "job-1", 1, DONE)
    assert not jobs.finish(redis, namespace, "job-1", 1, Outcome(JobState.FAILED))
    ends = [e for e in tokens.follow(redis, namespace, "job-1", "0-0", 0.1) if e and e.kind == "end"]
    assert len(ends) == 1


@pytest.mark.parametrize("running", [False, True])
def test_cancel_is_final(redis: Redis, namespace: str, running: bool) -> None:
    submitted(redis, namespace)
    if running:
        claimed(redis, namespace)
    assert jobs.finish(redis, namespace, "job-1", None, Outcome(JobState.CANCELLED))
    assert jobs.get(redis, namespace, "job-1").state is JobState.CANCELLED
    assert not jobs.finish(redis, namespace, "job-1", 1, DONE)
    assert jobs.claim(redis, namespace, "job-1", "inst", [], "t9") is None


def test_a_live_lease_is_not_requeued(redis: Redis, namespace: str) -> None:
    submitted(redis, namespace)
    claimed(redis, namespace)
    assert jobs.requeue(redis, namespace, "job-1", None, "lost") is None
    assert jobs.lapsed(redis, namespace, time.time()) == []


def test_used_up_attempts_fail_with_their_reasons(redis: Redis, namespace: str) -> None:
    submitted(redis, namespace)
    for number in range(keys.ATTEMPTS):
        claimed(redis, namespace, token=f"t{number}")
        jobs.requeue(redis, namespace, "job-1", number + 1, f"cable {number}")
    job = jobs.get(redis, namespace, "job-1")
    assert job.state is JobState.FAILED
    assert job.error is not None
    assert job.error["code"] == "attempts_exhausted"
    assert len(job.reasons) == keys.ATTEMPTS
    assert all(f"cable {number}" in job.error["message"] for number in range(keys.ATTEMPTS))


def test_a_planned_hand_back_uses_no_attempt_and_tells_no_fault(redis: Redis, namespace: str) -> None:
    submitted(redis, namespace)
    for number in range(keys.ATTEMPTS + 2):
        claimed(redis, namespace, token=f"t{number}")
        assert jobs.requeue(redis, namespace, "job-1", number + 1, "told to end", planned=True) is not None
    job = jobs.get(redis, namespace, "job-1")
    assert (job.state, job.reasons) == (JobState.QUEUED, ())
    assert claimed(redis, namespace, token="last").attempt == keys.ATTEMPTS + 3  # the fence still rises


def test_the_stream_tells_attempts_apart_and_a_delta_sent_twice_is_there_once(redis: Redis, namespace: str) -> None:
    submitted(redis, namespace)
    claimed(redis, namespace)
    assert tokens.append(redis, namespace, [Piece("job-1", 1, 1, "Lon")]) == [True]
    assert tokens.append(redis, namespace, [Piece("job-1", 1, 1, "Lon")]) == [True]
    jobs.requeue(redis, namespace, "job-1", 1, "lost")
    claimed(redis, namespace, token="t2")
    tokens.append(redis, namespace, [Piece("job-1", 2, 1, "Paris")])
    jobs.finish(redis, namespace, "job-1", 2, DONE)
    seen = [e for e in tokens.follow(redis, namespace, "job-1", "0-0", 0.1) if e]
    assert [(e.id, e.kind, e.text) for e in seen[:4]] == [
        ("1-0", "attempt", ""),
        ("1-1", "delta", "Lon"),
        ("2-0", "attempt", ""),
        ("2-1", "delta", "Paris"),
    ]
    assert seen[-1].kind == "end"
    assert seen[-1].data["state"] == "succeeded"
    rest = [e.id for e in tokens.follow(redis, namespace, "job-1", "1-1", 0.1) if e]
    assert rest == [e.id for e in seen[2:]]


def message(redis: Redis, ns: str, queue: str, priority: int, published: float) -> None:
    redis.lpush(keys.messages(ns, queue, priority), json.dumps({"headers": {"pub": published}}))


def test_a_message_is_lost_only_when_the_next_to_be_popped_is_younger(redis: Redis, namespace: str) -> None:
    job = submitted(redis, namespace)
    at = job.published_at
    lost = lambda now: jobs.lost(redis, namespace, "q", MODEL, 5, now, "pub")  # noqa: E731
    assert lost(at + 1) == []  # young: perhaps not in the list yet
    assert [one.id for one in lost(at + 100)] == ["job-1"]  # an empty list: popped and lost
    message(redis, namespace, "q", 5, at - 50)
    assert lost(at + 100) == []  # an older message is still to be popped first
    redis.delete(keys.messages(namespace, "q", 5))
    message(redis, namespace, "q", 5, at + 50)
    assert [one.id for one in lost(at + 100)] == ["job-1"]


def test_one_caller_sends_a_lost_message_again(redis: Redis, namespace: str) -> None:
    job = submitted(redis, namespace)
    assert jobs.republish(redis, namespace, job) is not None
    assert jobs.republish(redis, namespace, job) is None


def test_pages_come_newest_first_and_go_on_where_they_ended(redis: Redis, namespace: str) -> None:
    for number in range(7):
        submitted(redis, namespace, f"job-{number}")
    first, after = job_lists.page(redis, namespace, Filter(), 3, None)
    second, after = job_lists.page(redis, namespace, Filter(), 3, after)
    third, last = job_lists.page(redis, namespace, Filter(), 3, after)
    assert [job.id for job in (*first, *second, *third)] == [f"job-{n}" for n in range(6, -1, -1)]
    assert last is None
    assert job_lists.page(redis, namespace, Filter(JobState.FAILED), 3, None) == ([], None)


def test_waiting_counts_and_notes_by_model(redis: Redis, namespace: str) -> None:
    submitted(redis, namespace, "job-1", 0)
    submitted(redis, namespace, "job-2", 9)
    assert jobs.waiting(redis, namespace, [MODEL, "org/other"]) == {MODEL: 2, "org/other": 0}
    jobs.note(redis, namespace, MODEL, "fits nowhere")
    assert jobs.get(redis, namespace, "job-2").note == "fits nowhere"


def test_an_unknown_job_is_named(redis: Redis, namespace: str) -> None:
    with pytest.raises(NotFoundError, match="job-9"):
        jobs.get(redis, namespace, "job-9")


def test_the_record_reads_plainly(redis: Redis, namespace: str) -> None:
    submitted(redis, namespace)
    fields = redis.hgetall(keys.job(namespace, "job-1"))
    assert fields["state"] == "queued"
    assert fields["attempt"] == "0"
    assert json.loads(fields["request"])["prompt"] == "Where?"


def test_a_deadline_fails_a_job_wherever_it_is(redis: Redis, namespace: str) -> None:
    request = JobRequest(model=MODEL, prompt="Where?", deadline_seconds=60)
    for job_id in ("job-1", "job-2"):
        written = jobs.submit(redis, namespace, Job(id=job_id, model=MODEL, request=request))
        assert written.deadline_at == pytest.approx(written.created_at + 60)
    claimed(redis, namespace, "job-2")
    jobs.fail_overdue(redis, namespace, time.time() + 50)
    assert states(redis, namespace) == ["queued"]
    jobs.fail_overdue(redis, namespace, time.time() + 70)
    for job_id, was in (("job-1", "queued"), ("job-2", "running")):
        job = jobs.get(redis, namespace, job_id)
        assert (job.state, (job.error or {})["code"]) == (JobState.FAILED, "deadline_exceeded")
        assert was in (job.error or {})["message"]
    assert not jobs.finish(redis, namespace, "job-2", 1, DONE)
    assert redis.zcard(keys.deadlines(namespace)) == 0


def test_a_job_past_its_deadline_is_not_claimed(redis: Redis, namespace: str) -> None:
    request = JobRequest(model=MODEL, prompt="Where?", deadline_seconds=0.01)
    jobs.submit(redis, namespace, Job(id="job-1", model=MODEL, request=request))
    time.sleep(0.05)
    assert jobs.claim(redis, namespace, "job-1", "inst", [], "t1") is None


def test_a_retried_job_has_all_its_attempts_before_it_and_old_ones_stay_fenced(redis: Redis, namespace: str) -> None:
    job = submitted(redis, namespace)
    assert jobs.retry(redis, namespace, job) is None  # it is still queued
    for number in range(keys.ATTEMPTS):
        claimed(redis, namespace, token=f"t{number}")
        jobs.requeue(redis, namespace, "job-1", number + 1, "cable")
    assert jobs.retry(redis, namespace, job) is not None
    again = jobs.get(redis, namespace, "job-1")
    assert (again.state, again.error, again.attempt, again.finished_at) == (JobState.QUEUED, None, keys.ATTEMPTS, 0)
    assert redis.ttl(keys.job(namespace, "job-1")) == -1
    assert claimed(redis, namespace, token="again").attempt == keys.ATTEMPTS + 1
    assert not jobs.finish(redis, namespace, "job-1", 1, DONE)
    assert jobs.requeue(redis, namespace, "job-1", keys.ATTEMPTS + 1, "cable") is not None  # no cap reached
    claimed(redis, namespace, token="last")
    assert jobs.finish(redis, namespace, "job-1", keys.ATTEMPTS + 2, DONE)
    assert jobs.retry(redis, namespace, job) is None  # it succeeded
    kinds = [e.kind for e in tokens.follow(redis, namespace, "job-1", "0-0", 0.1) if e]
    assert kinds == ["attempt", "attempt", "end"]


def test_lists_are_filtered_by_model_and_owner(redis: Redis, namespace: str) -> None:
    for number in range(12):
        model = f"org/m{number % 3}"
        request = JobRequest(model=model, prompt="x")
        owner = f"key-{number % 2}"
        jobs.submit(redis, namespace, Job(id=f"job-{number}", model=model, request=request, owner=owner))
    jobs.finish(redis, namespace, "job-4", None, Outcome(JobState.CANCELLED))

    def listed(wanted: Filter, limit: int = 2) -> list[str]:
        found, after = job_lists.page(redis, namespace, wanted, limit, None)
        ids = [job.id for job in found]
        while after is not None:
            found, after = job_lists.page(redis, namespace, wanted, limit, after)
            ids += [job.id for job in found]
        return ids

    assert listed(Filter(model="org/m1")) == ["job-10", "job-7", "job-4", "job-1"]
    assert listed(Filter(owner="key-1")) == [f"job-{n}" for n in (11, 9, 7, 5, 3, 1)]
    assert listed(Filter(owner="key-0", model="org/m1")) == ["job-10", "job-4"]
    assert listed(Filter(JobState.CANCELLED, owner="key-0")) == ["job-4"]
    assert listed(Filter(owner="key-9")) == []


def test_what_was_kept_long_enough_leaves_nothing_behind(redis: Redis, namespace: str) -> None:
    request = JobRequest(model=MODEL, prompt="x")
    jobs.submit(redis, namespace, Job(id="job-1", model=MODEL, request=request, owner="key-1", keep_seconds=100))
    jobs.submit(redis, namespace, Job(id="job-2", model=MODEL, request=request, owner="key-1"))
    jobs.finish(redis, namespace, "job-1", None, Outcome(JobState.CANCELLED))
    assert 95 < redis.ttl(keys.job(namespace, "job-1")) <= 100
    job_lists.forget_expired(redis, namespace, time.time() + 50)
    assert states(redis, namespace) == ["cancelled"]
    job_lists.forget_expired(redis, namespace, time.time() + 150)
    left = {key for key in redis.scan_iter(f"{namespace}:*") if redis.type(key) == "zset"}
    assert not [key for key in left if redis.zscore(key, "job-1") is not None]
    assert [job.id for job in job_lists.page(redis, namespace, Filter(owner="key-1"), 5, None)[0]] == ["job-2"]


def test_an_end_is_one_tellers_until_its_lease_is_over(redis: Redis, namespace: str) -> None:
    request = JobRequest(model=MODEL, prompt="x", webhook="http://127.0.0.1:1/")
    jobs.submit(redis, namespace, Job(id="job-1", model=MODEL, request=request, webhook=request.webhook or ""))
    assert outbox.take(redis, namespace, "webhook") is None
    jobs.finish(redis, namespace, "job-1", None, Outcome(JobState.CANCELLED))
    first = outbox.take(redis, namespace, "webhook")
    assert first
    assert first.job_id == "job-1"
    assert outbox.take(redis, namespace, "webhook") is None
    redis.zadd(keys.outbox(namespace, "webhook"), {"job-1": 1})  # the teller died, its lease is over
    second = outbox.take(redis, namespace, "webhook")
    assert second
    outbox.done(redis, namespace, first, webhook_tries=7)  # refused: it is the second's now
    assert redis.zcard(keys.outbox(namespace, "webhook")) == 1
    outbox.later(redis, namespace, second, 0, webhook_tries=1)
    third = outbox.take(redis, namespace, "webhook")
    assert third
    outbox.done(redis, namespace, third, webhook_tries=2)
    assert redis.zcard(keys.outbox(namespace, "webhook")) == 0
    assert jobs.get(redis, namespace, "job-1").webhook_tries == 2


def test_ten_thousand_queued_jobs_stay_small(redis: Redis, redis_url: str, namespace: str) -> None:
    def used() -> int:
        return int(redis.info("memory")["used_memory"])

    client, text, count = Client(redis_url, namespace), "w" * 400, 2000
    client.submit(MODEL, prompt="opens the connections")
    before = used()
    for _ in range(count):
        client.submit(MODEL, messages=[{"role": "user", "content": text}])
    each = (used() - before) / count - len(text)
    client.redis.close()
    assert each < 3000, f"{each:.0f} bytes each beyond the text, the message included"
