"""Deleting topics: by a page after a dry run, and over HTTP; topics with messages only after confirmation."""

import asyncio
import re

import pytest
from duetime.v1 import audit_pb2, gateway_pb2
from duetime_core.testing import Cluster
from playwright.async_api import Browser as Chromium
from playwright.async_api import expect

from tests.console.browser import DESK, PHONE, tab
from tests.console.conftest import Shown
from tests.console.console import running
from tests.console.test_topics_and_groups import rows
from tests.console.traffic import Traffic
from tests.gateway.people import People

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


async def names(shown: Shown) -> set[str]:
    listed = await shown.traffic.call("ListTopics", gateway_pb2.ListTopicsRequest())
    return {topic.name for topic in listed.topics}


async def fill(shown: Shown, topic: str) -> None:
    """Two pending, one dead letter, three unread by its group."""
    await shown.traffic.create_topic(topic)
    await shown.traffic.kill(f"of-{topic}", topic, 1, "ValueError")
    await shown.traffic.send(topic, 3)
    await shown.traffic.send(topic, 2, delay="2h")


async def proof(shown: Shown, topic: str) -> str:
    page = (await shown.browser.get(f"/topics/{topic}/delete")).text
    found = re.search(r'name="proof" value="([^"]+)"', page)
    assert found
    return found[1]


async def audited(traffic: Traffic, user: str, resource: str) -> None:
    """Returns when the log has a deletion: it is written behind the answer."""
    wanted = audit_pb2.ListAuditEventsRequest(method="DeleteTopic")
    async with asyncio.timeout(60):
        while not any(
            (event.user, event.resource, event.status) == (user, resource, "OK")
            for event in (await traffic.call("ListAuditEvents", wanted)).events
        ):
            pass


async def test_a_dry_run_counts_and_changes_nothing(shown: Shown) -> None:
    await fill(shown, "looked-at")
    page = await shown.browser.get("/topics/looked-at/delete")
    assert page.status_code == 200
    assert "The topic is not empty" in page.text
    assert "of-looked-at 3 0 0 1" in rows(page.text)
    assert re.search(r"<dt>Pending, cancelled</dt><dd>2</dd>", page.text)
    assert "looked-at" in await names(shown)
    assert 'href="/topics/looked-at/delete"' in (await shown.browser.get("/topics/looked-at")).text


async def test_unread_messages_keep_the_topic_unless_forced(shown: Shown) -> None:
    await fill(shown, "kept-first")
    where = "/topics/kept-first/delete"
    kept = await shown.browser.post(where, {"proof": await proof(shown, "kept-first")}, page=where)
    assert kept.status_code == 409
    assert "The topic is not deleted." in kept.text
    assert "kept-first" in await names(shown)
    fields = {"proof": await proof(shown, "kept-first"), "force": "1"}
    done = await shown.browser.post(where, fields, page=where)
    assert (done.status_code, done.headers["location"]) == (303, "/topics?deleted=kept-first")
    assert "is deleted" in (await shown.browser.get("/topics?deleted=kept-first")).text
    assert "kept-first" not in await names(shown)
    assert (await shown.browser.get(where)).status_code == 404
    again = await shown.browser.post(where, fields, page="/topics")
    assert again.status_code == 404


async def test_nothing_is_deleted_without_its_dry_run(shown: Shown) -> None:
    for name in ("other", "not-seen"):
        await shown.traffic.create_topic(name)
    where = "/topics/not-seen/delete"
    for wrong in ("", "x", await proof(shown, "other")):
        answer = await shown.browser.post(where, {"proof": wrong, "force": "1"}, page=where)
        assert answer.status_code == 409
        assert "Nothing was changed" in answer.text
    assert "not-seen" in await names(shown)


async def test_system_topics_are_not_offered(shown: Shown) -> None:
    name = "%25RETRY%25billing"
    assert "/delete" not in (await shown.browser.get(f"/topics/{name}")).text
    assert (await shown.browser.get(f"/topics/{name}/delete")).status_code == 400


async def test_topics_are_deleted_over_http(shown: Shown) -> None:
    await fill(shown, "over-http")
    address = "/api/v1/topics/over-http"
    left = {"group": "of-over-http", "unread": 3, "in_flight": 0, "retrying": 0, "dead_letters": 1}
    told = {"topic": "over-http", "deleted": False, "cancelled": 2, "rolled_back": 0, "groups": [left]}
    dry = await shown.browser.client.delete(address, params={"dry_run": "true"})
    assert (dry.status_code, dry.json()) == (200, told)
    refused = await shown.browser.client.delete(address)
    assert (refused.status_code, refused.json()["reason"]) == (409, "TOPIC_NOT_EMPTY")
    wrong = await shown.browser.client.delete(address, params={"force": "perhaps"})
    assert (wrong.status_code, wrong.json()["reason"]) == (400, "REQUEST_INVALID")
    done = await shown.browser.client.delete(address, params={"force": "true"})
    assert (done.status_code, done.json()) == (200, told | {"deleted": True})
    assert "over-http" not in await names(shown)
    gone = await shown.browser.client.delete(address)
    assert (gone.status_code, gone.json()["reason"]) == (404, "TOPIC_NOT_FOUND")


async def test_deletion_is_offered_by_right_and_audited() -> None:
    async with (
        Cluster(within=True, gateway_settings={"auth": "required"}) as cluster,
        People(cluster.database_url) as people,
    ):
        admin = str(await people.add("ops", "admin"))
        reader = str(await people.add("reader", "receive topic mine"))
        async with Traffic(cluster.address, admin) as traffic:
            await traffic.create_topic("mine")
            async with running(cluster.address) as browser:
                await browser.post("/sign-in", {"token": reader, "next": "/topics"})
                assert "/delete" not in (await browser.get("/topics/mine")).text
                assert (await browser.get("/topics/mine/delete")).status_code == 403
                await browser.post("/sign-out", page="/topics")
                await browser.post("/sign-in", {"token": admin, "next": "/topics"})
                where = "/topics/mine/delete"
                found = re.search(r'name="proof" value="([^"]+)"', (await browser.get(where)).text)
                assert found
                assert (await browser.post(where, {"proof": found[1]}, page=where)).status_code == 303
                await audited(traffic, "ops", "topic mine")
            async with running(cluster.address, read_only=True) as browser:
                await traffic.create_topic("kept")
                await browser.post("/sign-in", {"token": admin, "next": "/topics"})
                assert "/delete" not in (await browser.get("/topics/kept")).text
                assert (await browser.get("/topics/kept/delete")).status_code == 403


async def test_a_topic_is_deleted_in_the_browser(shown: Shown, desk: Chromium) -> None:
    await fill(shown, "by-hand")
    async with tab(desk, PHONE, is_mobile=True, color_scheme="dark") as opened:
        await opened.goto(f"{shown.address}/topics/by-hand/delete")
        assert await opened.violations() == []
        assert await opened.wider_than_its_window() <= 0
    async with tab(desk, DESK) as opened:
        page = opened.page
        await opened.goto(f"{shown.address}/topics/by-hand")
        await page.get_by_role("link", name="Delete…").click()
        assert await opened.violations() == []
        await page.get_by_role("button", name="Delete by-hand for good").click()
        await expect(page.get_by_role("alert")).to_contain_text("The topic is not deleted.")
        assert await opened.violations() == []
        await page.get_by_label("Include undelivered messages").check()
        await page.get_by_role("button", name="Delete by-hand for good").click()
        await expect(page.get_by_role("status")).to_contain_text("Topic by-hand is deleted.")
        assert await opened.violations() == []
    assert "by-hand" not in await names(shown)
