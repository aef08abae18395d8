"""Schedules as the console shows and changes them; each test has its own topic."""

import html
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from duetime.v1 import consumer_pb2, gateway_pb2_grpc, message_pb2, schedules_pb2
from duetime_console.pages import schedules
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster
from duetime_core.testing.clock import START_MS

from tests.console.console import running
from tests.console.test_messages import SCRIPT, Desk

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR_MS = 3_600_000
TYPED = {"kind": "cron", "cron": "30 2 * * mon-fri", "zone": "Europe/Berlin", "missed": "one", "form": "text"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desk() -> AsyncIterator[Desk]:
    async with (
        Cluster(within=True) as cluster,
        running(cluster.address, cluster.clock) as browser,
        make_channel(cluster.address) as channel,
    ):
        yield Desk(cluster, gateway_pb2_grpc.GatewayStub(channel), browser)  # type: ignore[no-untyped-call]


async def put(desk: Desk, topic: str, name: str, every_ms: int = HOUR_MS, **fields: Any) -> schedules_pb2.Schedule:
    schedule = schedules_pb2.Schedule(name=name, message=message_pb2.Message(topic=topic, **fields))
    schedule.every.every_ms = every_ms
    return (await desk.stub.PutSchedule(schedules_pb2.PutScheduleRequest(schedule=schedule), timeout=60)).schedule


async def got(desk: Desk, topic: str, name: str) -> schedules_pb2.Schedule:
    wanted = schedules_pb2.GetScheduleRequest(topic=topic, name=name)
    return await desk.stub.GetSchedule(wanted, timeout=60)


async def saved(desk: Desk, path: str = "/schedules/new", act: str = "save", **fields: str) -> httpx2.Response:
    return await desk.browser.post(path, TYPED | {"act": act} | fields, page=path)


async def acted(desk: Desk, topic: str, name: str, what: str) -> str:
    """The page after a change."""
    page = f"/schedules/{topic}/{name}"
    answer = await desk.browser.post(page, {"act": what}, page=page)
    assert answer.status_code == 303, answer.text
    return await desk.text(answer.headers["location"])


def times_of(text: str) -> list[int]:
    """The planned times on a page, Unix ms."""
    found = re.search(r"<ol.*?</ol>", text, re.S)
    return [int(one) for one in re.findall(r'<li><time [^>]*data-ms="(\d+)"', found[0])] if found else []


async def test_schedules_are_listed_by_topic(desk: Desk) -> None:
    assert "Schedules are listed by topic" in await desk.text("/schedules")
    assert "There is no topic <q>none</q>" in await desk.text("/schedules?topic=none")
    await put(desk, "listed", "late", 2 * HOUR_MS)
    pending = (await put(desk, "listed", "early", HOUR_MS)).message_id
    await put(desk, "listed", "stopped")
    await acted(desk, "listed", "stopped", "pause")
    text = await desk.text("/schedules?topic=listed")
    assert "3 schedules, 1 of them paused" in text
    row = '<a href="/schedules?topic=listed">listed</a></td><td class="number">3</td><td class="number">1</td>'
    assert row in await desk.text("/schedules")
    assert re.findall(r'<a href="/schedules/listed/(\w+)"', text) == ["early", "late", "stopped"]
    assert "every 1h" in text
    assert f"/messages/{pending}?topic=listed" in text
    assert "/messages?topic=listed&amp;key=early&amp;where=any" in text
    assert text.count(">paused<") == 1
    assert 'href="/schedules?topic=listed">Schedules' in await desk.text("/topics/listed")
    assert "restart the list" in await desk.text("/schedules?topic=listed&page=*", 422)


async def test_list_of_schedules_continues_page_by_page(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "SHOWN_MAX", 2)
    for number in range(3):
        await put(desk, "pages", f"s{number}", HOUR_MS * (number + 1))
    first = await desk.text("/schedules?topic=pages")
    (link,) = re.findall(r'rel="next" href="([^"]+)"', first)
    second = await desk.text(html.unescape(link))
    assert re.findall(r">(s\d)</a>", first + second) == ["s0", "s1", "s2"]
    assert 'rel="next"' not in second


async def test_a_schedule_is_previewed_and_created_by_hand(desk: Desk) -> None:
    fields = {
        "topic": "made", "name": "report/daily", "body": "a\r\nb", "tags": "t", "properties": "p=v", "flag": "7",
        "missed": "all", "backoff": "exponential", "initial": "1s", "max": "1h", "max_attempts": "5",
    }  # fmt: skip
    answer = await saved(desk, act="preview", **fields)
    assert answer.status_code == 200, answer.text
    times = times_of(answer.text)
    assert len(times) == 5
    assert "There is no topic" in await desk.text("/schedules?topic=made")
    answer = await saved(desk, **fields)
    assert answer.headers["location"] == "/schedules/made/report%2Fdaily?told=created", answer.text
    text = await desk.text(answer.headers["location"])
    assert "The schedule is created." in text
    assert times_of(text) == times
    assert 'href="/schedules/made/report%2Fdaily"' in await desk.text("/schedules?topic=made")
    found = await got(desk, "made", "report/daily")
    assert (found.cron.expression, found.cron.zone) == ("30 2 * * mon-fri", "Europe/Berlin")
    assert (found.message.body, found.message.tags, found.message.flag) == (b"a\nb", "t", 7)
    assert (dict(found.message.properties), found.message.retry.max_attempts) == ({"p": "v"}, 5)
    assert found.missed == schedules_pb2.MISSED_POLICY_ALL
    again = await saved(desk, **fields | {"cron": "0 3 * * *"})
    assert again.status_code == 409
    assert 'id="name-note" role="alert"' in again.text


RULES: list[tuple[dict[str, str], list[int]]] = [
    ({"kind": "every", "every": "90s"}, [START_MS + 90_000 * number for number in range(1, 6)]),
    ({"kind": "every", "every": "1d", "start_at": "2023-11-14T00:00:00Z"}, [1_700_006_400_000]),
    ({"kind": "at", "at-1": "2023-11-16T00:00", "at-7": "2023-11-15T00:00"}, [1_700_006_400_000, 1_700_092_800_000]),
    ({"kind": "cron", "cron": "0 0 * * *", "zone": ""}, [1_700_006_400_000]),
]


@pytest.mark.parametrize(("rule", "times"), RULES)
async def test_preview_has_the_times_of_the_shard(desk: Desk, rule: dict[str, str], times: list[int]) -> None:
    topic = f"rules-{RULES.index((rule, times))}"
    preview = await saved(desk, act="preview", topic=topic, name="a", **rule)
    assert times_of(preview.text)[: len(times)] == times
    answer = await saved(desk, topic=topic, name="a", **rule)
    assert times_of(await desk.text(answer.headers["location"])) == times_of(preview.text)


async def test_a_schedule_is_changed_in_a_form_with_its_values(desk: Desk) -> None:
    policy = message_pb2.RetryPolicy(max_attempts=3)
    policy.intervals.delays_ms.extend((1_000, 600_000))
    await put(
        desk,
        "edited",
        "a",
        body=b"x\r\ny",
        tags="t",
        properties={"p": "a=b"},
        flag=7,
        retry=policy,
        expires_ms=5_400_000,
    )
    page = "/schedules/edit?topic=edited&name=a"
    fields = dict(re.findall(r'<input[^>]* name="([^"]+)" type="[^"]+" value="([^"]*)"', await desk.text(page)))
    areas = re.findall(r'<textarea id="([^"]+)".*?>\n(.*?)</textarea>', await desk.text(page), re.S)
    fields |= {name: html.unescape(text) for name, text in areas}
    assert (fields["every"], fields["intervals"], fields["body"]) == ("1h", "1s, 10m", "eA0KeQ==")
    fields = {name: text for name, text in fields.items() if name not in ("csrf", "act")}
    fields |= {"kind": "every", "form": "base64", "backoff": "intervals"}
    answer = await saved(desk, page, **fields)
    assert answer.headers["location"] == "/schedules/edited/a?told=unchanged", answer.text
    answer = await saved(desk, page, **fields | {"every": "2h"})
    assert answer.headers["location"] == "/schedules/edited/a?told=changed"
    found = await got(desk, "edited", "a")
    assert found.message.expires_ms == 5_400_000
    assert (found.version, found.every.every_ms, found.message.body) == (2, 2 * HOUR_MS, b"x\r\ny")
    await put(desk, "edited", "lines", properties={"p": "a\nb"})
    assert "line ends that this form would change" in await desk.text("/schedules/edit?topic=edited&name=lines")
    await desk.text("/schedules/edit?topic=edited&name=none", 404)


WRONG_FIELDS = [
    ({"topic": "a b"}, "topic"),
    ({"name": "a b"}, "name"),
    ({"cron": ""}, "cron"),
    ({"cron": "61 * * * *"}, "cron"),
    ({"zone": "Mars"}, "zone"),
    ({"kind": "every"}, "every"),
    ({"kind": "every", "every": "10ms"}, "every"),
    ({"kind": "every", "every": "1h", "start_at": "soon"}, "start_at"),
    ({"kind": "at"}, "at-0"),
    ({"kind": "at", "at-0": "2030-01-01T00:00", "at-1": "soon"}, "at-1"),
    ({"kind": "at", "at-0": "2020-01-01T00:00"}, "at-0"),
    ({"form": "json", "body": "{"}, "body"),
    ({"body": "x" * 262_145}, "body"),
    ({"properties": "size"}, "properties"),
    ({"properties": "TAGS=x"}, "properties"),
    ({"flag": "x"}, "flag"),
    ({"expires": "soon"}, "expires"),
    ({"backoff": "exponential", "initial": "1s", "max": "soon"}, "max"),
]


async def test_wrong_field_is_reported_at_its_place_and_no_input_is_lost(desk: Desk) -> None:
    for fields, field in WRONG_FIELDS:
        answer = await saved(desk, **{"topic": "wrong", "name": "a", "tags": SCRIPT} | fields)
        assert answer.status_code in (400, 422), (fields, answer.headers)
        assert f'id="{field}-note" role="alert"' in answer.text, fields
        assert "&lt;script&gt;" in answer.text
        assert "<script>alert" not in answer.text


async def test_a_schedule_is_paused_resumed_run_and_deleted(desk: Desk) -> None:
    await put(desk, "acts", "a", body=SCRIPT.encode())
    text = await acted(desk, "acts", "a", "pause")
    assert "The schedule is paused" in text
    assert "<script>alert" not in text
    assert times_of(text) == []
    assert "<td>paused</td>" in text
    text = await acted(desk, "acts", "a", "resume")
    assert times_of(text)[0] == START_MS + HOUR_MS
    text = await acted(desk, "acts", "a", "run")
    wanted = consumer_pb2.ReceiveRequest(group="billing", topic="acts")
    (ran,) = (await desk.stub.Receive(wanted, timeout=60)).messages
    assert f'href="/messages/{ran.message.id}?topic=acts"' in text
    assert sorted(re.findall(r"<td>(paused|pending|stored)</td>", text)) == ["pending", "stored"]
    await desk.stub.Ack(consumer_pb2.AckRequest(group="billing", receipts=[ran.receipt]), timeout=60)
    assert '<span class="badge good">done by billing</span>' in await desk.text("/schedules/acts/a")
    text = await acted(desk, "acts", "a", "delete")
    assert "Schedule <code>a</code> is deleted" in text
    assert "has no schedules" in text
    await desk.text("/schedules/acts/a", 404)
    assert (await desk.browser.post("/schedules/acts/a", {"act": "pause"}, page="/schedules")).status_code == 404


async def test_forms_of_schedules_need_their_proof(desk: Desk) -> None:
    await put(desk, "proofs", "a")
    for path in ("/schedules/new", "/schedules/edit", "/schedules/proofs/a"):
        answer = await desk.browser.client.post(path, data={"act": "delete"})
        assert answer.status_code == 403, path
    answer = await desk.browser.post("/schedules/proofs/a", {"act": "perhaps"}, page="/schedules/proofs/a")
    assert answer.status_code == 400
    assert not (await got(desk, "proofs", "a")).paused


async def test_read_only_console_offers_no_change_of_a_schedule(desk: Desk) -> None:
    await put(desk, "read", "a")
    async with running(desk.cluster.address, read_only=True) as browser:
        text = (await browser.get("/schedules/read/a")).text
        assert ">Pause<" not in text
        assert ">Delete<" not in text
        assert "New schedule" not in (await browser.get("/schedules?topic=read")).text
        assert "This console is read-only" in (await browser.get("/schedules/new")).text
        for path, fields in (("/schedules/read/a", {"act": "pause"}), ("/schedules/new", TYPED | {"act": "save"})):
            answer = await browser.post(path, fields, page="/schedules")
            assert answer.status_code == 403, answer.text
