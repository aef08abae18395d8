"""The distribution's Chromium, driven by Playwright, for tests of the console's pages.

DUETIME_TEST_REQUIRE_CHROMIUM=1   a browser that is not there fails the tests instead of skipping them
"""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, ViewportSize, async_playwright

# A busy machine is no fault of a page.
PATIENCE_MS = 60_000
DESK, PHONE = ViewportSize(width=1280, height=800), ViewportSize(width=360, height=740)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# WCAG 2.2 at the levels A and AA, and axe's own best practices.
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def chromium_path() -> str:
    """The program; a test without it is skipped by name, unless it is asked for."""
    program = shutil.which("chromium")
    if program is None:
        why = "Chromium is missing: Debian's package chromium has it"
        if os.environ.get("DUETIME_TEST_REQUIRE_CHROMIUM"):
            pytest.fail(why)
        pytest.skip(why)
    return program


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A running browser with an empty profile of its own."""
    path = chromium_path()
    async with async_playwright() as playwright:
        # Debian's start script takes free memory for a number that its shell can't compare, and says so.
        browser = await playwright.chromium.launch(executable_path=path, headless=True, args=ARGUMENTS)
        try:
            yield browser
        finally:
            await browser.close()


class Tab:
    """A page in a separate browser context: no cookies of another test. `problems`: its errors."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.problems: list[str] = []
        page.on("pageerror", lambda error: self.problems.append(f"error in a script: {error}"))
        page.on("console", self._listen)

    def _listen(self, message: Any) -> None:
        # A refused page is an answer, but the browser reports a resource that failed to load.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.problems.append(message.text)

    async def goto(self, address: str) -> int:
        """The status of the answer."""
        answer = await self.page.goto(address, wait_until="load")
        assert answer is not None
        return answer.status

    async def violations(self) -> list[str]:
        """Violations that axe finds in the present page: rule, element, and correction."""
        found = await Axe().run(
            self.page, options={"runOnly": {"type": "tag", "values": RULES}, "resultTypes": ["violations"]}
        )
        return [
            f"{rule['id']} ({rule['impact']}) {' '.join(map(str, node['target']))}: {node['failureSummary']}"
            for rule in found.response["violations"]
            for node in rule["nodes"]
        ]

    async def wider_than_its_window(self) -> int:
        """By how many pixels the page can be moved sideways."""
        window = self.page.viewport_size
        assert window is not None
        # A phone's innerWidth grows with a wide page.
        return int(await self.page.evaluate("document.documentElement.scrollWidth")) - window["width"]


@asynccontextmanager
async def tab(browser: Browser, window: ViewportSize = DESK, **options: Any) -> AsyncIterator[Tab]:
    """Fails at its end if a script failed, or if the browser refused something for the page's security policy."""
    context = await browser.new_context(viewport=window, **options)
    context.set_default_timeout(PATIENCE_MS)
    try:
        opened = Tab(await context.new_page())
        yield opened
        assert opened.problems == []
    finally:
        await context.close()
