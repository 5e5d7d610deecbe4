"""Take the README's pictures of a cluster that is started for it: `make screenshots`.

The folder gets one PNG per page, 1200 pixels wide, light.
"""

import sys
import tempfile
from pathlib import Path

from live import DEMO, Live, eventually
from playwright.sync_api import Page
from stand.chromium import chromium

LIMIT = 5_000_000  # bytes a second, so that a download can be seen
WIDTH = 1200
HEIGHTS = {"cluster": 780, "models": 360, "place": 760}
SETTLED_MS = 1500
QUESTIONS = ("What is the capital of France?", "Name three rivers.", "Write a haiku about the sea.")


def work(live: Live) -> None:
    """Give the cluster something to show: a ring, answers, a download under way."""
    live.ready(live.place(min_nodes=2), seconds=180)
    jobs = [live.submit(messages=[{"role": "user", "content": text}], max_tokens=48) for text in QUESTIONS]
    for job in jobs:
        live.job(job, "succeeded")
    live.http.post("/api/downloads", json={"node": "node-3", "model": DEMO}).raise_for_status()
    eventually(lambda: live.download("node-3"), lambda one: one["downloaded_bytes"] > 3e7 and one["speed_bps"], 60)


def take(page: Page, folder: Path) -> None:
    """Visit the pages, the download first because it does not wait, then open the dialog."""
    for name, path in {"models": "/models", "cluster": "/"}.items():
        page.goto(path)
        picture(page, folder, name)
    page.goto("/instances")
    page.get_by_role("button", name="Place a model").click()
    page.get_by_label("At least, in nodes").fill("2")
    page.get_by_label("At least, in nodes").press("Tab")
    page.locator("#why").wait_for()
    picture(page, folder, "place")


def picture(page: Page, folder: Path, name: str) -> None:
    page.set_viewport_size({"width": WIDTH, "height": HEIGHTS[name]})
    page.wait_for_timeout(SETTLED_MS)
    page.screenshot(path=folder / f"{name}.png")


def main(folder: Path) -> None:
    """Start a cluster and a browser, and take the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data, chromium() as browser:
        live = Live(Path(data) / "up", EXO_DOWNLOAD_LIMIT=str(LIMIT))
        try:
            work(live)
            take(browser.new_page(base_url=live.url, color_scheme="light"), folder)
        finally:
            live.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
