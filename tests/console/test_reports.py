"""Reports as the console shows them: backlog, lateness and audit as Spark found them, the live counters beside them."""

import re
from typing import Any

import pytest
from duetime.v1 import gateway_pb2
from duetime_core.metadata import JobReportTable
from playwright.async_api import ViewportSize

from tests.console.browser import DESK, PHONE, chromium, tab
from tests.console.test_messages import Desk, desk
from tests.gateway.test_backlog import report, row
from tests.gateway.test_reports import AUDIT, LATENESS
from tests.gateway.test_reports import report as figures

__all__ = ["desk"]


async def lanes_of(desk: Desk) -> list[dict[str, Any]]:
    lanes = (await desk.stub.ListLanes(gateway_pb2.ListLanesRequest(), timeout=60)).lanes
    return [
        {"shard": 0, "level": each.level, "delay_ms": None, "watermark": each.watermark,
         "max_offset": each.max_offset, "pending_count": each.pending_count}
        for each in lanes
    ]  # fmt: skip


def tile(text: str, words: str) -> tuple[str, str]:
    """Text and mood of a tile."""
    (found,) = re.findall(rf"<dt>{words}</dt><dd(?: class=\"(\w+)\")?>(.*?)</dd>", text)
    return re.sub(r"<[^>]+>", "", found[1]), found[0]


async def test_page_says_how_to_make_reports_where_there_are_none(desk: Desk) -> None:
    text = await desk.text("/reports")
    assert text.count("No report yet") == 3
    for job in ("backlog", "lateness", "audit"):
        assert f"duetime spark {job}" in text
    assert "No lane has delivered" in text


async def test_newest_reports_stand_beside_the_live_counters(desk: Desk) -> None:
    await desk.send("due", delay_ms=1)
    await desk.cluster.advance("1ms")
    await desk.send("a", delay_level=3)
    lanes = await lanes_of(desk)
    reports = JobReportTable(desk.cluster.gateway.parts.database)
    await reports.put(report([row(3, "<b>orders", 3)], lanes))
    text = await desk.text("/reports")
    assert "&lt;b&gt;orders" in text
    assert (tile(text, "Pending then"), tile(text, "Pending now"), tile(text, "Drift")) == (
        ("3", ""),
        ("1", ""),
        ("-2", "bad"),
    )
    assert "By topic" in text
    assert re.search(r'href="/lanes/0/1000"', text)
    assert text.count("No report yet") == 2
    await reports.put(figures("lateness", {**LATENESS, "late_count": 1, "undated_count": 7}))
    text = await desk.text("/reports")
    assert (tile(text, "p99"), tile(text, "Later than 100 ms"), tile(text, "Early")) == (
        ("40 ms", ""),
        ("1", "warn"),
        ("0", "good"),
    )
    assert "7 were delivered by a broker" in text
    assert re.fullmatch(r"\d+\.\d ms", tile(text, "Durable late p99 now, of the latest lane")[0])
    assert "Damaged places skipped: 2" in text


async def test_audit_that_proves_nothing_is_an_alarm(desk: Desk) -> None:
    await desk.send("a", delay_level=3)
    lanes = [{**one, "counted": one["pending_count"]} for one in await lanes_of(desk)]
    reports = JobReportTable(desk.cluster.gateway.parts.database)
    await reports.put(figures("audit", {**AUDIT, "lanes": lanes, "transactions": {"accepted": 3, "open": 3}}))
    text = await desk.text("/reports")
    assert tile(text, "Every message has one end") == ("not proven", "bad")
    assert (tile(text, "Missing"), tile(text, "Drift"), tile(text, "Pending now")) == (
        ("1", "bad"),
        ("0", "good"),
        ("1", ""),
    )
    assert "Violations, missing: 1" in text
    assert "3 prepared, 3 open" in text
    await reports.put(figures("audit", {"is_proven": True, "accepted": 1}))
    text = await desk.text("/reports")
    assert tile(text, "Every message has one end") == ("proven", "good")
    assert "Violations" not in text


@pytest.mark.parametrize(
    ("window", "colors"),
    [(PHONE, "light"), *(pytest.param(DESK, colors, marks=pytest.mark.proof) for colors in ("light", "dark"))],
)
async def test_page_of_all_reports_is_fit_for_everybody(desk: Desk, window: ViewportSize, colors: Any) -> None:
    await desk.send("a", delay_level=3)
    reports = JobReportTable(desk.cluster.gateway.parts.database)
    for one in (
        report([row(3, "orders", 3)], await lanes_of(desk)),
        figures("lateness", LATENESS),
        figures("audit", AUDIT),
    ):
        await reports.put(one)
    address = str(desk.browser.client.base_url).rstrip("/")
    async with chromium() as browser, tab(browser, window, color_scheme=colors) as opened:
        assert await opened.goto(f"{address}/reports") == 200
        assert await opened.violations() == []
        assert await opened.wider_than_its_window() <= 0
