"""API keys over the wire: who is let in, to what, and for how long."""

import json
import time
from typing import Any

import httpx
import openai
import pytest
from click.testing import CliRunner, Result
from stand.front import meanwhile, served
from stand.worker import MODEL, Worker

from exo_celery.cli import main

NS = "test-keys"
ASK: dict[str, Any] = {"model": MODEL, "prompt": "Capital of France?"}
PROXIED = {"X-Forwarded-For": "10.1.1.1"}  # what comes through a proxy is not this machine's user


class Keys:
    """The command, as an admin uses it; in this process, since starting one for each takes longer than all it does."""

    def __init__(self, redis_url: str) -> None:
        self.env = {"EXO_REDIS_URL": redis_url, "EXO_NAMESPACE": NS, "COLUMNS": "200"}

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(main, words, env=self.env)

    def create(self, *words: str, name: str = "anna") -> str:
        done = self.run("keys", "create", "--name", name, *words)
        assert done.exit_code == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def keys(redis_url: str, worker: Worker) -> Keys:
    return Keys(redis_url)


def bearer(key: str) -> dict[str, str]:
    return PROXIED | {"Authorization": f"Bearer {key}"}


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_without_keys_this_machine_is_let_in_and_nobody_else(http: httpx.Client) -> None:
    assert http.get("/api/jobs").status_code == 200
    assert http.get("/api/jobs", headers={"Authorization": "Bearer whatever"}).status_code == 200
    assert code(http.get("/api/jobs", headers=PROXIED)) == (403, "access_denied")
    assert code(http.get("/api/jobs", headers=bearer("sk-exo-guess"))) == (403, "access_denied")


def test_a_key_is_shown_once_and_kept_as_a_digest(keys: Keys, worker: Worker) -> None:
    key = keys.create("--scope", "submit", "--model", MODEL, "--expires", "30d", "--rate", "60")
    assert key.startswith("sk-exo-")
    assert len(key) == len("sk-exo-") + 43  # 32 random bytes
    stored = "".join(
        f"{worker.redis.hgetall(name)}"
        for name in worker.redis.scan_iter(f"{NS}:*")
        if worker.redis.type(name) == "hash"
    )
    assert key not in stored
    [listed] = json.loads(keys.run("keys", "list", "--json").stdout)["keys"]
    assert (listed["name"], listed["scopes"], listed["models"], listed["rate_per_minute"]) == (
        "anna",
        ["submit"],
        [MODEL],
        60,
    )
    assert listed["expires_at"] == pytest.approx(time.time() + 30 * 86_400, abs=60)
    table = keys.run("keys", "list").stdout
    assert "anna" in table
    assert key not in table


def test_scopes_models_and_a_revoked_key(http: httpx.Client, keys: Keys) -> None:
    submit, infer, admin = (keys.create("--scope", scope, name=scope) for scope in ("submit", "infer", "admin"))
    assert http.post("/api/jobs", json=ASK, headers=bearer(submit)).status_code == 202
    assert code(http.post("/api/jobs", json=ASK, headers=bearer(infer))) == (403, "access_denied")
    assert code(http.get("/api/nodes", headers=bearer(submit))) == (403, "access_denied")
    assert code(http.get("/nowhere", headers=bearer(submit))) == (403, "access_denied")
    assert http.get("/v1/models", headers=bearer(infer)).status_code == 200
    assert http.get("/api/nodes", headers=bearer(admin)).status_code == 200
    other = keys.create("--scope", "submit", "--model", "org/other", name="other")
    assert code(http.post("/api/jobs", json=ASK, headers=bearer(other))) == (403, "access_denied")
    assert keys.run("keys", "revoke", "submit").exit_code == 0
    refused = http.post("/api/jobs", json=ASK, headers=bearer(submit))
    assert code(refused) == (401, "invalid_api_key")
    assert refused.headers["WWW-Authenticate"] == "Bearer"
    assert keys.run("keys", "revoke", "submit").exit_code == 1


def test_a_stream_ends_when_its_key_is_revoked(http: httpx.Client, keys: Keys) -> None:
    key = keys.create("--scope", "submit", name="anna")
    job = http.post("/api/jobs", json=ASK, headers=bearer(key)).json()["id"]
    with http.stream("GET", f"/api/jobs/{job}/stream", headers=bearer(key)) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert keys.run("keys", "revoke", "anna").exit_code == 0
        heard = list(lines)
    assert "event: error" in heard
    assert "invalid_api_key" in heard[heard.index("event: error") + 1]


def test_with_keys_a_stranger_needs_one_and_this_machine_does_not(http: httpx.Client, keys: Keys) -> None:
    keys.create("--scope", "submit")
    assert http.get("/api/jobs").status_code == 200
    assert code(http.get("/api/jobs", headers=PROXIED)) == (401, "invalid_api_key")
    assert code(http.get("/api/jobs", headers=bearer("sk-exo-guess"))) == (401, "invalid_api_key")
    assert code(http.get("/api/jobs", headers={"Authorization": "Bearer sk-exo-guess"})) == (401, "invalid_api_key")
    assert http.get("/healthz", headers=PROXIED).status_code == 200


def test_host_and_origin_are_asked_of_keys_too(http: httpx.Client, keys: Keys) -> None:
    key = keys.create("--scope", "admin")
    assert code(http.get("/api/jobs", headers=bearer(key) | {"Host": "evil.example"})) == (403, "access_denied")
    foreign = bearer(key) | {"Origin": "http://evil.example"}
    assert code(http.post("/api/jobs", json=ASK, headers=foreign)) == (403, "access_denied")


def test_a_submit_key_sees_its_own_jobs_only(http: httpx.Client, keys: Keys) -> None:
    anna, bert, admin = (
        keys.create("--scope", scope, name=name)
        for scope, name in (("submit", "anna"), ("submit", "bert"), ("admin", "root"))
    )
    mine = http.post("/api/jobs", json=ASK, headers=bearer(anna)).json()["id"]
    local = http.post("/api/jobs", json=ASK).json()["id"]
    listed = lambda key, **query: [  # noqa: E731
        job["id"] for job in http.get("/api/jobs", headers=bearer(key), params=query).json()["jobs"]
    ]
    assert listed(anna) == [mine]
    assert listed(anna, ids=f"{mine},{local}") == [mine]
    assert listed(anna, state="queued", model=MODEL) == [mine]
    assert listed(bert) == []
    assert set(listed(admin)) == {mine, local}
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/retry"), ("GET", "/stream")):
        answer = http.request(method, f"/api/jobs/{mine}{path}", headers=bearer(bert))
        assert code(answer) == (404, "not_found"), (method, path)
    assert http.get(f"/api/jobs/{mine}", headers=bearer(anna)).json()["state"] == "queued"
    named = {"Idempotency-Key": "one"}
    ids = {http.post("/api/jobs", json=ASK, headers=bearer(key) | named).json()["id"] for key in (anna, bert)}
    assert len(ids) == 2  # the same key of two owners names two jobs


def test_a_key_expires_and_counts_its_requests(http: httpx.Client, keys: Keys, worker: Worker) -> None:
    key = keys.create("--scope", "submit", "--rate", "3")
    now = worker.redis.time()[0]
    if now % 60 > 50:
        time.sleep(61 - now % 60)  # not across two windows
    statuses = [http.get("/api/jobs", headers=bearer(key)).status_code for _ in range(5)]
    assert statuses == [200, 200, 200, 429, 429]
    limited = http.get("/api/jobs", headers=bearer(key))
    assert limited.json()["error"]["code"] == "rate_limit_exceeded"
    assert 0 < int(limited.headers["Retry-After"]) <= 60
    short = keys.create("--scope", "submit", "--expires", "1m", name="short")
    [row] = [one for one in json.loads(keys.run("keys", "list", "--json").stdout)["keys"] if one["name"] == "short"]
    assert http.get("/api/jobs", headers=bearer(short)).status_code == 200
    worker.redis.hset(f"{NS}:key:{row['id']}", "expires_at", time.time() - 1)
    assert code(http.get("/api/jobs", headers=bearer(short))) == (401, "invalid_api_key")
    used = json.loads(keys.run("keys", "list", "--json").stdout)["keys"][0]["last_used_at"]
    assert used == pytest.approx(time.time(), abs=30)


def test_the_judge_reads_our_refusals(front: str, keys: Keys, worker: Worker) -> None:
    key = keys.create("--scope", "infer", "--rate", "100")

    def client(secret: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{front}/v1", api_key=secret, max_retries=0, default_headers=PROXIED)

    chat: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Capital of France?"}]}
    with client(key) as good, client("sk-exo-guess") as bad:
        with meanwhile(lambda: worker.finish(worker.next_job())):
            assert good.chat.completions.create(**chat).choices[0].message.content == "Paris"
        with pytest.raises(openai.AuthenticationError) as refused:
            bad.chat.completions.create(**chat)
        assert refused.value.code == "invalid_api_key"
        with pytest.raises(openai.PermissionDeniedError):
            good.files.list()


def test_a_browser_logs_in_with_a_key_and_is_out_when_it_is_revoked(http: httpx.Client, keys: Keys) -> None:
    admin, submit = keys.create("--scope", "admin", name="root"), keys.create("--scope", "submit", name="anna")
    browser = PROXIED | {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    sent = http.get("/", headers=browser)
    assert (sent.status_code, sent.headers["Location"]) == (303, "/login")
    assert http.get("/login", headers=browser).status_code == 200
    assert http.get("/static/app.css", headers=browser).status_code == 200
    assert http.post("/login", data={"key": "sk-exo-guess"}, headers=browser).status_code == 401
    assert http.post("/login", data={"key": submit}, headers=browser).status_code == 403
    foreign = browser | {"Origin": "http://evil.example"}
    assert http.post("/login", data={"key": admin}, headers=foreign).status_code == 403
    opened = http.post("/login", data={"key": admin}, headers=browser)
    assert opened.status_code == 303
    cookie = opened.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert admin not in cookie
    page = http.get("/", headers=browser)
    assert page.status_code == 200
    assert "Log out" in page.text
    job = http.post("/api/jobs", json=ASK, headers=browser)
    assert code(job) == (403, "access_denied")  # a session's write needs the token of our pages
    token = http.cookies["exo_csrf"]
    assert http.post("/api/jobs", json=ASK, headers=browser | {"X-CSRF-Token": token}).status_code == 202
    assert keys.run("keys", "revoke", "root").exit_code == 0
    assert http.get("/", headers=browser).headers["Location"] == "/login"
    assert code(http.get("/api/nodes", headers=PROXIED)) == (401, "invalid_api_key")


def test_a_session_can_be_ended(http: httpx.Client, keys: Keys) -> None:
    admin = keys.create("--scope", "admin")
    assert http.post("/login", data={"key": admin}, headers=PROXIED).status_code == 303
    assert http.get("/api/nodes", headers=PROXIED).status_code == 200
    session = http.cookies["exo_session"]
    assert http.post("/logout", headers=PROXIED).status_code == 403  # it did not come from one of our pages
    assert http.get("/", headers=PROXIED).status_code == 200
    token = {"X-CSRF-Token": http.cookies["exo_csrf"]}
    assert http.post("/logout", headers=PROXIED | token).status_code == 200
    again = http.get("/api/nodes", headers=PROXIED | {"Cookie": f"exo_session={session}"})
    assert code(again) == (401, "invalid_api_key")


def test_a_machine_shared_by_several_asks_everybody(redis_url: str, keys: Keys) -> None:
    key = keys.create("--scope", "submit")
    with served(EXO_REDIS_URL=redis_url, EXO_NAMESPACE=NS, EXO_REQUIRE_KEY="1") as address:
        assert code(httpx.get(f"{address}/api/jobs")) == (401, "invalid_api_key")
        assert httpx.get(f"{address}/api/jobs", headers={"Authorization": f"Bearer {key}"}).status_code == 200


def test_the_web_does_not_listen_elsewhere_while_nobody_could_be_let_in(keys: Keys) -> None:
    refused = keys.run("web", "--host", "0.0.0.0", "--port", "1")
    assert refused.exit_code == 78
    assert "exo-celery keys create" in refused.stderr
