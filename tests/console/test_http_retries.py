"""Waiting retries over the HTTP API of a running cluster."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest
from duetime_core.testing import Cluster

from tests.console.console import running
from tests.console.test_http_calls import cluster, received, sent
from tests.console.test_http_requests import problem

__all__ = ["cluster"]

GROUP = "/api/v1/groups/billing"


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    """The group billing failed the messages a, b and c; the last is due first."""
    async with running(cluster.address) as browser:
        client = browser.client
        for name in "abc":
            await sent(client, id=name, body=name)
        leased = [one for _ in "abc" for one in await received(client, max=1)]
        bank, key = {"type": "TimeoutError", "message": "bank"}, {"type": "KeyError", "message": "7"}
        failures = [
            {"receipt": one["receipt"], "delay": "1h", "error": key}
            if one["id"] == "c"
            else {"receipt": one["receipt"], "delay": "2h", "error": bank}
            for one in leased
        ]
        await client.post("/api/v1/nack", json={"group": "billing", "failures": failures})
        yield client


async def listed(client: httpx.AsyncClient, **asked: Any) -> list[dict[str, Any]]:
    """All pages."""
    found: list[dict[str, Any]] = []
    page: str | None = ""
    while page is not None:
        answer = await client.get(f"{GROUP}/retries", params={**asked, "page": page})
        assert answer.status_code == 200, answer.text
        found += answer.json()["retries"]
        page = answer.json()["next_page"]
    return found


async def ended(client: httpx.AsyncClient, call: str, **given: Any) -> tuple[int, int, int, bool]:
    answer = await client.post(f"{GROUP}/{call}", json=given)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    return told["matched"], told["ended"], told["gone"], told["done"]


async def test_waiting_retries_are_listed_page_by_page(client: httpx.AsyncClient) -> None:
    first, *others = await listed(client, max=1)
    assert {one["id"] for one in others} == {"a", "b"}
    assert (first["id"], first["topic"], first["deliveries"], first["error"]) == ("c", "orders", 1, "KeyError: 7")
    (attempt,) = first["attempts"]
    assert (attempt["attempt"], attempt["error_type"], attempt["failed_at"]) == (1, "KeyError", attempt["received_at"])
    assert "body" not in first
    assert [one["body"] for one in await listed(client, error="keyerror", bodies=True)] == ["c"]
    assert [one["id"] for one in await listed(client, id="b", topic="orders")] == ["b"]


async def test_waiting_retries_are_ended(cluster: Cluster, client: httpx.AsyncClient) -> None:
    assert await ended(client, "retry-now", dry_run=True) == (3, 0, 0, True)
    assert await ended(client, "retry-now", ids=["a"]) == (1, 1, 0, True)
    await cluster.advance("2ms")
    assert [(one["id"], one["attempt"]) for one in await received(client)] == [("a", 2)]
    assert await ended(client, "discard-retries", error="keyerror") == (1, 1, 0, True)
    assert [one["id"] for one in await listed(client)] == ["b"]


async def test_retries_of_an_unknown_group_are_not_found(client: httpx.AsyncClient) -> None:
    nobody = "/api/v1/groups/nobody"
    answers = [await client.get(f"{nobody}/retries")]
    answers += [await client.post(f"{nobody}/{call}", json={}) for call in ("retry-now", "discard-retries")]
    for answer in answers:
        assert problem(answer, 404)["reason"] == "GROUP_NOT_FOUND"


async def test_read_only_console_lists_retries_and_ends_none(cluster: Cluster, client: httpx.AsyncClient) -> None:
    async with running(cluster.address, read_only=True) as browser:
        assert len(await listed(browser.client)) == 3
        for call in ("retry-now", "discard-retries"):
            answer = await browser.client.post(f"{GROUP}/{call}", json={})
            assert problem(answer, 403)["reason"] == "READ_ONLY"
