"""The limits of a group over the HTTP API of a running cluster."""

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
