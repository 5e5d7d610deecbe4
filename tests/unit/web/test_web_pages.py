import hashlib
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

import web
from exo_celery.records.download import Download
from exo_celery.records.model import ModelCard
from exo_celery.records.node import NodeView
from web import drawing, live, matrix, reading, sse
from web.errors import OUTAGES

MODEL = "org/known"
VENDOR = Path(web.__file__).parent / "static" / "vendor"


def download(**facts: Any) -> Download:
    return Download.model_validate({"node": "node-1", "model": MODEL, "total_bytes": 1000} | facts)


def view(node: str, **facts: Any) -> NodeView:
    return NodeView.model_validate({"id": node, "alive": True} | facts)


@pytest.mark.parametrize(
    ("facts", "percent", "amount", "state", "actions"),
    [
        ({"status": "completed", "downloaded_bytes": 990}, 100, "1 kB", "complete", ("verify", "delete")),
        ({"status": "completed", "read_only": True}, 100, "1 kB", "complete", ("verify",)),
        ({"downloaded_bytes": 500}, 50, "500 bytes of 1 kB", "partial", ("resume", "delete")),
        ({"downloaded_bytes": 1000}, 99, "1 kB of 1 kB", "partial", ("resume", "delete")),
        ({"downloaded_bytes": 4000}, 99, "4 kB of 1 kB", "partial", ("resume", "delete")),
        ({}, 0, "0 bytes of 1 kB", "absent", ("download",)),
        ({"total_bytes": 0}, 0, "0 bytes", "absent", ("download",)),
        ({"status": "ongoing", "downloaded_bytes": 10}, 1, "10 bytes of 1 kB", "ongoing", ("cancel",)),
        ({"status": "failed", "downloaded_bytes": 10}, 1, "10 bytes of 1 kB", "failed", ("retry", "delete")),
    ],
)
def test_a_cell(facts: dict[str, Any], percent: int, amount: str, state: str, actions: tuple[str, ...]) -> None:
    one = download(**facts)
    cell = matrix.Cell(one)
    assert (reading.percent(one), reading.amount(one), cell.state, cell.actions) == (percent, amount, state, actions)


def test_the_matrix_has_every_model_on_every_node() -> None:
    cards = [ModelCard(id="b/b", storage_bytes=1, n_layers=1, hidden_size=1)]
    rows = matrix.rows(cards, [download(node="n2")], ["n1", "n2"])
    assert [(row.model, row.card is None) for row in rows] == [("b/b", False), (MODEL, True)]
    assert [cell.download.node for cell in rows[1].cells] == ["n1", "n2"]
    assert [cell.download.total_bytes for cell in rows[1].cells] == [0, 1000]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "under 1 s"),
        (1, "1 s"),
        (47.9, "47 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (7200, "2 h"),
        (200_000, "2 days"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert reading.duration(seconds) == text


def test_ages() -> None:
    assert [reading.ago(then, 1000.0) for then in (0, 995, 953, 1003)] == ["never", "just now", "47 s ago", "just now"]


def test_the_picture_has_a_place_for_each_node_and_a_way_through_each_ring() -> None:
    nodes = [view(f"n{at}", ram_total_bytes=100, ram_available_bytes=25) for at in range(5)]
    rings = [{"ring": [{"node": "n3"}, {"node": "n0"}]}, {"ring": [{"node": "n1"}]}, {"ring": [{"node": "lost"}]}]
    drawn = drawing.picture(nodes, rings)
    assert len({(round(one.x), round(one.y)) for one in drawn.spots}) == 5
    assert all(30 < one.x < drawn.width - 30 and 30 < one.y < drawn.height - 66 for one in drawn.spots)
    assert {one.used for one in drawn.spots} == {75}
    assert [ring.points.count(",") for ring in drawn.rings] == [2, 1]
    assert drawn.rings[0].points.startswith(f"{drawn.spots[3].x:.1f},{drawn.spots[3].y:.1f} ")
    assert drawn.rings[1].centre is drawn.spots[1]


def test_memory_that_is_not_known_is_no_division() -> None:
    assert drawing.used_percent(view("n", ram_total_bytes=0, ram_available_bytes=0)) == 0
    assert drawing.used_percent(view("n", ram_total_bytes=5)) == 0


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/", "1/1 nodes online"),
        ("/models", "100 %"),
        ("/instances", "only ring"),
        ("/jobs", "Paris"),
        ("/jobs?state=succeeded", "Paris"),
        ("/jobs/j1", "Paris"),
        ("/place/", MODEL),
    ],
)
def test_pages(client: FlaskClient, path: str, text: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert text in answer.text
    assert "script-src 'self'" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "idle for 1 min · kept"),
        ({"running_jobs": 2, "idle_since": None}, "2 jobs running · kept"),
        ({"placed_by": "work"}, "kept until its memory is needed for other work"),
        ({"keep_alive": 600, "unloads_at": 1700000600.0}, "idle for 1 min · unloaded in 9 min unless work comes"),
        ({"keep_alive": 600, "running_jobs": 1, "idle_since": None}, "1 job running · kept for 10 min without work"),
        ({"group": "group-1", "replica": 2, "replicas": 3}, "replica 2 of 3"),
        ({"note": "rank 0 is lost, node-1 has restarted"}, "rank 0 is lost, node-1 has restarted"),
    ],
)
def test_an_instance_tells_what_it_does(client: FlaskClient, fake: Any, changes: dict[str, Any], text: str) -> None:
    (placed,) = fake.placed
    asked = {name: changes.pop(name) for name in ("replicas", "keep_alive") if name in changes}
    fake.placed = [placed | changes | {"request": placed["request"] | asked}]
    assert text in " ".join(client.get("/instances").text.split())


def test_an_unknown_job_is_a_page_that_says_so(client: FlaskClient) -> None:
    answer = client.get("/jobs/none")
    assert (answer.status_code, answer.mimetype) == (404, "text/html")
    assert "does not exist" in answer.text


def test_an_outage_is_a_page_without_names_of_hosts(client: FlaskClient, fake: Any) -> None:
    fake.away = True
    answer = client.get("/models")
    assert (answer.status_code, answer.mimetype) == (503, "text/html")
    assert "Redis does not answer" in answer.text
    assert "secret-host" not in answer.text
    again = client.get("/api/downloads")
    assert (again.status_code, again.json["error"]["code"]) == (503, "unavailable")
    assert "secret-host" not in again.text


def test_a_write_needs_the_token_of_the_page(client: FlaskClient, fake: Any) -> None:
    form = {"node": "node-1", "model": MODEL}
    assert client.post("/actions/download", data=form).status_code == 403
    client.get("/models")
    assert client.post("/actions/download", data=form).status_code == 403
    assert client.post("/actions/download", data=form, headers={"X-CSRF-Token": "guess"}).status_code == 403
    cookie = client.get_cookie("exo_csrf")
    assert cookie
    assert (cookie.http_only, cookie.same_site) == (True, "Strict")
    assert fake.wishes == []
    answer = client.post("/actions/download", data=form, headers={"X-CSRF-Token": cookie.value})
    assert answer.status_code == 200
    assert fake.wishes == [("download", "node-1", MODEL)]


def test_what_an_action_refuses_is_told_on_the_page(client: FlaskClient) -> None:
    client.get("/models")
    cookie = client.get_cookie("exo_csrf")
    assert cookie
    headers = {"X-CSRF-Token": cookie.value}
    wrong = client.post("/actions/download", data={"node": "../x", "model": MODEL}, headers=headers)
    assert wrong.status_code == 400
    assert 'hx-target="#notice"' in wrong.text
    assert "node" in wrong.text
    refused = client.post("/actions/place", data={"model": MODEL, "min_nodes": "2"}, headers=headers)
    assert refused.status_code == 409
    assert "2 nodes wanted, 1 is alive" in refused.text


def test_a_board_sends_changes_only(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.0)
    shown = {"a": "one", "b": "two"}
    board = live.Board(lambda: dict(shown))
    (first,) = board.news()
    assert '#a"' in first
    assert '#b"' in first
    assert list(board.news()) == []
    shown["b"] = "two\nlines"
    (second,) = board.news()
    assert "#a" not in second
    assert second.count("data: ") == 2
    board.spoke_at = 0.0
    assert list(board.news()) == [sse.KEEP_ALIVE]


def test_a_board_outlives_an_outage(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.0)
    away = True

    def render() -> dict[str, str]:
        if away:
            raise OUTAGES[0]("refused")
        return {"a": "one"}

    board = live.Board(render)
    with client.application.test_request_context():
        (frame,) = board.news()
        assert "Redis does not answer" in frame
        away = False
        (frame,) = board.news()
    assert "one" in frame
    assert "Redis" not in frame
    assert '#outage"' in frame


def test_vendored_files_are_what_their_list_says() -> None:
    listed = dict(reversed(line.split()) for line in (VENDOR / "SHA256SUMS").read_text().splitlines())
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    assert {name: digest for name, digest in found.items() if name not in ("SHA256SUMS", "README.md")} == listed
    assert {"LICENSE.htmx", "LICENSE.pico"} <= set(listed)


def test_many_tabs_are_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    lookout = live.Lookout()

    def render() -> dict[str, str]:
        looks.append(1)
        return {"a": f"look {len(looks)}"}

    assert [lookout.look("models", render) for _ in range(5)] == [{"a": "look 1"}] * 5
    assert lookout.look("jobs", render) == {"a": "look 2"}
    monkeypatch.setattr(live, "SHARED_SECONDS", 0.0)
    assert lookout.look("models", render) == {"a": "look 3"}
