"""The console's pages in a real browser: appearance, limits of a script in a message, keys, and work."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
import pytest_asyncio
from duetime.v1 import consumer_pb2, gateway_pb2, message_pb2, schedules_pb2, webhooks_pb2
from duetime_core.testing import Cluster
from playwright.async_api import Browser as Chromium
from playwright.async_api import expect

from tests.console.browser import DESK, PHONE, Tab, tab
from tests.console.conftest import Shown
from tests.console.console import running
from tests.console.traffic import BILLING, ORDERS, REMINDERS, Traffic
from tests.gateway.people import People

# One browser and one cluster serve all; a busy machine is no fault of a page.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

# A topic, and a group with waiting retries of it.
RETURNS = "returns"
PAGES = (
    "/",
    "/topics",
    f"/topics/{ORDERS}",
    f"/topics/{ORDERS}/delete",
    "/topics?deleted=gone",
    "/topics/new",
    "/groups",
    f"/groups/{BILLING}",
    "/groups/new",
    f"/groups/{RETURNS}",
    f"/groups/{RETURNS}/retries",
    f"/groups/{RETURNS}/retries?error=none",
    f"/groups/{RETURNS}/retries/retry-now",
    f"/groups/{RETURNS}/retries/discard?error=bank",
    f"/groups/{BILLING}/reset?topic={ORDERS}&to=earliest&at=&queue=&offset=",
    "/lanes",
    "/lanes/0/1000",
    "/shards",
    "/shards/0",
    "/dead-letters",
    f"/dead-letters?group={BILLING}",
    f"/dead-letters/redrive?group={BILLING}",
    f"/dead-letters/discard?group={BILLING}",
    "/topics?q=no-such-topic",
    "/messages",
    f"/messages?topic={REMINDERS}&text=script",
    f"/messages?topic={ORDERS}&key=order-1&where=any",
    "/messages?from=yesterday",
    "/messages/with-a-script",
    f"/cancel?topic={REMINDERS}&key=script",
    "/send",
    "/transactions",
    "/schedules",
    f"/schedules?topic={RETURNS}",
    f"/schedules/{RETURNS}/report",
    f"/schedules/{RETURNS}/paused",
    "/schedules/new",
    f"/schedules/edit?topic={RETURNS}&name=report",
    "/webhooks",
    "/webhooks/paid",
    "/webhooks/+new",
    "/reports",
    "/errors",
    "/runbooks",
    "/api/v1",
)
FAILED = ("/topics/no-such-topic", "/no-such-page")


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def retries(shown: Shown) -> None:
    await shown.traffic.create_topic(RETURNS)
    await shown.traffic.fail(RETURNS, RETURNS, "return-1", "return-2", delay_ms=3_600_000)


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def schedules(shown: Shown) -> None:
    rule = schedules_pb2.CronRule(expression="30 2 * * mon-fri", zone="Europe/Berlin")
    for name in ("report", "paused"):
        message = message_pb2.Message(topic=RETURNS, body=b'{"kind": "report"}', tags="daily")
        schedule = schedules_pb2.Schedule(name=name, message=message, cron=rule)
        await shown.traffic.call("PutSchedule", schedules_pb2.PutScheduleRequest(schedule=schedule))
    await shown.traffic.call("PauseSchedule", schedules_pb2.ScheduleRef(topic=RETURNS, name="paused"))


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def webhooks(shown: Shown) -> None:
    webhook = webhooks_pb2.Webhook(name="paid", topic=ORDERS, group="hook", url="https://shop.example/hook")
    await shown.traffic.call("CreateWebhook", webhooks_pb2.CreateWebhookRequest(webhook=webhook))
    await shown.traffic.call("TestWebhook", webhooks_pb2.WebhookRef(name="paid"))


async def faults_of(opened: Tab, address: str, paths: Sequence[str]) -> dict[str, Any]:
    """Violations found by axe, and the excess width over the window, by path."""
    found: dict[str, Any] = {}
    for path in paths:
        await opened.goto(address + path)
        wrong = await opened.violations()
        wider = await opened.wider_than_its_window()
        if wrong or wider > 0:
            found[path] = wrong or f"{wider} pixels too wide"
    return found


@pytest.mark.proof
@pytest.mark.parametrize("colors", ["light", "dark"])
async def test_pages_are_for_everybody(shown: Shown, desk: Chromium, colors: Any) -> None:
    """WCAG AA, by axe, in both themes."""
    async with tab(desk, DESK, color_scheme=colors) as opened:
        assert await faults_of(opened, shown.address, [*PAGES, *FAILED]) == {}
        dark = await opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 20, 25)"
        assert dark == (colors == "dark")


async def test_pages_fit_a_phone(shown: Shown, desk: Chromium) -> None:
    letters = await shown.traffic.call(
        "ListDeadLetters", consumer_pb2.ListDeadLettersRequest(filter=consumer_pb2.DeadLetterFilter(group=BILLING))
    )
    letter = f"/dead-letters/letters/{letters.letters[0].message.id}?group={BILLING}"
    async with tab(desk, PHONE, is_mobile=True, has_touch=True) as opened:
        assert await faults_of(opened, shown.address, [*PAGES, letter]) == {}
        menu = opened.page.get_by_role("button", name="Menu")
        await menu.click()
        await opened.page.get_by_role("navigation", name="Pages").get_by_role("link", name="Topics").click()
        await expect(opened.page.get_by_role("heading", name="Topics")).to_be_visible()


async def test_the_theme_that_was_chosen_stays(shown: Shown, desk: Chromium) -> None:
    async with tab(desk, DESK, color_scheme="light") as opened:
        await opened.goto(f"{shown.address}/topics")
        await opened.page.keyboard.press("t")
        await opened.goto(f"{shown.address}/groups")
        assert await opened.page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert await opened.violations() == []


async def test_keys_find_and_help(shown: Shown, desk: Chromium) -> None:
    async with tab(desk) as opened:
        await opened.goto(f"{shown.address}/topics")
        await opened.page.keyboard.press("/")
        find = opened.page.get_by_role("searchbox", name="Find topics")
        await expect(find).to_be_focused()
        await find.press_sequentially("remind")
        # A question mark in a field is a question mark.
        await find.press_sequentially("?")
        assert await find.input_value() == "remind?"
        await find.press("Backspace")
        await find.press("Enter")
        await expect(opened.page).to_have_url(re.compile(r"\?q=remind"))
        await expect(opened.page.get_by_role("link", name=REMINDERS, exact=True)).to_be_visible()
        await expect(opened.page.get_by_role("link", name=ORDERS, exact=True)).to_have_count(0)
        await opened.page.locator("main").click()
        await opened.page.keyboard.press("?")
        await expect(opened.page.get_by_role("dialog", name="Keys")).to_be_visible()
        assert await opened.violations() == []
        await opened.page.keyboard.press("Escape")
        await expect(opened.page.get_by_role("dialog", name="Keys")).to_be_hidden()


async def test_times_are_in_the_readers_zone_with_the_exact_one_on_hover(shown: Shown, desk: Chromium) -> None:
    async with tab(desk, DESK, timezone_id="Asia/Tokyo", locale="en-GB") as opened:
        await opened.goto(f"{shown.address}/topics")
        time = opened.page.locator("tbody time").last
        assert (await time.get_attribute("title") or "").endswith("Z")
        assert await time.inner_text() == "15/11/2023, 07:13:20"


async def test_lists_are_sorted_by_their_heads(shown: Shown, desk: Chromium) -> None:
    async with tab(desk) as opened:
        await opened.goto(f"{shown.address}/topics")
        await opened.page.get_by_role("columnheader", name="Pending").get_by_role("link").click()
        await expect(opened.page.get_by_role("columnheader", name="Pending")).to_have_attribute(
            "aria-sort", "descending"
        )
        await expect(opened.page.locator("tbody tr").first).to_contain_text(REMINDERS)


async def test_a_script_in_a_message_is_text(shown: Shown, desk: Chromium) -> None:
    """In a body, an error, a trace and a property of a dead letter."""
    script = "<script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">"
    await shown.traffic.create_topic("hostile")
    await shown.traffic.send_one("hostile", script.encode(), id="hostile-letter", properties={"note": script})
    received = await shown.traffic.receive("hostile", "hostile", 1)
    error = consumer_pb2.HandlerError(type=script[:200], message=script, trace=script)
    nack = consumer_pb2.Nack(receipt=received[0].receipt, reject=True, error=error)
    await shown.traffic.call("Nack", consumer_pb2.NackRequest(group="hostile", nacks=[nack]))
    async with tab(desk) as opened:
        for path in ("/dead-letters/letters/hostile-letter?group=hostile", "/dead-letters?group=hostile"):
            await opened.goto(shown.address + path)
            assert "hacked" not in await opened.page.title()
            await expect(opened.page.locator("main")).to_contain_text("<script>document.title='hacked'</script>")
            assert await opened.page.locator("main img, main script").count() == 0


async def test_dead_letters_are_redriven(shown: Shown, desk: Chromium) -> None:
    await shown.traffic.create_topic("of-browsing")
    await shown.traffic.kill("browsing", "of-browsing", 7, "PaymentRefused")
    await shown.traffic.kill("browsing", "of-browsing", 2, "TimeoutError", "nothing within 30 s")
    async with tab(desk) as opened:
        page = opened.page
        await opened.goto(f"{shown.address}/dead-letters")
        await page.get_by_role("link", name="browsing", exact=True).click()
        await page.get_by_role("link", name="PaymentRefused: order # is refused").click()
        await page.get_by_role("link", name="Redrive these…").click()
        await expect(page.locator("#found")).to_contain_text("7 dead letters would be returned to the group")
        await page.get_by_label("Max per second").fill("0")
        await page.get_by_role("button", name="Redrive 7 dead letters").click()
        # The progress part of the page reloads itself.
        await expect(page.get_by_role("status")).to_contain_text("Done")
        await expect(page.get_by_text("7 of 7")).to_be_visible()
        assert await opened.violations() == []
        await opened.goto(f"{shown.address}/dead-letters?group=browsing")
        await expect(page.get_by_text("2 in total")).to_be_visible()


async def test_a_job_that_runs_is_watched_and_stopped(shown: Shown, desk: Chromium) -> None:
    await shown.traffic.create_topic("of-stopping")
    await shown.traffic.kill("stopping", "of-stopping", 5, "PaymentRefused")
    async with tab(desk) as opened:
        page = opened.page
        await opened.goto(f"{shown.address}/dead-letters/redrive?group=stopping")
        await page.get_by_label("Max per second").fill("0.001")
        await page.get_by_role("button", name="Redrive 5 dead letters").click()
        await expect(page.get_by_text("1 of 5")).to_be_visible()
        assert await opened.violations() == []
        await page.get_by_role("button", name="Stop").click()
        await expect(page.get_by_role("status")).to_contain_text("Stopped")


async def test_a_lane_is_paused_and_resumed(shown: Shown, desk: Chromium) -> None:
    async with tab(desk) as opened:
        page = opened.page
        await opened.goto(f"{shown.address}/lanes/0/18")
        await page.get_by_role("button", name="Pause lane 18").click()
        await page.get_by_role("button", name="Resume lane 18").click()
        await expect(page.get_by_role("button", name="Pause lane 18")).to_be_visible()


async def test_forms_work_without_script(shown: Shown, desk: Chromium) -> None:
    async with tab(desk, DESK, java_script_enabled=False) as opened:
        page = opened.page
        await opened.goto(f"{shown.address}/topics/new")
        await page.get_by_label("Name").fill("without-script")
        await page.get_by_role("button", name="Create topic").click()
        await expect(page.get_by_role("heading", name="Topic without-script")).to_be_visible()
    made = await shown.traffic.call("DescribeTopic", gateway_pb2.DescribeTopicRequest(name="without-script"))
    assert made.topic.queue_count > 0


async def test_signed_in_user_is_refused_calls_without_a_right(desk: Chromium) -> None:
    async with (
        Cluster(within=True, gateway_settings={"auth": "required"}) as cluster,
        People(cluster.database_url) as people,
    ):
        admin = str(await people.add("ops", "admin"))
        reader = str(await people.add("reader", f"receive topic {ORDERS}"))
        async with Traffic(cluster.address, admin) as traffic:
            await traffic.create_topic(ORDERS)
        async with running(cluster.address) as browser, tab(desk) as opened:
            page, address = opened.page, str(browser.client.base_url).rstrip("/")
            await opened.goto(f"{address}/topics/{ORDERS}")
            await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
            assert await opened.violations() == []
            await page.get_by_label("Token").fill("no-such-token")
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.get_by_role("alert")).to_be_visible()
            await page.get_by_label("Token").fill(reader)
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.get_by_role("heading", name=f"Topic {ORDERS}")).to_be_visible()
            await opened.goto(f"{address}/lanes")
            await expect(page.get_by_role("alert")).to_contain_text("Permission denied")
            assert await opened.violations() == []
            await page.get_by_role("button", name="Sign out").click()
            await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
            # No script of the page reads the session's cookie.
            assert await page.evaluate("document.cookie") == ""
