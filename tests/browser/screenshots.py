"""Take pictures of every page of a running front: `python tests/browser/screenshots.py <address> <folder>`.

The address is what `exo-celery up` prints after `ready`; the folder gets one PNG per page, light.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

PAGES = {"cluster": "/", "models": "/models", "instances": "/instances", "jobs": "/jobs"}
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
SETTLED_MS = 1500


def take(page: Page, folder: Path) -> None:
    """Visit each page, then the dialog."""
    for name, path in PAGES.items():
        page.goto(path)
        page.wait_for_timeout(SETTLED_MS)
        page.screenshot(path=folder / f"{name}.png")
    page.goto("/instances")
    page.get_by_role("button", name="Place a model").click()
    page.locator("#why, #refusal").wait_for()
    page.wait_for_timeout(SETTLED_MS)
    page.screenshot(path=folder / "place.png")


def main(address: str, folder: Path) -> None:
    """Start a browser and take the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        context = browser.new_context(base_url=address, viewport={"width": 1320, "height": 820}, color_scheme="light")
        take(context.new_page(), folder)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
