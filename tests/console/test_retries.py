"""Pages of waiting retries, asked as a browser without script asks."""

import html
import re

import pytest
from duetime.v1 import consumer_pb2
from duetime_core.testing import Cluster

from tests.console.console import running
from tests.console.test_messages import Desk, desk
from tests.console.test_topics_and_groups import rows
from tests.console.traffic import BILLING, ORDERS, Traffic
from tests.gateway.people import People

__all__ = ["desk"]

PAGE = f"/groups/{BILLING}/retries"
NO_FILTER = {"topic": "", "error": "", "ids": ""}


@pytest.fixture
async def failed(desk: Desk) -> Desk:
    """The group billing failed the messages a, b and c; the last is due first."""
    async with Traffic(desk.cluster.address) as traffic:
        await traffic.create_topic(ORDERS)
        await traffic.fail(BILLING, ORDERS, "a", "b", delay_ms=7_200_000)
        await traffic.fail(BILLING, ORDERS, "c", delay_ms=3_600_000, kind="KeyError")
    return desk


async def waiting(desk: Desk) -> int:
    request = consumer_pb2.DescribeGroupRequest(name=BILLING)
    return int((await desk.stub.DescribeGroup(request, timeout=60)).waiting_retries)


def proof_of(text: str) -> str:
    (found,) = re.findall(r'name="proof" value="([^"]+)"', text)
    return html.unescape(found)


async def test_group_leads_to_its_waiting_retries(failed: Desk) -> None:
    group = await failed.text(f"/groups/{BILLING}")
    assert f'<a href="{PAGE}">3</a>' in group
    request = consumer_pb2.DescribeGroupRequest(name=BILLING)
    next_at_ms = (await failed.stub.DescribeGroup(request, timeout=60)).next_retry_at_ms
    assert f'data-ms="{next_at_ms}"' in group.partition("Next retry")[2]
    (row,) = rows(await failed.text("/groups"))
    assert row.startswith(f"{BILLING} 0 0 3 0 ")
    text = await failed.text(PAGE)
    assert next(row.split()[3] for row in rows(text)) == "c"
    assert "KeyError: &lt;b&gt;bank&lt;/b&gt;" in text
    assert "<b>bank" not in text
    (row,) = rows(await failed.text(f"{PAGE}?error=keyerror"))
    assert f" c {ORDERS} KeyError: " in row
    assert "No waiting retry of billing matches" in await failed.text(f"{PAGE}?ids=x")
    await failed.text(f"{PAGE}?page=!", 422)
    await failed.text("/groups/nobody/retries", 404)


async def test_list_of_retries_continues_page_by_page(failed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime_console.pages.retries.SHOWN_MAX", 2)
    text = await failed.text(PAGE)
    assert len(rows(text)) == 2
    (after,) = re.findall(r'rel="next" href="([^"]+)"', text)
    assert len(rows(await failed.text(html.unescape(after)))) == 1


@pytest.mark.parametrize(("action", "delivered"), [("retry-now", ["a", "b"]), ("discard", [])])
async def test_retries_are_ended_after_a_dry_run(failed: Desk, action: str, delivered: list[str]) -> None:
    fields = NO_FILTER | {"error": "timeout"}
    text = await failed.text(f"{PAGE}?error=timeout")
    (link,) = re.findall(rf'href="({PAGE}/{action}[^"]*)"', text)
    preview = await failed.text(html.unescape(link))
    assert "2 waiting retries</strong> would be" in preview
    proof = proof_of(preview)
    other = "discard" if action == "retry-now" else "retry-now"
    for path, forged in (
        (action, {"proof": ""}),
        (action, {"proof": proof, "error": ""}),
        (other, {"proof": proof}),
    ):
        answer = await failed.browser.post(f"{PAGE}/{path}", fields | forged, page=PAGE)
        assert answer.status_code == 409
        assert "Nothing was changed" in answer.text
    assert await waiting(failed) == 3
    answer = await failed.browser.post(f"{PAGE}/{action}", fields | {"proof": proof}, page=PAGE)
    assert answer.status_code == 200
    assert "2 waiting retries " in answer.text
    await failed.cluster.advance("2ms")
    assert sorted(one.message.id for one in await failed.received()) == delivered
    assert await waiting(failed) == 1
    await failed.text(f"{PAGE}/other", 404)


async def test_forms_of_retries_need_their_page(failed: Desk) -> None:
    answer = await failed.browser.client.post(f"{PAGE}/discard", data=NO_FILTER)
    assert answer.status_code == 403
    assert await waiting(failed) == 3


async def test_read_only_console_shows_retries_and_offers_no_end(failed: Desk) -> None:
    async with running(failed.cluster.address, read_only=True) as browser:
        text = (await browser.get(PAGE)).text
        assert len(rows(text)) == 3
        assert f"{PAGE}/" not in text
        for action in ("retry-now", "discard"):
            assert (await browser.get(f"{PAGE}/{action}")).status_code == 403
            assert (await browser.post(f"{PAGE}/{action}", NO_FILTER, page=PAGE)).status_code == 403


async def test_retries_need_the_right_to_manage_their_group() -> None:
    async with (
        Cluster(within=True, gateway_settings={"auth": "required"}) as cluster,
        People(cluster.database_url) as people,
        running(cluster.address) as browser,
    ):
        admin = str(await people.add("ops", "admin"))
        reader = str(await people.add("reader", "receive topic orders", "receive group billing"))
        keeper = str(await people.add("keeper", "manage group billing"))
        async with Traffic(cluster.address, admin) as traffic:
            await traffic.create_topic(ORDERS)
            await traffic.fail(BILLING, ORDERS, "a", delay_ms=3_600_000)
        await browser.post("/sign-in", {"token": reader, "next": "/"})
        assert PAGE not in (await browser.get(f"/groups/{BILLING}")).text
        for path in (PAGE, f"{PAGE}/discard", f"{PAGE}/retry-now"):
            assert (await browser.get(path)).status_code == 403
        assert (await browser.post(f"{PAGE}/discard", NO_FILTER, page="/topics")).status_code == 403
        await browser.post("/sign-out", page="/topics")
        await browser.post("/sign-in", {"token": keeper, "next": "/"})
        assert PAGE in (await browser.get(f"/groups/{BILLING}")).text
        assert f"{PAGE}/discard" in (await browser.get(PAGE)).text


async def test_reset_shows_the_retries_that_it_ends(failed: Desk) -> None:
    where = f"/groups/{BILLING}/reset?topic={ORDERS}&to=earliest"
    assert "<strong>3</strong> retries would end" in await failed.text(where)
