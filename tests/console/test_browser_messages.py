"""Messages and transactions in a real browser: found, cancelled, given another time, sent now, decided."""

import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo

import pytest
from duetime.v1 import gateway_pb2, schedules_pb2, transactions_pb2
from playwright.async_api import Browser as Chromium
from playwright.async_api import expect

from tests.console.browser import tab
from tests.console.conftest import Shown
from tests.console.traffic import ORDERS, REMINDERS

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


async def found(shown: Shown, message_id: str) -> Any:
    return await shown.traffic.call("GetMessage", gateway_pb2.GetMessageRequest(id=message_id))


async def test_a_message_is_found_by_its_key_and_cancelled(shown: Shown, desk: Chromium) -> None:
    await shown.traffic.send_one("found-here", b"x", id="to-cancel", keys=["find-me"], delay="2h")
    async with tab(desk) as opened:
        page = opened.page
        await opened.goto(f"{shown.address}/messages")
        await page.get_by_label("Topic").fill("found-here")
        await page.get_by_role("textbox", name="Key", exact=True).fill("find-me")
        await page.get_by_role("button", name="Find").click()
        await page.get_by_role("link", name="to-cancel").click()
        await page.get_by_role("button", name="Cancel").click()
        # Without a handler the browser answers no to the question.
        assert (await found(shown, "to-cancel")).state == gateway_pb2.MESSAGE_STATE_PENDING
        page.once("dialog", lambda dialog: dialog.accept())
        await page.get_by_role("button", name="Cancel").click()
        await expect(page.get_by_text("cancelled", exact=True).first).to_be_visible()
        assert await opened.violations() == []
    assert (await found(shown, "to-cancel")).state == gateway_pb2.MESSAGE_STATE_CANCELLED


async def test_a_pending_message_is_given_another_time(shown: Shown, desk: Chromium) -> None:
    await shown.traffic.send_one("moved-here", b"x", id="to-move", delay="2h")
    before = (await found(shown, "to-move")).message.due_at_ms
    async with tab(desk) as opened:
        page = opened.page
        await opened.goto(f"{shown.address}/messages/to-move?topic=moved-here")
        await page.get_by_text("Change the due time").click()
        await page.get_by_label("Delay from now").fill("3d")
        await page.get_by_role("button", name="Reschedule").click()
        await expect(page.get_by_role("status")).to_be_visible()
    assert (await found(shown, "to-move")).message.due_at_ms - before == (72 - 2) * 3_600_000


async def test_a_pending_message_is_sent_now(shown: Shown, desk: Chromium) -> None:
    await shown.traffic.send_one("sent-here", b"x", id="to-send", delay="2h")
    async with tab(desk) as opened:
        await opened.goto(f"{shown.address}/messages/to-send?topic=sent-here")
        opened.page.once("dialog", lambda dialog: dialog.accept())
        await opened.page.get_by_role("button", name="Send now").click()
        await expect(opened.page.get_by_role("status")).to_be_visible()
    # It is due a moment later, and the clock stands.
    await shown.cluster.advance("1s")
    assert (await found(shown, "to-send")).state == gateway_pb2.MESSAGE_STATE_STORED


async def test_a_script_in_the_body_of_a_pending_message_is_text(shown: Shown, desk: Chromium) -> None:
    async with tab(desk) as opened:
        for path in (f"/messages/with-a-script?topic={REMINDERS}", f"/messages?topic={REMINDERS}&text=script"):
            await opened.goto(shown.address + path)
            assert "hacked" not in await opened.page.title()
            await expect(opened.page.locator("main")).to_contain_text("<script>document.title")
            assert await opened.page.locator("main img, main script").count() == 0


async def test_a_transaction_is_decided(shown: Shown, desk: Chromium) -> None:
    (transaction,) = await shown.traffic.prepare("deciding", ORDERS, 1)
    async with tab(desk) as opened:
        page = opened.page
        await opened.goto(f"{shown.address}/transactions?group=deciding")
        await page.locator("tbody a").first.click()
        assert await opened.violations() == []
        page.once("dialog", lambda dialog: dialog.accept())
        await page.get_by_role("button", name="Roll").click()
        await expect(page.locator("main")).to_contain_text("rolled back")
    told = await shown.traffic.call("GetTransaction", transactions_pb2.GetTransactionRequest(id=transaction))
    assert told.transaction.state == transactions_pb2.TRANSACTION_STATE_ROLLED_BACK


async def test_the_picture_of_the_future_is_drawn(shown: Shown, desk: Chromium) -> None:
    async with tab(desk) as opened:
        await opened.goto(f"{shown.address}/")
        await expect(opened.page.locator("canvas").first).to_be_visible()


async def test_bars_open_the_messages_of_their_minute(shown: Shown, desk: Chromium) -> None:
    minute_ms = 60_000
    due_ms = (shown.cluster.clock.now_ms() // minute_ms + 30) * minute_ms + minute_ms // 2
    for name, later_ms in (("in-the-bar", 0), ("beside-it", 5 * minute_ms)):
        at = datetime.fromtimestamp((due_ms + later_ms) / 1000, UTC)
        await shown.traffic.send_one("bars", b"x", id=name, deliver_at=at)
    async with tab(desk) as opened:
        page = opened.page
        address = f"{shown.address}/?span={120 * minute_ms}&topic=bars"
        await opened.goto(address)
        plot = page.locator("#picture .u-over")
        await expect(plot).to_be_visible()
        # As the page has it: the range follows the clock of the server, with a fifth of it before now.
        now_ms = await page.evaluate("Date.now() + Number(document.documentElement.dataset.skew)")
        box = await plot.bounding_box()
        assert box is not None
        share = 0.2 + (due_ms - now_ms) / (120 * minute_ms)
        await plot.click(position={"x": box["width"] * share, "y": box["height"] - 4})
        await page.wait_for_url("**/messages?*")
        await expect(page.get_by_role("link", name="in-the-bar")).to_be_visible()
        await expect(page.get_by_role("link", name="beside-it")).to_have_count(0)
        await opened.goto(address)
        await page.locator("#as-table summary").click()
        await page.locator("#as-table tbody a").nth(1).click()
        await expect(page.get_by_role("link", name="beside-it")).to_be_visible()
        await expect(page.get_by_role("link", name="in-the-bar")).to_have_count(0)


def instant_of(milliseconds: int) -> str:
    """The instant as an address has it."""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"


async def test_a_due_range_is_read_in_the_readers_zone_and_shared_exactly(shown: Shown, desk: Chromium) -> None:
    """The same address shows the same messages elsewhere, in the time of there, and after it was sent once more."""
    now_ms = shown.cluster.clock.now_ms()
    for name, delay in (("in-an-hour", "1h"), ("in-ten-hours", "10h")):
        await shown.traffic.send_one("ranges", b"x", id=name, delay=delay)
    from_ms = (now_ms + 5 * 3_600_000) // 1000 * 1000
    in_tokyo = f"{datetime.fromtimestamp(from_ms / 1000, ZoneInfo('Asia/Tokyo')):%Y-%m-%dT%H:%M:%S}"
    in_lima = f"{datetime.fromtimestamp(from_ms / 1000, ZoneInfo('America/Lima')):%Y-%m-%dT%H:%M:%S}"
    async with tab(desk, timezone_id="Asia/Tokyo") as opened:
        page = opened.page
        await opened.goto(f"{shown.address}/messages?topic=ranges")
        field = page.get_by_label("Due from (Asia/Tokyo)")
        await field.fill(in_tokyo)
        assert await field.get_attribute("title") == instant_of(from_ms)
        await page.get_by_role("button", name="Find").click()
        await expect(page.get_by_role("link", name="in-ten-hours")).to_be_visible()
        await expect(page.get_by_role("link", name="in-an-hour")).to_have_count(0)
        address = page.url
        assert parse_qs(urlsplit(address).query)["from"] == [instant_of(from_ms)]
        assert await field.input_value() == in_tokyo
        assert await opened.violations() == []
        await page.get_by_role("link", name="Cancel all matches…").click()
        time = page.locator("dd time")
        assert await time.get_attribute("title") == instant_of(from_ms)
    async with tab(desk, timezone_id="America/Lima") as opened:
        page = opened.page
        await opened.goto(address)
        field = page.get_by_label("Due from (America/Lima)")
        assert await field.input_value() == in_lima
        assert await field.get_attribute("title") == instant_of(from_ms)
        await page.get_by_role("button", name="Find").click()
        await expect(page.get_by_role("link", name="in-ten-hours")).to_be_visible()
        assert parse_qs(urlsplit(page.url).query)["from"] == [instant_of(from_ms)]
    async with tab(desk, timezone_id="America/Lima", java_script_enabled=False) as opened:
        page = opened.page
        await opened.goto(address)
        field = page.get_by_label("Due from (UTC)")
        assert await field.input_value() == instant_of(from_ms)[:19]
        await page.get_by_role("button", name="Find").click()
        await expect(page.get_by_role("link", name="in-ten-hours")).to_be_visible()
        await expect(page.get_by_role("link", name="in-an-hour")).to_have_count(0)


async def test_an_instant_in_an_hour_that_comes_twice_stays(shown: Shown, desk: Chromium) -> None:
    """In Berlin it was 2:30 at both, and with milliseconds."""
    async with tab(desk, timezone_id="Europe/Berlin") as opened:
        for instant in ("2026-10-25T00:30:00.000Z", "2026-10-25T01:30:00.007Z"):
            await opened.goto(f"{shown.address}/messages?topic=ranges&from={instant}")
            field = opened.page.get_by_label("Due from (Europe/Berlin)")
            assert (await field.input_value()).startswith("2026-10-25T02:30")
            await opened.page.get_by_role("button", name="Find").click()
            await expect(opened.page).to_have_url(re.compile("from=" + instant.replace(":", "%3A")))


@pytest.mark.parametrize(("script", "zone"), [(True, "Asia/Tokyo"), (False, "UTC")])
async def test_times_of_a_reschedule_and_of_a_send_are_the_readers(
    shown: Shown, desk: Chromium, script: bool, zone: str
) -> None:
    """Without script they are UTC, as their labels say."""
    topic = f"zone-{script}".lower()
    await shown.traffic.send_one(topic, b"x", id=f"moved-in-{topic}", delay="2h")
    due_ms = (shown.cluster.clock.now_ms() + 86_400_000) // 1000 * 1000
    typed = f"{datetime.fromtimestamp(due_ms / 1000, ZoneInfo(zone)):%Y-%m-%dT%H:%M:%S}"
    async with tab(desk, timezone_id="Asia/Tokyo", java_script_enabled=script) as opened:
        page = opened.page
        await opened.goto(f"{shown.address}/messages/moved-in-{topic}?topic={topic}")
        await page.get_by_text("Change the due time").click()
        await page.get_by_label(f"Or at ({zone})").fill(typed)
        await page.get_by_role("button", name="Reschedule").click()
        await expect(page.get_by_role("status")).to_be_visible()
        await opened.goto(f"{shown.address}/send?topic={topic}")
        await page.get_by_label("at a time").check()
        await page.get_by_label(f"Time ({zone})").fill(typed)
        await page.get_by_text("More", exact=True).click()
        await page.get_by_label("Id", exact=True).fill(f"sent-in-{topic}")
        await page.get_by_role("button", name="Send", exact=True).click()
        await expect(page.get_by_role("status")).to_contain_text("The message is stored")
    for name in (f"moved-in-{topic}", f"sent-in-{topic}"):
        assert (await found(shown, name)).message.due_at_ms == due_ms


async def test_forms_show_the_applicable_fields(shown: Shown, desk: Chromium) -> None:
    types = gateway_pb2.CreateTopicRequest(
        name="in-order", queue_count=4, message_type=gateway_pb2.TOPIC_TYPE_FIFO, max_delay_ms=3_600_000
    )
    await shown.traffic.call("CreateTopic", types)
    async with tab(desk, locale="de-DE") as opened:
        page = opened.page
        await opened.goto(f"{shown.address}/send")
        delay, level = page.get_by_label("Delay", exact=True), page.get_by_label("Level", exact=True)
        await expect(delay).to_be_hidden()
        await page.get_by_label("after a delay").check()
        await expect(delay).to_be_visible()
        await expect(level).to_be_hidden()
        await page.get_by_text("More", exact=True).click()
        queue, key = page.get_by_label("Queue", exact=True), page.get_by_label("Sharding key")
        await expect(queue).to_be_visible()
        await page.get_by_label("Topic", exact=True).fill("in-order")
        await expect(page.get_by_text("For fifo messages. Longest delay: 1 h.")).to_be_visible()
        await expect(queue).to_be_hidden()
        await expect(key).to_be_visible()
        factor, latest = page.get_by_label("Factor"), page.get_by_label("Latest due time")
        await expect(factor).to_be_hidden()
        await page.get_by_label("exponential delays").check()
        await expect(factor).to_be_visible()
        await expect(latest).to_be_hidden()
        await page.get_by_label("Replace the pending message").check()
        await expect(latest).to_be_visible()
        assert await opened.violations() == []
        # A field with a fault is shown, and numbers are the reader's.
        await opened.goto(f"{shown.address}/messages?where=any&from=yesterday")
        await expect(page.get_by_label("Due from")).to_be_visible()
        await expect(page.get_by_label("Due before")).to_be_hidden()
        await opened.goto(f"{shown.address}/groups/new")
        await page.get_by_label("Starts with").select_option("time")
        await expect(page.get_by_label("Time (")).to_be_visible()


async def test_a_schedule_is_made_in_the_readers_zone_and_deleted_after_a_question(
    shown: Shown, desk: Chromium
) -> None:
    due_ms = (shown.cluster.clock.now_ms() + 86_400_000) // 1000 * 1000
    typed = f"{datetime.fromtimestamp(due_ms / 1000, ZoneInfo('Asia/Tokyo')):%Y-%m-%dT%H:%M:%S}"
    async with tab(desk, timezone_id="Asia/Tokyo", locale="en-GB") as opened:
        page = opened.page
        await opened.goto(f"{shown.address}/schedules/new?topic=planned-here")
        await page.get_by_label("Name", exact=True).fill("by-hand")
        await expect(page.get_by_label("Interval", exact=True)).to_be_hidden()
        await page.get_by_label("at listed times").check()
        await expect(page.get_by_label("Cron expression", exact=True)).to_be_hidden()
        await page.get_by_label("Time 2 (Asia/Tokyo)").fill(typed)
        await page.get_by_role("button", name="Preview").click()
        await expect(page.get_by_role("list", name="Next times")).to_contain_text(typed[11:])
        assert await page.get_by_label("Time 1 (Asia/Tokyo)").input_value() == typed
        assert await opened.violations() == []
        await page.get_by_role("button", name="Create schedule").click()
        await expect(page.get_by_role("status")).to_contain_text("The schedule is created")
        reference = schedules_pb2.GetScheduleRequest(topic="planned-here", name="by-hand")
        assert list((await shown.traffic.call("GetSchedule", reference)).at.at_ms) == [due_ms]
        await page.get_by_role("button", name="Delete").click()
        # Without a handler the browser answers no to the question.
        assert not (await shown.traffic.call("GetSchedule", reference)).paused
        page.once("dialog", lambda dialog: dialog.accept())
        await page.get_by_role("button", name="Delete").click()
        await expect(page.get_by_role("status")).to_contain_text("is deleted")
