"""Pages in headless Chromium, driven by Playwright."""

import shutil
from contextlib import contextmanager

import pytest
from time_limits import FAR_SECONDS

CHROMIUM = shutil.which("chromium")
_SECONDS = 300  # of waiting for an element that does not come
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="needs chromium")


@contextmanager
def opened(page, width=1280):
    """Open a page and yield Playwright's object of it.

    At the end the page must have printed nothing on the console, have fetched nothing, and not be wider than the window.

    Args:
      page: path of the page.
      width: pixels of the window; 390 is a phone.
    """
    from playwright.sync_api import sync_playwright  # few tests need it

    messages, requests = [], []
    with sync_playwright() as playwright:
        # In a container, where tests run as root, Chromium has no sandbox and little shared memory.
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags, timeout=FAR_SECONDS * 1000)
        shown = browser.new_page(viewport={"width": width, "height": 900})
        shown.on("console", lambda message: messages.append(message.text))
        shown.on("pageerror", lambda error: messages.append(str(error)))
        shown.on("request", lambda request: requests.append(request.url))
        shown.set_default_timeout(_SECONDS * 1000)
        shown.goto(page.as_uri())
        yield shown
        overflow = shown.evaluate("document.documentElement.scrollWidth") - width
        browser.close()
    assert not messages
    assert [url for url in requests if not url.startswith("data:")] == [page.as_uri()]
    assert overflow <= 0
