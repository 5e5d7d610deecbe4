import pytest
from flask.testing import FlaskClient
from werkzeug.datastructures import Headers

from exo_celery.errors import AccessError
from exo_celery.records.access import AccessKey, Scope
from exo_celery.settings import Settings
from web import auth

HOSTS = Settings().allowed_hosts
LOCAL = {"Host": "127.0.0.1:8000"}


def check(peer: str | None = "127.0.0.1", method: str = "GET", **headers: str) -> None:
    sent = LOCAL | {name.replace("_", "-"): value for name, value in headers.items()}
    auth.check_origin(method, Headers(sent), HOSTS)
    auth.check_local(peer, Headers(sent))


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_peers_are_let_in(peer: str) -> None:
    check(peer)


@pytest.mark.parametrize("peer", ["192.168.1.5", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "", None, "unix:"])
def test_other_peers_are_refused_and_told_why(peer: str | None) -> None:
    with pytest.raises(AccessError, match="without an API key only this machine"):
        check(peer)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8000"])
def test_allowed_hosts_on_any_port(host: str) -> None:
    check(Host=host)


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost.evil.example", "127.0.0.1.nip.io:8000", "::1", "localhost:80:80"]
)
def test_a_rebound_name_is_refused(host: str) -> None:
    with pytest.raises(AccessError, match="is not allowed"):
        check(Host=host)


@pytest.mark.parametrize(
    "name", ["X-Forwarded-For", "x-forwarded-host", "X-Forwarded-Proto", "Forwarded", "X-Real-IP", "Via"]
)
def test_what_a_proxy_passes_on_is_refused(name: str) -> None:
    with pytest.raises(AccessError, match="no proxy is let in"):
        auth.check_local("127.0.0.1", Headers(LOCAL | {name: "10.0.0.1"}))


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", "http://127.0.0.1:9000", "http://localhost:8000"]
)
def test_a_write_from_another_page_is_refused(origin: str) -> None:
    with pytest.raises(AccessError, match="may not write here"):
        check(method="POST", Origin=origin)
    check(method="GET", Origin=origin)


def test_a_write_from_our_page_or_from_no_browser_is_let_in() -> None:
    check(method="POST", Origin="http://127.0.0.1:8000")
    check(method="DELETE")


@pytest.mark.parametrize("path", ["/api/nodes", "/v1/models", "/metrics", "/readyz", "/openapi.json", "/nowhere"])
def test_one_guard_stands_before_every_route(client: FlaskClient, path: str) -> None:
    answer = client.get(path, environ_base={"REMOTE_ADDR": "10.1.1.1"})
    assert answer.status_code == 403
    assert answer.json["error"]["code"] == "access_denied"
    assert answer.headers["x-request-id"].startswith("req_")


def test_health_is_open(client: FlaskClient) -> None:
    answer = client.get("/healthz", environ_base={"REMOTE_ADDR": "10.1.1.1"}, headers={"Host": "any"})
    assert (answer.status_code, answer.json) == (200, {"status": "ok"})


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/chat/completions", {"infer"}),
        ("/v1/models", {"infer", "submit"}),
        ("/v1/batches", {"submit"}),
        ("/v1/files/file-1/content", {"submit"}),
        ("/api/jobs", {"submit"}),
        ("/api/jobs/job-1/stream", {"submit"}),
        ("/openapi.json", {"infer", "submit"}),
        ("/api/instances", set()),
        ("/metrics", set()),
        ("/", set()),
        ("/actions/place", set()),
        ("/nowhere", set()),
    ],
)
def test_each_scope_opens_its_paths_and_admin_all(path: str, allowed: set[str]) -> None:
    auth.check_scope(AccessKey(id="key-1", name="n", scopes=(Scope.ADMIN,)), path)
    for scope in (Scope.INFER, Scope.SUBMIT):
        key = AccessKey(id="key-1", name="n", scopes=(scope,))
        if scope in allowed:
            auth.check_scope(key, path)
        else:
            with pytest.raises(AccessError, match=f"is for {scope}"):
                auth.check_scope(key, path)
