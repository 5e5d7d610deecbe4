"""What a person does on the pages, in a real browser. No page is ever loaded again to see a change."""

import re
import time

import pytest
from playwright.sync_api import Page, Response, Route, expect
from stand.worker import MODEL, NODE, Worker

from exo_celery.records.download import Download, DownloadStatus
from exo_celery.records.instance import InstanceStatus, PlacementRequest
from exo_celery.records.job import JobState
from exo_celery.store import client, downloads, instances, nodes

CELL = f'[data-node="node-1"][data-model="{MODEL}"]'
PATHS = ("/", "/models", "/instances", "/jobs", "/batches")


@pytest.fixture
def loads(page: Page) -> list[str]:
    """Pages that were loaded."""
    seen: list[str] = []
    page.on("response", lambda answer: seen.append(answer.url) if is_page(answer) else None)
    return seen


def is_page(answer: Response) -> bool:
    return answer.request.resource_type == "document"


def held(worker: Worker, **facts: object) -> Download:
    one = Download.model_validate({"node": "node-1", "model": MODEL, "total_bytes": 1000} | facts)
    downloads.write(worker.redis, worker.ns, one)
    return one


def test_a_cell_goes_from_half_to_done(page: Page, worker: Worker, loads: list[str]) -> None:
    held(worker, downloaded_bytes=500)
    page.goto("/models")
    cell = page.locator(CELL)
    expect(cell).to_contain_text("50 %")
    expect(cell).to_have_attribute("data-state", "partial")
    held(worker, status=DownloadStatus.ONGOING, downloaded_bytes=750, speed_bps=50.0, eta_seconds=5.0)
    expect(cell).to_contain_text("75 %")
    expect(cell).to_contain_text("50 bytes/s · 5 s left")
    held(worker, status=DownloadStatus.COMPLETED, downloaded_bytes=1000)
    expect(cell).to_contain_text("100 %")
    expect(cell.locator("progress")).to_have_attribute("value", "100")
    assert len(loads) == 1


def test_a_whole_model_is_verified_and_what_was_wrong_is_shown(page: Page, worker: Worker) -> None:
    held(worker, status=DownloadStatus.COMPLETED, downloaded_bytes=1000)
    page.goto("/models")
    cell = page.locator(CELL)
    cell.get_by_role("button", name="Verify").click()
    expect(page.locator("#notice")).to_contain_text(f"node-1 hashes {MODEL} again")
    assert downloads.wishes(worker.redis, worker.ns, "node-1")[MODEL].action == "verify"
    held(worker, downloaded_bytes=900, error="a.safetensors: other bytes than were listed")
    expect(cell).to_contain_text("other bytes than were listed")


def test_a_failure_shows_its_reason_and_can_be_retried(page: Page, worker: Worker) -> None:
    held(worker, status=DownloadStatus.FAILED, downloaded_bytes=10, error="403: accept the terms <b>first</b>")
    page.goto("/models")
    cell = page.locator(CELL)
    expect(cell).to_contain_text("403: accept the terms <b>first</b>")
    cell.get_by_role("button", name="Retry").click()
    expect(page.locator("#notice")).to_contain_text(f"node-1 gets {MODEL}")
    assert downloads.wishes(worker.redis, worker.ns, "node-1")[MODEL].action == "download"


def test_a_model_nobody_has_stands_at_nothing(page: Page, worker: Worker) -> None:
    page.goto("/models")
    expect(page.locator(CELL)).to_contain_text("0 %")
    expect(page.locator(CELL).get_by_role("button", name="Download")).to_be_visible()


def test_the_matrix_says_what_the_api_says(page: Page, worker: Worker) -> None:
    for number, facts in enumerate(({"downloaded_bytes": 300}, {"status": "completed"}, {"status": "failed"}, {})):
        held(worker, model=f"org/m{number}", **facts)
    page.goto("/models")
    listed = page.request.get("/api/downloads").json()["downloads"]
    assert len(listed) == 5
    for one in listed:
        cell = page.locator(f'[data-node="{one["node"]}"][data-model="{one["model"]}"]')
        done = 100 if one["status"] == "completed" else one["downloaded_bytes"] * 100 // one["total_bytes"]
        expect(cell.locator("b")).to_have_text(f"{done} %")


def test_placing_with_the_dialog(page: Page, worker: Worker, loads: list[str]) -> None:
    old = instances.get(worker.redis, worker.ns, "i1")
    instances.save(worker.redis, worker.ns, old.evolve(status=InstanceStatus.GONE))
    page.goto("/instances")
    expect(page.locator("#instances")).to_contain_text("No model is placed")
    page.get_by_role("button", name="Place a model").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("#why")).to_contain_text("It is the only ring found that can hold it")
    expect(dialog).to_contain_text("0–3")
    dialog.get_by_role("button", name="Place", exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator("#notice")).to_contain_text("is being placed")
    card = page.locator("[data-instance]")
    expect(card).to_have_attribute("data-status", "placing")
    (placed,) = instances.every(worker.redis, worker.ns)
    ring = worker.instance().ring
    instances.save(worker.redis, worker.ns, placed.evolve(ring=ring, why="because", status=InstanceStatus.LOADING))
    expect(card).to_have_attribute("data-status", "loading")
    expect(card).to_contain_text("because")
    assert len(loads) == 1


def test_placing_replicas_that_go_when_idle(page: Page, worker: Worker) -> None:
    nodes.heartbeat(worker.redis, worker.ns, NODE.evolve(id="node-2", boot_id="other"))
    page.goto("/instances")
    page.get_by_role("button", name="Place a model").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Replicas").fill("2")
    dialog.get_by_label("Kept idle, seconds").fill("600")
    dialog.get_by_label("Kept idle, seconds").press("Tab")
    rings = dialog.locator("[data-replica]")
    expect(rings).to_have_count(2)
    expect(rings.nth(0)).to_contain_text("node-1")
    expect(rings.nth(1)).to_contain_text("node-2")
    expect(rings.nth(1)).to_contain_text("No other replica is on its nodes")
    dialog.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator("[data-instance]")).to_have_count(3)
    expect(page.locator('[data-status="placing"]').nth(1)).to_contain_text("replica 2 of 2")
    placed = [one for one in instances.every(worker.redis, worker.ns) if one.group]
    assert [one.request.keep_alive for one in placed] == [600, 600]


def test_what_an_instance_does_and_when_it_goes(page: Page, worker: Worker) -> None:
    now = client.now(worker.redis)
    asked = PlacementRequest(model=MODEL, keep_alive=600)
    one = instances.get(worker.redis, worker.ns, "i1")
    instances.save(worker.redis, worker.ns, one.evolve(request=asked, ready_at=now - 90, placed_by="work"))
    page.goto("/instances")
    card = page.locator("[data-instance]")
    expect(card).to_contain_text("idle for 1 min")
    expect(card).to_contain_text("unloaded in 8 min unless work comes")
    page.request.post("/api/jobs", data={"model": MODEL, "prompt": "Once"})
    job = worker.next_job()
    expect(card).to_contain_text("1 job running")
    worker.finish(job)
    expect(card).to_contain_text("unloaded in 9 min unless work comes")
    assert instances.drain(worker.redis, worker.ns, instances.get(worker.redis, worker.ns, "i1"), "i1 makes room")
    expect(card).to_have_attribute("data-status", "draining")
    expect(card.locator(".notice")).to_have_text("i1 makes room")
    expect(page.locator(".events")).to_contain_text("i1 makes room")


def test_a_rank_that_is_lost_is_told_though_the_instance_is_still_ready(page: Page, worker: Worker) -> None:
    page.goto("/instances")
    card = page.locator("[data-instance]")
    expect(card).to_have_attribute("data-status", "ready")
    nodes.leave(worker.redis, worker.ns, "node-1", "boot")
    expect(card.locator(".notice")).to_contain_text("rank 0 is lost, node-1 has not been heard")
    expect(card).to_have_attribute("data-status", "ready")


def test_the_dialog_tells_what_fits_nowhere(page: Page, worker: Worker) -> None:
    page.goto("/instances")
    page.get_by_role("button", name="Place a model").click()
    expect(page.locator("#why")).to_be_visible()
    page.get_by_label("At least, in nodes").fill("3")
    page.get_by_label("At least, in nodes").press("Tab")
    expect(page.locator("#refusal")).to_contain_text("at least 3 nodes")
    expect(page.get_by_role("button", name="Place", exact=True)).to_have_count(0)
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_unloading(page: Page, worker: Worker) -> None:
    page.goto("/instances")
    expect(page.locator("[data-rank]")).to_have_count(1)
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Unload").click()
    expect(page.locator("#instances")).to_contain_text("No model is placed")


def test_a_job_s_text_grows_and_it_is_cancelled(page: Page, worker: Worker, loads: list[str]) -> None:
    page.goto("/jobs")
    page.get_by_text("New job").click()
    page.get_by_label("What do you want to know?").fill("Tell <b>me</b> a story")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile("/jobs/job-"))
    expect(page.locator(".talk")).to_contain_text("Tell <b>me</b> a story")
    job = worker.next_job()
    answer = page.locator("#answer")
    worker.say(job, "Once ", "upon <i>a</i>\n")
    expect(answer).to_have_text("Once upon <i>a</i>\n")
    worker.say(job, " time", first=3)
    expect(answer).to_have_text("Once upon <i>a</i>\n time")
    assert answer.evaluate("it => it.textContent") == "Once upon <i>a</i>\n time"
    expect(page.locator("#job .badge")).to_have_text("running")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#job .badge")).to_have_text("cancelled")
    assert worker.state(job) is JobState.CANCELLED
    expect(answer).to_have_text("Once upon <i>a</i>\n time")
    assert len(loads) == 2


def test_a_finished_job_shows_all_of_its_text(page: Page, worker: Worker) -> None:
    page.goto("/jobs")
    answer = page.request.post("/api/jobs", data={"model": MODEL, "prompt": "Once"})
    job = worker.next_job()
    worker.finish(job, "upon a time")
    row = page.locator(f'[data-job="{answer.json()["id"]}"]')
    expect(row).to_have_attribute("data-state", "succeeded")
    expect(row).to_contain_text("upon a time")
    row.get_by_role("link").click()
    expect(page.locator("#answer")).to_have_text("upon a time")
    page.goto("/jobs?state=failed")
    expect(page.locator("#jobs")).to_contain_text("No failed job")


@pytest.mark.parametrize("path", PATHS)
def test_a_page_has_nothing_inline(page: Page, worker: Worker, path: str) -> None:
    answer = page.goto(path)
    assert answer
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    inline = """() => [...document.querySelectorAll('*')].filter(it =>
        (it.tagName === 'SCRIPT' && !it.src) || it.tagName === 'STYLE' ||
        [...it.attributes].some(one => one.name === 'style' || one.name.startsWith('on'))).map(it => it.outerHTML)"""
    assert page.evaluate(inline) == []
    expect(page.locator("#strip")).to_contain_text("1/1 nodes online")


@pytest.mark.parametrize("path", PATHS)
def test_a_page_fits_a_phone(page: Page, worker: Worker, path: str) -> None:
    held(worker, downloaded_bytes=500)
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(path)
    expect(page.locator("h1")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_node_that_is_not_reached_is_told(page: Page, worker: Worker) -> None:
    page.goto("/")
    expect(page.locator('[data-node="node-1"]')).to_contain_text("online")
    nodes.heartbeat(worker.redis, worker.ns, NODE.evolve(unreached=("node-1 does not reach node-2: open the port",)))
    expect(page.locator("#cluster .notice")).to_have_text("node-1 does not reach node-2: open the port")


def test_a_write_from_elsewhere_lacks_the_token(page: Page, worker: Worker) -> None:
    page.goto("/jobs")
    refused = page.request.post("/actions/unload", form={"id": "i1"})
    assert refused.status == 403
    assert instances.get(worker.redis, worker.ns, "i1").status is InstanceStatus.READY


@pytest.mark.parametrize("late_seconds", [0, 0.5])
def test_one_stream_per_tab(page: Page, worker: Worker, late_seconds: float) -> None:
    """Also where a script comes late: htmx once started without its extension then, and the page stood still."""

    def come_late(route: Route) -> None:
        time.sleep(late_seconds)
        route.continue_()

    page.route("**/hx-sse.min.js", come_late)
    streams: list[str] = []
    page.on("request", lambda request: streams.append(request.url) if "/live/" in request.url else None)
    with page.expect_request("**/live/**"):
        page.goto("/models")
    page.wait_for_timeout(2000)
    assert len(streams) == 1
