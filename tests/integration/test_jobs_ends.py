"""What follows a job's end: a task of somebody else's Celery app, on their own worker, and signed webhooks."""

import base64
import hashlib
import hmac
import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import celery
import pytest
from redis import Redis
from stand.front import eventually
from stand.worker import MODEL, Worker

from exo_celery.client import Client
from exo_celery.context import Context, open_context
from exo_celery.errors import InvalidRequestError
from exo_celery.node import trust, webhook
from exo_celery.records.job import JobState
from exo_celery.settings import Settings
from exo_celery.store import keys, outbox
from exo_celery.tasks import ends


@pytest.fixture
def cluster(redis: Redis, redis_url: str, namespace: str) -> Iterator[Context]:
    Worker(redis, namespace).set_up()
    opened = open_context(Settings(redis_url=redis_url, namespace=namespace))
    yield opened
    opened.redis.close()


@pytest.fixture
def other(redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Their app, imported as their web or shell would."""
    monkeypatch.setenv("OTHER_BROKER", redis_url)
    monkeypatch.setenv("OTHER_NAMESPACE", namespace)
    module = importlib.import_module("other_app")
    yield module
    module.exo.redis.close()
    module.shelf.close()
    del sys.modules["other_app"]
    celery._state._set_current_app(None)  # importing theirs made it current


@pytest.fixture
def their_worker(redis_url: str, namespace: str) -> Iterator[None]:
    """Their worker, a stock one that knows nothing of ours."""
    env = os.environ | {"OTHER_BROKER": redis_url, "OTHER_NAMESPACE": namespace}
    argv = [sys.executable, "-m", "celery", "-A", "other_app", "worker", "-P", "solo", "-l", "ERROR"]
    process = subprocess.Popen(argv, cwd=Path(__file__).parent, env=env, stdout=subprocess.DEVNULL)
    yield
    process.terminate()
    process.wait(20)


def tell(cluster: Context, what: str) -> int:
    """Tell all ends that are due, and return how many there were."""
    count = 0
    while ends.tell(cluster, what):
        count += 1
    return count


def test_their_task_follows_the_job_on_their_worker(
    cluster: Context, other: ModuleType, their_worker: None, redis: Redis
) -> None:
    worker = Worker(redis, cluster.ns)
    job = other.exo.submit(MODEL, prompt="Where?", then=other.file_answer.s(letter="letter-17"))
    assert tell(cluster, "then") == 0
    worker.finish(worker.next_job())
    assert tell(cluster, "then") == 1
    assert eventually(lambda: redis.llen(f"{cluster.ns}:shelf") > 0, 30)
    assert redis.lpop(f"{cluster.ns}:shelf") == f"letter-17 succeeded Paris {job.id}.then"
    assert redis.llen("letters") == 0
    assert other.exo.job(job.id).then_sent_at > 0
    chained = other.file_answer.s("letter-18") | other.post_script.si()
    cancelled = other.exo.submit(MODEL, prompt="Where?", then=chained)
    other.exo.cancel(cancelled.id)
    assert tell(cluster, "then") == 1
    assert eventually(lambda: redis.llen(f"{cluster.ns}:shelf") == 2, 30)
    first, second = redis.lrange(f"{cluster.ns}:shelf", 0, -1)
    assert first.startswith("letter-18 cancelled")
    assert second == "post scriptum"


def test_a_continuation_whose_sender_died_is_sent_again(cluster: Context, other: ModuleType, redis: Redis) -> None:
    job = other.exo.submit(MODEL, prompt="Where?", then=other.file_answer.s("letter"))
    other.exo.cancel(job.id)
    assert outbox.take(redis, cluster.ns, "then")  # and the taker dies
    assert tell(cluster, "then") == 0
    redis.zadd(keys.outbox(cluster.ns, "then"), {job.id: 1})  # its lease is over
    assert tell(cluster, "then") == 1
    assert tell(cluster, "then") == 0
    sent = [json.loads(text) for text in redis.lrange("letters", 0, -1)]
    assert [(one["headers"]["task"], one["headers"]["id"]) for one in sent] == [
        ("letters.file_answer", f"{job.id}.then")
    ]
    redis.delete("letters")


def test_the_client_leaves_the_hosts_app_and_environment_alone(redis_url: str, namespace: str) -> None:
    theirs = celery.Celery("theirs", broker="memory://")
    before, app_before = dict(os.environ), celery.current_app._get_current_object()
    client = Client(redis_url, namespace)
    client.submit(MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=4, then=theirs.signature("a.b"))
    assert dict(os.environ) == before
    assert celery.current_app._get_current_object() is app_before is theirs
    assert theirs.conf.broker_url == "memory://"
    client.redis.close()
    celery._state._set_current_app(None)


def test_what_cannot_follow_is_refused(redis_url: str, namespace: str) -> None:
    app = celery.Celery("theirs", broker="memory://", set_as_current=False)
    client = Client(redis_url, namespace)
    for then in (celery.group(app.signature("a"), app.signature("b"), app=app), app.signature("a", args=(object(),))):
        with pytest.raises(InvalidRequestError) as refused:
            client.submit(MODEL, prompt="x", then=then)
        assert refused.value.param == "then"
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        client.submit(MODEL, prompt="x", max_tokens=0)
    client.redis.close()


class Receiver(HTTPServer):
    """A webhook's other side, which answers as it is told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.heard: list[tuple[dict[str, str], bytes]] = []
        self.status = 204
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook?x=1"


class Answering(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.heard.append(({name.lower(): text for name, text in self.headers.items()} | {"path": self.path}, body))
        self.send_response(server.status)
        if server.status == 302:
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    yield server
    server.shutdown()
    server.server_close()


def ended(cluster: Context, redis: Redis, url: str, owner: str = "") -> str:
    worker = Worker(redis, cluster.ns)
    client = Client(cluster.settings.redis_url, cluster.ns)
    job = client.submit(MODEL, prompt="a secret question", webhook=url, owner=owner)
    worker.finish(worker.next_job(), "a secret answer")
    client.redis.close()
    return job.id


def test_a_webhook_is_signed_and_holds_neither_prompt_nor_text(
    cluster: Context, redis: Redis, receiver: Receiver
) -> None:
    job_id = ended(cluster, redis, receiver.url)
    assert tell(cluster, "webhook") == 1
    [(headers, body)] = receiver.heard
    assert headers["path"] == "/hook?x=1"
    told = json.loads(body)
    assert (told["type"], told["data"]["id"], told["data"]["state"]) == ("job.succeeded", job_id, "succeeded")
    assert b"secret" not in body
    key = base64.b64decode(
        webhook.shown(trust.purpose_key(trust.cluster_secret(cluster.settings, redis), "webhook"))[6:]
    )
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert tell(cluster, "webhook") == 0


@pytest.mark.parametrize("status", [500, 302, 404])
def test_a_webhook_that_is_not_taken_is_tried_again_later(
    cluster: Context, redis: Redis, receiver: Receiver, status: int
) -> None:
    receiver.status = status
    job_id = ended(cluster, redis, receiver.url)
    client = Client(cluster.settings.redis_url, cluster.ns)
    assert tell(cluster, "webhook") == 1
    job = client.job(job_id)
    assert (job.webhook_tries, job.webhook_sent_at) == (1, 0)
    assert str(status) in job.webhook_error
    assert tell(cluster, "webhook") == 0  # not before its pause is over
    receiver.status = 204
    redis.zadd(keys.outbox(cluster.ns, "webhook"), {job_id: 1})
    assert tell(cluster, "webhook") == 1
    job = client.job(job_id)
    assert (job.webhook_tries, job.webhook_error) == (2, "")
    assert job.webhook_sent_at > 0
    assert [headers["path"] for headers, _ in receiver.heard] == ["/hook?x=1"] * 2  # no redirect was followed
    client.redis.close()


def test_a_webhook_that_nobody_takes_is_given_up_and_told(cluster: Context, redis: Redis) -> None:
    job_id = ended(cluster, redis, "http://169.254.169.254/latest/meta-data")
    for _ in webhook.PAUSES:
        redis.zadd(keys.outbox(cluster.ns, "webhook"), {job_id: 1})
        assert tell(cluster, "webhook") == 1
    assert tell(cluster, "webhook") == 0
    assert redis.zcard(keys.outbox(cluster.ns, "webhook")) == 0
    [(_, event)] = redis.xrevrange(keys.events(cluster.ns), count=1)
    assert "169.254.169.254 is link-local" in event["text"]


def test_a_strangers_webhook_does_not_reach_this_machine(cluster: Context, redis: Redis, receiver: Receiver) -> None:
    job_id = ended(cluster, redis, receiver.url, owner="key-1")
    assert tell(cluster, "webhook") == 1
    assert receiver.heard == []
    client = Client(cluster.settings.redis_url, cluster.ns)
    assert "this machine" in client.job(job_id).webhook_error
    assert client.job(job_id).state is JobState.SUCCEEDED
    client.redis.close()


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("192.168.1.20", True),
        ("10.0.0.1", True),
        ("8.8.8.8", True),
        ("fd12::1", True),
        ("169.254.0.5", False),
        ("fe80::1%eth0", False),
        ("::ffff:169.254.169.254", False),
        ("fd00:ec2::254", False),
        ("100.100.100.200", False),
        ("0.0.0.0", False),
        ("::", False),
        ("224.0.0.1", False),
        ("127.0.0.1", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
    ],
)
def test_where_a_strangers_webhook_may_go(address: str, allowed: bool) -> None:
    assert (webhook.forbidden(address, local=False) is None) is allowed
