"""Pages of topics and groups, asked as a browser without script asks."""

import asyncio
import re

import pytest
from duetime.v1 import consumer_pb2, gateway_pb2
from duetime_console.pages.topics import is_system
from duetime_core.testing import Cluster

from tests.console.conftest import Shown
from tests.console.console import running
from tests.console.traffic import BILLING, ORDERS, REMINDERS, SHIPPING, Traffic
from tests.gateway.people import People

pytestmark = pytest.mark.asyncio(loop_scope="module")


def rows(text: str) -> list[str]:
    """Texts of the rows of all tables of a page."""
    found = re.findall(r"<tr>(.*?)</tr>", text, re.S)
    return [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in found if "<td" in row]


async def test_topics_show_pending_messages(shown: Shown) -> None:
    answer = await shown.browser.get("/topics?sort=-pending")
    assert answer.status_code == 200
    first, *_ = rows(answer.text)
    assert first.startswith(f"{REMINDERS} 4 40 ")
    with_system = (await shown.browser.get("/topics?system=1")).text
    assert {row.split()[0] for row in rows(answer.text)} == {
        name for row in rows(with_system) if not is_system(name := row.split()[0])
    }


async def test_a_list_without_a_hit_gives_advice(shown: Shown) -> None:
    for path in ("/topics", "/groups", "/lanes", "/shards", "/dead-letters"):
        answer = await shown.browser.get(f"{path}?q=no-such-thing")
        assert answer.status_code == 200
        assert "Show all" in answer.text


async def test_a_topic_shows_its_queues_and_its_groups(shown: Shown) -> None:
    found: list[str] = []
    async with asyncio.timeout(60):
        # The last delayed messages may arrive between two calls of the page.
        while not any(row.startswith(f"{SHIPPING} 27 ") for row in found):
            found = rows((await shown.browser.get(f"/topics/{ORDERS}")).text)
    assert f"{BILLING} 20 4 0 1" in found
    assert sum(int(row.split()[4]) for row in found if row[0].isdigit()) == 37
    assert (await shown.browser.get("/topics/no-such-topic")).status_code == 404
    assert (await shown.browser.get("/topics/%25RETRY%25billing")).status_code == 200


async def test_a_topic_is_made_by_a_form(shown: Shown) -> None:
    fields = {"name": "made-here", "queues": "3", "max_delay": "30d", "type": "fifo"}
    answer = await shown.browser.post("/topics", fields, page="/topics/new")
    assert (answer.status_code, answer.headers["location"]) == (303, "/topics/made-here")
    made = await shown.traffic.call("DescribeTopic", gateway_pb2.DescribeTopicRequest(name="made-here"))
    assert (made.topic.queue_count, made.topic.max_delay_ms) == (3, 30 * 86_400_000)
    assert made.topic.message_type == gateway_pb2.TOPIC_TYPE_FIFO
    again = await shown.browser.post("/topics", fields, page="/topics/new")
    assert again.status_code == 422
    assert "topic made-here exists" in again.text


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("name", "", "a topic needs a name"),
        ("queues", "many", "is not a whole number"),
        ("max_delay", "soon", "is not a length"),
        ("name", "<b>", "Nothing was changed."),
        ("queues", "4096", "Nothing was changed."),
    ],
)
async def test_invalid_topic_is_rejected_at_its_field(shown: Shown, field: str, value: str, told: str) -> None:
    fields = {"name": "wrong", "queues": "", "max_delay": "", "type": "any"} | {field: value}
    answer = await shown.browser.post("/topics", fields, page="/topics/new")
    assert answer.status_code in (400, 422)
    assert told in answer.text
    assert answer.text.count('aria-invalid="true"') == 1
    assert "<b>" not in answer.text


async def test_groups_show_lag_leases_and_dead_letters(shown: Shown) -> None:
    first, *_ = rows((await shown.browser.get("/groups?sort=-flight")).text)
    assert first.startswith(f"{BILLING} 20 4 0 17 ")
    page = await shown.browser.get(f"/groups/{BILLING}")
    assert "billing-worker-1" in page.text
    assert (await shown.browser.get("/groups/no-such-group")).status_code == 404


async def test_a_group_is_made_and_its_policy_is_changed(shown: Shown) -> None:
    fields = {"name": "ledger", "start": "time", "start_at": "2026-01-31T12:00", "ordered": "1", "backoff": "1s,5s"}
    answer = await shown.browser.post("/groups", fields, page="/groups/new")
    assert (answer.status_code, answer.headers["location"]) == (303, "/groups/ledger")
    again = await shown.browser.post("/groups", fields, page="/groups/new")
    assert (again.status_code, "group ledger exists" in again.text) == (422, True)
    assert "the message's policy, the handler's, then this one" in (await shown.browser.get("/groups/ledger")).text
    policy = {"backoff": "exponential:1s..10m", "max_attempts": "5"}
    answer = await shown.browser.post("/groups/ledger/policy", policy, page="/groups/ledger")
    assert answer.status_code == 303
    group = (await shown.traffic.call("DescribeGroup", consumer_pb2.DescribeGroupRequest(name="ledger"))).group
    assert (group.ordered, group.start_at_ms) == (True, 1_769_860_800_000)
    assert (group.retry.max_attempts, group.retry.exponential.max_ms) == (5, 600_000)
    for wrong in ({"backoff": "often"}, {"max_attempts": "x"}, {"max_attempts": "5000"}):
        answer = await shown.browser.post("/groups/ledger/policy", policy | wrong, page="/groups/ledger")
        assert answer.status_code == 422
        assert 'aria-invalid="true"' in answer.text
    answer = await shown.browser.post("/groups", {"name": "x", "start": "time", "start_at": "soon"}, page="/groups/new")
    assert "is not a time" in answer.text
    answer = await shown.browser.post("/groups", {"name": "a b", "start": "earliest"}, page="/groups/new")
    assert answer.status_code == 400
    assert 'value="a b" autocomplete="off" aria-invalid="true"' in answer.text


async def test_rate_of_a_group_is_changed(shown: Shown) -> None:
    await shown.browser.post("/groups", {"name": "limited", "start": "earliest"}, page="/groups/new")
    page = "/groups/limited"
    assert "No limit." in (await shown.browser.get(page)).text
    limits = [
        {"rate": "50/s", "per_key": "", "topic": ""},
        {"rate": "3000/m,burst=1", "per_key": "2", "topic": ORDERS},
    ]
    for fields in limits:
        answer = await shown.browser.post(f"{page}/limit", fields, page=page)
        assert (answer.status_code, answer.headers["location"]) == (303, page)
    text = (await shown.browser.get(page)).text
    assert "<dt>Each topic</dt><dd>50/s</dd>" in text
    assert f'<dt><a href="/topics/{ORDERS}">{ORDERS}</a></dt><dd>3000/m,burst=1, 2 per key</dd>' in text
    wrong = await shown.browser.post(f"{page}/limit", {"rate": "fast", "topic": ""}, page=page)
    assert (wrong.status_code, "is not a rate such as 50/s" in wrong.text) == (422, True)
    wrong = await shown.browser.post(f"{page}/limit", {"per_key": "many"}, page=page)
    assert (wrong.status_code, "is not a whole number" in wrong.text) == (422, True)
    unknown = await shown.browser.post(f"{page}/limit", {"rate": "1/s", "topic": "no-such-topic"}, page=page)
    assert unknown.status_code == 404
    for topic in ("", ORDERS):
        await shown.browser.post(f"{page}/limit", {"rate": "", "topic": topic}, page=page)
    assert "No limit." in (await shown.browser.get(page)).text
    declared = consumer_pb2.GroupLimit(topic=ORDERS, per_key=1)
    await shown.traffic.call(
        "DeclareGroupLimits", consumer_pb2.DeclareGroupLimitsRequest(name="limited", limits=[declared])
    )
    assert "<dd>1 per key, declared by its tasks</dd>" in (await shown.browser.get(page)).text


async def test_topic_is_paused_and_resumed(shown: Shown) -> None:
    page = f"/topics/{ORDERS}"
    for action, is_paused in (("pause", True), ("resume", False)):
        answer = await shown.browser.post(f"{page}/{action}", {}, page=page)
        assert (answer.status_code, answer.headers["location"]) == (303, page)
        assert ("Paused for all groups since" in (await shown.browser.get(page)).text) is is_paused
        assert ('<span class="note">paused</span>' in (await shown.browser.get("/topics")).text) is is_paused


async def test_reset_previews_its_effect_and_then_applies_it(shown: Shown) -> None:
    await shown.traffic.create_topic("read-again", queues=2)
    await shown.traffic.send("read-again", 10)
    await shown.traffic.ack("again", await shown.traffic.receive("again", "read-again", 10))
    where = {"topic": "read-again", "to": "earliest", "at": "", "queue": "", "offset": ""}
    page = "/groups/again/reset"
    preview = await shown.browser.get(page, params=where)
    assert "<strong>10</strong> messages would be redelivered, <strong>0</strong> would be skipped" in preview.text
    assert "<strong>0</strong> leases and <strong>0</strong> retries would end" in preview.text
    moved = [re.search(r"(\d+) are redelivered", row) for row in rows(preview.text)]
    assert sum(int(found[1]) for found in moved if found) == 10
    assert await lag(shown, "again") == 0
    done = await shown.browser.post(page, where, page=page)
    assert (done.status_code, done.headers["location"]) == (303, "/groups/again")
    assert await lag(shown, "again") == 10
    # One queue, to an offset.
    described = await shown.traffic.call("DescribeGroup", consumer_pb2.DescribeGroupRequest(name="again"))
    queue = next(str(one.queue) for one in described.queues if one.max_offset)
    where |= {"to": "offset", "queue": queue, "offset": "2"}
    assert "<strong>2</strong> would be skipped" in (await shown.browser.get(page, params=where)).text
    assert (await shown.browser.post(page, where, page=page)).status_code == 303
    assert await lag(shown, "again") == 8


async def lag(shown: Shown, group: str) -> int:
    described = await shown.traffic.call("DescribeGroup", consumer_pb2.DescribeGroupRequest(name=group))
    return sum(queue.lag for queue in described.queues)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"to": "offset", "offset": "1"}, "an offset needs a queue"),
        ({"to": "offset", "queue": "0", "offset": "x"}, "is not a whole number"),
        ({"to": "time", "at": "soon"}, "is not a time"),
        ({"to": ""}, "choose a target"),
        ({"to": "earliest", "queue": "77"}, "Nothing was changed."),
    ],
)
async def test_a_reset_that_can_not_be_changes_nothing(shown: Shown, wrong: dict[str, str], told: str) -> None:
    page = f"/groups/{SHIPPING}/reset"
    before = await lag(shown, SHIPPING)
    for answer in (
        await shown.browser.get(page, params={"topic": ORDERS, **wrong}),
        await shown.browser.post(page, {"topic": ORDERS, **wrong}, page=page),
    ):
        assert answer.status_code >= 400
        assert told in answer.text
    assert await lag(shown, SHIPPING) == before


async def test_missing_right_is_explained() -> None:
    async with (
        Cluster(within=True, gateway_settings={"auth": "required"}) as cluster,
        People(cluster.database_url) as people,
    ):
        admin = str(await people.add("ops", "admin"))
        reader = str(await people.add("reader", "receive topic orders", "receive group billing"))
        async with Traffic(cluster.address, admin) as traffic:
            await traffic.create_topic(ORDERS)
            await traffic.kill(BILLING, ORDERS, 1, "ValueError")
            await traffic.call("CreateGroup", consumer_pb2.CreateGroupRequest(group=consumer_pb2.Group(name="ledger")))
        async with running(cluster.address) as browser:
            assert (await browser.get("/topics")).headers["location"] == "/sign-in?next=/topics"
            await browser.post("/sign-in", {"token": reader, "next": "/topics"})
            assert (await browser.get(f"/topics/{ORDERS}")).status_code == 200
            assert '<span class="none">unavailable</span>' in (await browser.get("/topics")).text
            assert (await browser.get(f"/groups/{BILLING}")).status_code == 200
            listed = await browser.get("/groups")
            assert listed.status_code == 200
            assert 'href="/groups/ledger"' not in listed.text
            for path in ("/lanes", "/shards", f"/dead-letters?group={BILLING}", "/groups/ledger"):
                answer = await browser.get(path)
                assert answer.status_code == 403, path
                assert "Permission denied" in answer.text
            forms = {
                "/topics": {"name": "never"},
                "/groups/ledger/policy": {"backoff": "1s"},
                "/groups/ledger/limit": {"rate": "1/s"},
                f"/topics/{ORDERS}/pause": {},
                "/lanes/0/16/pause": {},
                f"/groups/{BILLING}/reset": {"topic": ORDERS, "to": "latest"},
            }
            for path, fields in forms.items():
                assert (await browser.post(path, fields, page="/topics")).status_code == 403, path
            # Signed out, the same forms lead to the sign-in.
            await browser.post("/sign-out", page="/topics")
            assert (await browser.post("/topics", {"name": "never"})).headers["location"] == "/sign-in?next=/"
