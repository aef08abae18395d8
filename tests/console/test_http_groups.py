"""The limits of a group over the HTTP API of a running cluster."""

from datetime import datetime, timedelta

import pytest
from duetime_core.testing import Cluster

from tests.console.console import running
from tests.console.test_http_calls import cluster, received, sent
from tests.console.test_http_requests import problem

__all__ = ["cluster"]

LIMITS = "/api/v1/groups/billing/limits"


async def test_limits_of_a_group_are_shown_and_changed(cluster: Cluster) -> None:
    async with running(cluster.address) as browser:
        client = browser.client
        problem(await client.get(LIMITS), 404)
        await sent(client)
        await received(client)
        assert (await client.get(LIMITS)).json() == {"limits": []}
        for fields in ({"rate": "50/s"}, {"rate": "3000/m,burst=1", "per_key": 2, "topic": "orders"}):
            answer = await client.put(LIMITS, json=fields)
            assert answer.status_code == 200, answer.text
        both = [
            {"topic": None, "rate": "50/s", "per_key": None, "declared": False},
            {"topic": "orders", "rate": "3000/m,burst=1", "per_key": 2, "declared": False},
        ]
        assert (answer.json(), (await client.get(LIMITS)).json()) == ({"limits": both}, {"limits": both})
        answer = await client.put(LIMITS, json={"rate": None})
        assert answer.json() == {"limits": both[1:]}
        problem(await client.put(LIMITS, json={"rate": "1/s", "topic": "nowhere"}), 404)


@pytest.mark.parametrize(("field", "value"), [("rate", "fast"), ("rate", "0/s"), ("rate", 50), ("per_key", 0)])
async def test_bad_limit_is_rejected(cluster: Cluster, field: str, value: object) -> None:
    async with running(cluster.address) as browser:
        found = problem(await browser.client.put(LIMITS, json={field: value}), 400)
        assert field in str(found)


async def test_a_group_shows_its_progress(cluster: Cluster) -> None:
    path = "/api/v1/groups/billing"
    async with running(cluster.address) as browser:
        client = browser.client
        problem(await client.get(path), 404)
        assert (await client.get("/api/v1/groups")).json() == {"groups": []}
        for _ in range(3):
            await sent(client, queue=1)
        one, *_ = await received(client, max=2)
        await client.post("/api/v1/ack", json={"group": "billing", "receipts": [one["receipt"]]})
        await client.put(LIMITS, json={"rate": "50/s"})
        found = (await client.get(path)).json()
        assert (found["name"], found["start"], found["ordered"], found["lag"]) == ("billing", "earliest", False, 2)
        (queue,) = [each for each in found["queues"] if (each["topic"], each["queue"]) == ("orders", 1)]
        assert (queue["acknowledged_offset"], queue["next_offset"], queue["max_offset"]) == (1, 2, 3)
        assert (queue["lag"], queue["in_flight"], queue["waiting"]) == (2, 1, 0)
        assert [member["topic"] for member in found["members"]] == ["orders"]
        assert found["limits"] == [{"topic": None, "rate": "50/s", "per_key": None, "declared": False}]
        numbers = ("waiting_retries", "next_retry_at", "dead_letters", "lapsed", "pauses", "unreachable_shards")
        assert [found[name] for name in numbers] == [0, None, 0, 0, [], []]
        (listed,) = (await client.get("/api/v1/groups")).json()["groups"]
        assert listed.items() <= found.items()


async def test_a_group_is_paused_and_resumed(cluster: Cluster) -> None:
    path = "/api/v1/groups/billing/pause"
    async with running(cluster.address) as browser:
        client = browser.client
        problem(await client.get(path), 404)
        problem(await client.put(path, json={}), 404)
        await sent(client)
        await received(client)
        for fields in ({"length": "1h"}, {"topic": "orders"}):
            answer = await client.put(path, json=fields)
            assert answer.status_code == 200, answer.text
        every, of_topic = answer.json()["pauses"]
        assert datetime.fromisoformat(every["until"]) - datetime.fromisoformat(every["since"]) == timedelta(hours=1)
        assert (every["topic"], of_topic["topic"], of_topic["until"]) == (None, "orders", None)
        assert (await client.get(path)).json()["pauses"] == [every, of_topic]
        assert (await client.get("/api/v1/groups/billing")).json()["pauses"] == [every, of_topic]
        assert (await client.delete(path, params={"topic": "orders"})).json() == {"pauses": [every]}
        await client.put("/api/v1/topics/orders/pause", json={})
        assert (await client.delete(path)).json() == {"pauses": []}
        (left,) = (await client.get(path)).json()["pauses"]
        assert (left["topic"], left["all_groups"]) == ("orders", True)
        problem(await client.put(path, json={"length": "1h", "until": every["until"]}), 400)


async def test_topics_are_listed_and_shown(cluster: Cluster) -> None:
    async with running(cluster.address) as browser:
        client = browser.client
        problem(await client.get("/api/v1/topics/orders"), 404)
        await sent(client, queue=2)
        found = (await client.get("/api/v1/topics/orders")).json()
        assert (found["name"], found["type"], found["max_delay"], found["pause"]) == ("orders", "any", None, None)
        offsets = {one["queue"]: (one["min_offset"], one["max_offset"]) for one in found["queue_offsets"]}
        assert (len(offsets), offsets[2]) == (found["queues"], (0, 1))
        (listed,) = (await client.get("/api/v1/topics")).json()["topics"]
        assert listed.items() <= found.items()


async def test_topic_is_paused_and_resumed(cluster: Cluster) -> None:
    path = "/api/v1/topics/orders/pause"
    async with running(cluster.address) as browser:
        client = browser.client
        problem(await client.get(path), 404)
        problem(await client.put(path, json={}), 404)
        await sent(client)
        assert (await client.get(path)).json() == {"topic": "orders", "pause": None}
        answer = await client.put(path, json={"length": "1h"})
        assert answer.status_code == 200, answer.text
        pause = answer.json()["pause"]
        assert datetime.fromisoformat(pause["until"]) - datetime.fromisoformat(pause["since"]) == timedelta(hours=1)
        assert (await client.get(path)).json() == {"topic": "orders", "pause": pause}
        answer = await client.put(path, json={"until": pause["since"].replace("20", "30", 1)})
        problem(answer, 400)
        assert (await client.put(path, json={})).json()["pause"]["until"] is None
        assert (await client.delete(path)).json() == {"topic": "orders", "pause": None}
        problem(await client.put(path, json={"length": "1h", "until": pause["until"]}), 400)
