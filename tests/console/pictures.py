"""Pictures of the console for the documents: `make console-pictures`."""

import asyncio
import tempfile
from pathlib import Path

from duetime_core.clock import SystemClock
from duetime_core.testing import Cluster
from playwright.async_api import ViewportSize

from tests.console.browser import PHONE, tab
from tests.console.browser import chromium as started
from tests.console.console import running
from tests.console.traffic import BILLING, REMINDERS, Traffic

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
WINDOW = ViewportSize(width=1000, height=640)
# Page, window and colours, by name.
PICTURES = {
    "now": ("/?span=7200000", ViewportSize(width=1000, height=860), "light"),
    "messages": (f"/messages?topic={REMINDERS}", WINDOW, "light"),
    "dead-letters": (f"/dead-letters?group={BILLING}", WINDOW, "dark"),
    "phone": ("/groups", PHONE, "light"),
}


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="duetime-") as made:
        async with (
            Cluster(Path(made), shards=2, clock=SystemClock()) as cluster,
            Traffic(cluster.address) as traffic,
            running(cluster.address) as browser,
            started() as chromium,
        ):
            await traffic.fill()
            for minute in range(1, 58):
                for topic, count in ((REMINDERS, minute * 7 % 11), ("invoices", 12 if minute % 15 == 0 else 2)):
                    await traffic.send(topic, count, delay=f"{minute}m")
            address = str(browser.client.base_url).rstrip("/")
            for name, (path, window, colors) in PICTURES.items():
                async with tab(chromium, window, color_scheme=colors) as opened:
                    await opened.goto(address + path)
                    if path.startswith("/?"):
                        await opened.page.locator("canvas").first.wait_for()
                    await opened.page.screenshot(path=FOLDER / f"console-{name}.png")


if __name__ == "__main__":
    asyncio.run(main())
