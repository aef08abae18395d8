"""Pictures of the console for the documents: `make console-pictures`."""

import asyncio
import tempfile
from pathlib import Path

from duetime_core.clock import SystemClock
from duetime_core.testing import Cluster
from playwright.async_api import ViewportSize, expect

from tests.console.browser import PATIENCE_MS, PHONE, tab
from tests.console.browser import chromium as started
from tests.console.console import running
from tests.console.traffic import BILLING, ORDERS, REMINDERS, Traffic

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
WINDOW = ViewportSize(width=1100, height=640)
LOCALE = "en-GB"
RETURNS = "returns"
# Page, window and colours, by name.
PICTURES = {
    "now": ("/?span=7200000", ViewportSize(width=1100, height=880), "light"),
    "messages": (f"/messages?topic={REMINDERS}", WINDOW, "light"),
    "dead-letters": (f"/dead-letters?group={BILLING}", WINDOW, "dark"),
    "phone": ("/groups", PHONE, "light"),
}


async def main() -> None:
    expect.set_options(timeout=PATIENCE_MS)
    with tempfile.TemporaryDirectory(prefix="duetime-") as made:
        async with (
            Cluster(Path(made), shards=2, clock=SystemClock(), within=True) as cluster,
            Traffic(cluster.address) as traffic,
            running(cluster.address) as browser,
            started() as chromium,
        ):
            address = str(browser.client.base_url).rstrip("/")
            async with tab(chromium, WINDOW, locale=LOCALE) as opened:
                # The console records the past while a reader looks.
                await opened.goto(address + "/")
                await traffic.fill()
                for minute in range(1, 58):
                    for topic, count in ((REMINDERS, minute * 7 % 11), ("invoices", 12 if minute % 15 == 0 else 2)):
                        await traffic.send(topic, count, delay=f"{minute}m")
                for second in range(1, 12):
                    await traffic.send(ORDERS, 10 * (1 + second % 4), delay=f"{second}s")
                await traffic.create_topic(RETURNS)
                await traffic.fail(RETURNS, RETURNS, "return-1", "return-2", delay_ms=3_600_000)
                tiles = opened.page.locator(".tile")
                await expect(tiles.filter(has_text="durable late")).to_contain_text(" ms")
                await expect(tiles.filter(has_text="retrying")).to_contain_text("2")
                await expect(tiles.filter(has_text="dead letters")).to_contain_text("17")
            for name, (path, window, colors) in PICTURES.items():
                async with tab(chromium, window, color_scheme=colors, locale=LOCALE) as opened:
                    await opened.goto(address + path)
                    if path.startswith("/?"):
                        await opened.page.locator("canvas").first.wait_for()
                    await opened.page.screenshot(path=FOLDER / f"console-{name}.png")


if __name__ == "__main__":
    asyncio.run(main())
