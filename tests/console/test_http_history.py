"""The history of a schedule over the HTTP API of a running cluster, whose clock its tests advance."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2 as httpx
import pytest
import pytest_asyncio
from duetime_console.api import schedules
from duetime_core.testing import Cluster

from tests.console.console import running
from tests.console.test_http_calls import received
from tests.console.test_http_requests import problem
from tests.console.test_http_schedules import act, history, path, put
from tests.gateway.people import People

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[Cluster]:
    """Each test has its own topic, and counts from the present time of the clock."""
    async with Cluster(within=True) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(cluster: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    async with running(cluster.address, cluster.clock) as browser:
        yield browser.client


async def test_history_has_each_occurrence_with_its_ends(cluster: Cluster, client: httpx.AsyncClient) -> None:
    await put(client, "past", "a", at=[cluster.clock.now_ms() + ms for ms in (1_000, 2_000, 3_000)])
    for _ in range(2):
        await cluster.advance("1s")
    done, dead = sorted(await received(client, topic="past", max=2), key=lambda one: str(one["due_at"]))
    await client.post("/api/v1/ack", json={"group": "billing", "receipts": [done["receipt"]]})
    failures = [{"receipt": dead["receipt"], "reject": True}]
    await client.post("/api/v1/nack", json={"group": "billing", "failures": failures})
    pending = (await client.get(path("past", "a"))).json()
    added = await act(client, "past", "a", "run", 201)

    found = await history(client, "past", "a")
    assert (found["more"], found["gaps"]) == (False, [])
    by_id = {one.pop("id"): one for one in found["occurrences"]}
    wanted = [(pending, "pending", {}), (dead, "stored", {"billing": "dead"}), (done, "stored", {"billing": "done"})]
    for one, state, groups in wanted:
        due_at = one["next_at"][0] if state == "pending" else one["due_at"]
        told = by_id.pop(one["id"])
        assert (told["planned_at"], told["due_at"], told["state"], told["groups"]) == (due_at, due_at, state, groups)
        is_delivered = state == "stored"
        assert (told["delivered_at"], told["late_ms"]) == ((one["stored_at"], 0) if is_delivered else (None, None))
    (one,) = by_id.items()
    assert one[0] == added["id"]
    assert (one[1]["planned_at"], one[1]["late_ms"], one[1]["state"], one[1]["groups"]) == (None, None, "stored", {})


async def test_occurrence_is_late_from_its_planned_time_on(cluster: Cluster, client: httpx.AsyncClient) -> None:
    made = await put(client, "moved", "a", every="1h")
    (planned,) = made["next_at"]
    moved = {"topic": "moved", "delay": "2h"}
    assert (await client.patch(f"/api/v1/messages/{made['id']}", json=moved)).status_code == 200
    await cluster.advance("2h")
    (delivered,) = (one for one in (await history(client, "moved", "a"))["occurrences"] if one["id"] == made["id"])
    assert (delivered["planned_at"], delivered["late_ms"], delivered["state"]) == (planned, 3_600_000, "stored")
    assert delivered["due_at"] > planned


async def test_history_has_the_latest_and_outlives_its_schedule(cluster: Cluster, client: httpx.AsyncClient) -> None:
    await put(client, "over", "a", at=[cluster.clock.now_ms() + ms for ms in (1_000, 2_000)])
    for _ in range(2):
        await cluster.advance("1s")
    assert problem(await client.get(path("over", "a")), 404)["reason"] == "SCHEDULE_NOT_FOUND"
    every = await history(client, "over", "a")
    times = [one["due_at"] for one in every["occurrences"]]
    assert (len(times), times, every["more"]) == (2, sorted(times, reverse=True), False)
    latest = await history(client, "over", "a", max=1)
    assert (latest["occurrences"], latest["more"]) == (every["occurrences"][:1], True)
    assert (await history(client, "over", "none"))["occurrences"] == []


async def test_history_refuses_a_wrong_count_and_an_unknown_topic(client: httpx.AsyncClient) -> None:
    for count in (0, 65):
        found = problem(await client.get(path("over", "a", "history"), params={"max": count}), 400)
        assert [one["field"] for one in found["violations"]] == ["max"]
    assert problem(await client.get(path("no-such-topic", "a", "history")), 404)["reason"] == "TOPIC_NOT_FOUND"


async def test_history_ends_at_its_time_limit(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await put(client, "slow", "a", every="1h")
    monkeypatch.setattr(schedules, "HTTP_CALL_S_MAX", 0.0)
    found = problem(await client.get(path("slow", "a", "history")), 504)
    assert (found["reason"], "fewer occurrences" in found["detail"]) == ("DEADLINE_EXCEEDED", True)


async def test_history_takes_the_rights_of_a_trace(tmp_path: Path) -> None:
    async with (
        Cluster(tmp_path / "cluster", gateway_settings={"auth": "required"}) as cluster,
        People(cluster.database_url) as people,
        running(cluster.address) as browser,
    ):
        admin, reader, of_one = [
            {"authorization": f"Bearer {await people.add(name, right)}"}
            for name, right in (("root", "admin"), ("reader", "receive topic *"), ("one", "receive topic mine"))
        ]
        client = browser.client
        made = await client.put(path("mine", "a"), json={"every": "1h"}, headers=admin)
        assert made.status_code == 201
        assert (await client.post(path("mine", "a", "run"), json={}, headers=admin)).status_code == 201
        answers = [await client.get(path("mine", "a", "history"), headers=one) for one in (admin, reader)]
        assert [len(one.json()["occurrences"]) for one in answers] == [2, 2]
        answer = await client.get(path("mine", "a", "history"), headers=of_one)
        assert problem(answer, 403)["reason"] == "RIGHT_MISSING"
        assert problem(await client.get(path("mine", "a", "history")), 401)["reason"] == "TOKEN_MISSING"
