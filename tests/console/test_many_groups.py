"""More groups than a page requests: all are counted, page by page and look by look, and gaps are reported."""

import re
from pathlib import Path

import pytest
from duetime.v1 import consumer_pb2
from duetime_console.gateway import Gateway
from duetime_console.lists import ASKED_MAX, ROWS_MAX
from duetime_console.overview.groups import LOOKED_MAX, GroupWatch
from duetime_console.settings import Settings
from duetime_core.testing import Cluster
from playwright.async_api import ViewportSize

from tests.console.browser import DESK, PHONE, chromium, tab
from tests.console.console import running
from tests.console.test_topics_and_groups import rows
from tests.console.traffic import Traffic

pytestmark = pytest.mark.timeout(300)
GROUPS = ASKED_MAX + 5
LAST = f"group-{GROUPS - 1:03d}"


async def make_groups(traffic: Traffic) -> None:
    """The last has two dead letters."""
    for number in range(GROUPS):
        group = consumer_pb2.Group(name=f"group-{number:03d}")
        await traffic.call("CreateGroup", consumer_pb2.CreateGroupRequest(group=group))
    await traffic.create_topic("orders")
    await traffic.kill(LAST, "orders", 2, "ValueError")


async def look(address: str, windows: list[ViewportSize]) -> None:
    async with chromium() as desk:
        for window in windows:
            async with tab(desk, window) as opened:
                for path in ("/", "/dead-letters", "/groups"):
                    await opened.goto(address + path)
                    assert await opened.violations() == []
                    assert await opened.wider_than_its_window() <= 0


@pytest.mark.parametrize(
    "windows", [[], pytest.param([DESK, PHONE], marks=pytest.mark.proof)], ids=["pages", "browser"]
)
async def test_dead_letters_of_many_groups_are_paged_and_counted(tmp_path: Path, windows: list[ViewportSize]) -> None:
    async with Cluster(tmp_path, within=True) as cluster, Traffic(cluster.address) as traffic:
        await make_groups(traffic)
        async with running(cluster.address) as browser:
            pages = [(await browser.get(f"/dead-letters?page={page}")).text for page in (1, 2, 3)]
            listed = [row for page in pages for row in rows(page)]
            assert len(listed) == GROUPS
            assert [row for row in listed if not row.endswith(" 0 0")] == [f"{LAST} 2 0"]
            told = f"read for the {ROWS_MAX} groups of this page only, not for all {GROUPS}"
            assert told in pages[0]
            found = (await browser.get("/dead-letters?q=20")).text
            assert "not for all" not in found
            assert rows(found)[0] == f"{LAST} 2 0"
            groups = (await browser.get("/groups?sort=-dead&page=3")).text
            assert any(row.startswith(f"{LAST} 0 0 0 2 ") for row in rows(groups))
            assert told.replace(str(ROWS_MAX), str(GROUPS - 2 * ROWS_MAX)) in groups
            start = (await browser.get("/")).text
            assert re.search(rf"Groups counted so far: \d+ of {GROUPS}\.</p>", start)
            address = str(browser.client.base_url).rstrip("/")
            # Counted by the console's own looks, it is named on the first page, too.
            while 'id="fullest"' not in (first := (await browser.get("/dead-letters")).text):
                await browser.console._app.state.watch.groups.look("")
            assert re.search(rf'id="fullest">.*>{LAST}</a> 2\.</p>', first)
            if windows:
                await look(address, windows)
        gateway = Gateway(Settings(server=cluster.address))
        try:
            letters = GroupWatch(gateway, 10.0)
            looks = [await letters.look("") for _ in range(3)]
            assert [(look.sums.dead_letters, *look[1:]) for look in looks] == [
                (0, LOOKED_MAX, GROUPS, 0),
                (0, 2 * LOOKED_MAX, GROUPS, 0),
                (2, GROUPS, GROUPS, 0),
            ]
            # One more dead letter of a counted group, and one of a new group: both are new.
            await traffic.kill(LAST, "orders", 1, "ValueError")
            await traffic.kill("group-made", "orders", 1, "ValueError")
            looks = [await letters.look("") for _ in range(3)]
            assert (looks[-1].sums.dead_letters, *looks[-1][1:3]) == (4, GROUPS + 1, GROUPS + 1)
            assert sum(look.came for look in looks) == 2
        finally:
            await gateway.close()
