"""Now and next on a running cluster: pending messages are in the picture, and browsers learn of changes."""

import time
from typing import Any

import pytest
from duetime import AsyncProducer, Message
from duetime_core.clock import SystemClock
from duetime_core.testing import Cluster

from tests.console.console import Browser, running

HOUR_MS, MINUTE_MS = 3_600_000, 60_000


async def send(address: str, *messages: Message) -> None:
    async with AsyncProducer(address) as producer:
        await producer.send_many(messages)


def total(picture: dict[str, Any]) -> float:
    return sum(sum(row["counts"]) for row in picture["topics"])


async def picture(browser: Browser, from_ms: int, before_ms: int, topic: str = "") -> dict[str, Any]:
    query = {"from": str(from_ms), "before": str(before_ms), "topic": topic}
    answer = await browser.get("/picture", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_pending_messages_are_in_the_picture_by_topic() -> None:
    async with Cluster(within=True, clock=SystemClock()) as cluster, running(cluster.address) as browser:
        now_ms = time.time_ns() // 1_000_000
        await send(
            cluster.address,
            Message("orders", b"a", delay="40m"),
            Message("orders", b"b", delay="40m"),
            Message("bills", b"c", delay="50m"),
            Message("bills", b"d", delay="30d"),
        )
        hour = await picture(browser, now_ms, now_ms + HOUR_MS)
        assert {row["topic"]: sum(row["counts"]) for row in hour["topics"]} == {"orders": 2, "bills": 1}
        assert total(await picture(browser, now_ms, now_ms + HOUR_MS, "bills")) == 1
        assert total(await picture(browser, now_ms, now_ms + 24 * 60 * HOUR_MS)) == 4
        # A second of it, message by message.
        due_ms = now_ms + 40 * MINUTE_MS
        near = await picture(browser, due_ms - 1_000, due_ms + 20_000)
        assert total(near) == 2
        assert near["step_ms"] == 100


async def test_page_shows_figures_and_keeps_its_state_in_the_address() -> None:
    async with Cluster(within=True, clock=SystemClock()) as cluster, running(cluster.address) as browser:
        await send(cluster.address, Message("orders", b"a", delay="40m"))
        # Between two looks figures are those of the first one.
        while "<dt>pending</dt><dd>1</dd>" not in (await browser.get("/")).text:
            pass
        text = (await browser.get("/?span=3600000&topic=orders&at=1800000000000")).text
        assert 'data-span="3600000"' in text
        assert 'data-topic="orders"' in text
        assert 'data-at="1800000000000"' in text


@pytest.mark.parametrize("query", ["", "from=5&before=1", "from=a&before=b", "from=0&before=9999999999999999999999"])
async def test_ranges_that_cannot_be_are_refused(query: str) -> None:
    async with Cluster(within=True, clock=SystemClock()) as cluster, running(cluster.address) as browser:
        answer = await browser.get(f"/picture?{query}", headers={"accept": "application/json"})
        assert answer.status_code == 400
        assert "milliseconds" in answer.json()["detail"]


async def test_browsers_learn_of_changes() -> None:
    async with (
        Cluster(within=True, clock=SystemClock()) as cluster,
        running(cluster.address, refresh_ms=100) as browser,
        browser.client.stream("GET", "/live") as stream,
    ):
        assert stream.headers["content-type"].startswith("text/event-stream")
        await send(cluster.address, Message("orders", b"a", delay="40m"))
        async for line in stream.aiter_lines():
            if "<dt>pending</dt><dd>1</dd>" in line:
                break


async def test_streams_end_when_the_console_stops() -> None:
    async with (
        Cluster(within=True, clock=SystemClock()) as cluster,
        running(cluster.address, drain_ms=60_000) as browser,
        browser.client.stream("GET", "/live") as stream,
    ):
        lines = stream.aiter_lines()
        assert await anext(lines) == "retry: 2000"
        browser.console.stop()
        async for _ in lines:
            pass
