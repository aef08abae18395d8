"""The past beyond the console's own memory: a real Prometheus that scrapes a cluster, and answers of others."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from duetime.v1 import gateway_pb2
from duetime_console.overview import prometheus
from duetime_console.overview.history import MINUTE_MS, SECOND_MS, ClusterHistory
from duetime_console.overview.picture import STEPS_MAX, add_older, paint
from duetime_console.overview.prometheus import QUERIES, PastCounts, Prometheus
from duetime_console.overview.samples import DEAD, LATE, RESTORED
from duetime_console.settings import Settings
from duetime_core.clock import SystemClock, turn
from duetime_core.errors import StartupError
from duetime_core.testing import Cluster, FakeClock

from bench.processes import Processes
from tests.console.browser import chromium, tab
from tests.console.console import Browser, running
from tests.console.prometheus import scraping
from tests.console.test_now import picture
from tests.console.traffic import Traffic
from tests.deploy.test_observability import unknown

NOW = 1_800_000_000_000
DAY_MS = 86_400_000
DEADLINE_S = 60.0
COUNT, DEAD_COUNT, LATE_COUNT = 40, 3, 5
LEVEL = 2
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


async def until(browser: Browser, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """A picture of 60 days around now. Its steps are of hours, so that none ends while messages come."""
    give_up = asyncio.get_running_loop().time() + DEADLINE_S
    while True:
        now_ms = time.time_ns() // 1_000_000
        found = await picture(browser, now_ms - 30 * DAY_MS, now_ms + 30 * DAY_MS)
        if wanted(found):
            return found
        assert asyncio.get_running_loop().time() < give_up, found["past"]


def total(found: dict[str, Any], field: str) -> int:
    return sum(one or 0 for one in found["past"][field])


@pytest.mark.proof
async def test_past_before_the_console_is_that_of_prometheus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "KEPT_MS", 0)
    folder = tmp_path / "prometheus"
    folder.mkdir()
    with Processes(tmp_path / "cluster", {"DUETIME_LOG_LEVEL": "WARNING"}) as cluster:
        ports = {name: one["metrics_port"] for name, one in cluster.serving["processes"].items()}
        async with scraping(folder, ports) as url, Traffic(cluster.address) as traffic:
            # The counters have been read, and grow from then on.
            asking = Prometheus(url, 'cluster="tests"', SystemClock())
            day_ms = time.time_ns() // 1_000_000 // DAY_MS * DAY_MS
            older = PastCounts()
            while not (older.counts and all(older.counts.values())):
                older = await asking.between(day_ms, DAY_MS, 1)
            await traffic.create_topic("orders")
            await traffic.kill("billing", "orders", DEAD_COUNT, "PaymentRefused")
            await traffic.send("orders", COUNT, delay="1s")
            await traffic.call("PauseLane", gateway_pb2.PauseLaneRequest(shard=0, level=LEVEL))
            await traffic.send("orders", LATE_COUNT, delay="5s")
            while not await _restored(traffic):
                pass
            # This console has seen nothing of it.
            async with running(cluster.address, prometheus_url=url, prometheus_labels='cluster="tests"') as browser:
                found = await until(browser, lambda found: total(found, LATE) == LATE_COUNT)
                assert found["past_fault"] == ""
                # Prometheus extrapolates between its scrapes.
                assert COUNT <= total(found, RESTORED) <= COUNT * 1.2
                assert DEAD_COUNT <= total(found, DEAD) <= DEAD_COUNT + 1
                metrics = (await browser.get("/metrics")).text
                assert "duetime_console_pasts_failed 0.0" in metrics
            for others in ({"prometheus_url": url, "prometheus_labels": 'cluster="other"'}, {}):
                async with running(cluster.address, **others) as browser:
                    found = await until(browser, lambda _: True)
                    assert (total(found, RESTORED), found["past_fault"]) == (0, "")


async def _restored(traffic: Traffic) -> bool:
    """Whether all are restored that are to be, and the others are due."""
    lanes = (await traffic.call("ListLanes", gateway_pb2.ListLanesRequest())).lanes
    by_level = {lane.level: lane for lane in lanes}
    return by_level[1].restored_count == COUNT and by_level[LEVEL].due_count == LATE_COUNT


def test_metrics_that_are_asked_for_exist() -> None:
    for query in QUERIES.values():
        assert unknown(query % {"labels": "", "step": "60000ms"}) == set()


# --- answers that are none ---


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[str]:
    """The URL of a server that reads a request and answers so."""

    serving: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            # Threads still query after the first has failed: they end while the server still runs.
            await asyncio.get_running_loop().shutdown_default_executor()
    finally:
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        # A transport that is closed is done with in the loop's next turn.
        await turn()


def saying(body: bytes, status: str = "200 OK", more: str = "") -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status}\r\n{more}content-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()

    return answer


async def silent(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n[")
    while True:
        writer.write(b" " * 65_536)
        await writer.drain()


async def dripping(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n[")
    ticking = asyncio.get_running_loop()
    while True:
        writer.write(b" ")
        await writer.drain()
        tick: asyncio.Future[None] = ticking.create_future()
        ticking.call_later(0.05, tick.set_result, None)
        await tick


REFUSING = saying(json.dumps({"status": "error", "error": "query <b>needs</b> a label"}).encode(), "422 Unprocessable")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (silent, "no answer from Prometheus within 0.5 s"),
        (dripping, "no answer from Prometheus within 0.5 s"),
        (endless, "Prometheus's answer exceeds 1,048,576 bytes"),
        (saying(b"<html>"), "the server is not Prometheus: its answer is not JSON"),
        (saying(b"[" * 100_000), "the server is not Prometheus: its answer is not JSON"),
        (
            saying(b'{"data": {"result": [{"values": [[1]]}]}}'),
            "the server is not Prometheus: its answer has no matrix",
        ),
        (saying(b"[]"), "the server is not Prometheus: its answer has no matrix"),
        (REFUSING, "Prometheus answers 422: query <b>needs</b> a label"),
        (saying(b"", "502 Bad Gateway"), "Prometheus answers 502: Bad Gateway"),
        (saying(b"", "302 Found", "location: http://127.0.0.1:1/\r\n"), "Prometheus answers 302: Found"),
        (saying(b"", "none"), "Prometheus does not answer: "),
    ],
    ids=["silent", "drip", "endless", "html", "deep", "short", "list", "refused", "bare", "redirect", "no http"],
)
async def test_prometheus_errors_are_explained(answer: Answer, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "ASK_S_MAX", 0.5 if answer in (silent, dripping) else 60.0)
    async with answering(answer) as url:
        found = await Prometheus(url, "", SystemClock()).between(NOW, MINUTE_MS, 10)
    assert found.counts == {}
    assert found.fault.startswith(words)


async def test_picture_is_shown_during_an_outage_of_prometheus() -> None:
    async with (
        Cluster(within=True, clock=SystemClock()) as cluster,
        running(cluster.address, prometheus_url="http://127.0.0.1:1") as browser,
        chromium() as desk,
        tab(desk) as opened,
    ):
        async with Traffic(cluster.address) as traffic:
            await traffic.send("orders", 4, delay="20m")
        now_ms = time.time_ns() // 1_000_000
        found = await picture(browser, now_ms - 2 * DAY_MS, now_ms + DAY_MS)
        assert found["past_fault"] == "Prometheus does not answer: connection refused"
        assert sum(sum(row["counts"]) for row in found["topics"]) == 4
        # The console has the past by second itself.
        assert (await picture(browser, now_ms - 60_000, now_ms + 60_000))["past_fault"] == ""
        await opened.goto(f"{str(browser.client.base_url).rstrip('/')}/?span=172800000")
        said = opened.page.locator("#picture .state")
        await said.filter(has_text="older past is missing: Prometheus does not answer").wait_for()
        await opened.page.locator("canvas").first.wait_for()
        assert await opened.page.locator("canvas").count() == 1


async def test_several_viewers_share_one_prometheus_query() -> None:
    asked = []

    async def count(writer: asyncio.StreamWriter) -> None:
        asked.append(1)
        await saying(b'{"data": {"result": [{"values": [[1800000060, "2.6"], [1800000120, "NaN"]]}]}}')(writer)

    clock = FakeClock()
    async with answering(count) as url:
        asking = Prometheus(url + "/", "", clock)
        for _ in range(3):
            found = await asking.between(NOW, MINUTE_MS, 10_000)
            assert found.counts == {field: {NOW: 3} for field in QUERIES}
        assert len(asked) == len(QUERIES)
        clock.move(prometheus.KEPT_MS)
        await asking.between(NOW, MINUTE_MS, 10_000)
        assert (len(asked), asking.ask_count) == (2 * len(QUERIES), 2)


async def test_no_more_points_are_asked_than_a_picture_has() -> None:
    lines: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append(await reader.readuntil(b"\r\n"))
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await Prometheus(url, "", SystemClock()).between(NOW, MINUTE_MS, 10_000)
        # Threads still query after the first has failed: they end while the server still runs.
        await asyncio.get_running_loop().shutdown_default_executor()
        await turn()
    found = re.search(r"start=([\d.]+)&end=([\d.]+)&step=([\d.]+)", lines[0].decode())
    assert found
    start_s, end_s, step_s = map(float, found.groups())
    assert (end_s - start_s) / step_s + 1 == STEPS_MAX + 1


# --- pure ---


def test_step_that_both_know_has_the_higher_count() -> None:
    history = ClusterHistory(hours=1)
    history.add(NOW, {RESTORED: 4}, late=1)
    made = paint(
        [], history.between(0, NOW + MINUTE_MS, MINUTE_MS), NOW - 2 * MINUTE_MS, NOW + MINUTE_MS, NOW, MINUTE_MS
    )
    add_older(made, {RESTORED: {NOW - MINUTE_MS: 7, NOW: 3, NOW + DAY_MS: 9}, LATE: {NOW: 2}})
    assert made.past[RESTORED] == [None, 7, 4]
    assert made.past[LATE] == [None, None, 2]


def test_history_says_since_when_it_knows() -> None:
    history = ClusterHistory(hours=1)
    assert history.known_from_ms(NOW, MINUTE_MS) == NOW
    history.add(NOW, {}, late=0)
    assert history.known_from_ms(NOW + 5 * MINUTE_MS, MINUTE_MS) == NOW
    assert history.known_from_ms(NOW + DAY_MS, MINUTE_MS) == NOW + DAY_MS - 60 * MINUTE_MS
    assert history.known_from_ms(NOW + DAY_MS, SECOND_MS) == NOW + DAY_MS - 10 * MINUTE_MS


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("prometheus_url", "prometheus:9090"),
        ("prometheus_url", "http://user:secret@prometheus:9090"),
        ("prometheus_url", "http://prometheus:9090?x=1"),
        ("prometheus_labels", 'cluster="a"} or vector(1) #'),
        ("prometheus_labels", 'cluster="a",'),
        ("prometheus_labels", 'cluster=~".*"'),
    ],
)
def test_invalid_settings_are_rejected(setting: str, value: str) -> None:
    with pytest.raises(StartupError, match=f"DUETIME_CONSOLE_{setting.upper()}"):
        Settings.read(**{setting: value})


def test_labels_are_those_of_a_query() -> None:
    given = 'namespace="duetime",cluster="eu-1 {a}"'
    assert Settings.read(prometheus_labels=given).prometheus_labels == given
