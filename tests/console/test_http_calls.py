"""The HTTP API on a running cluster: sent messages arrive, and each error of the gateway has its status."""

import asyncio
import base64
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import httpx2 as httpx
import pytest
from duetime.v1 import gateway_pb2, gateway_pb2_grpc, quotas_pb2
from duetime_console.api import consuming
from duetime_core.limits.seats import Seats
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster
from duetime_core.testing.clock import START_MS

from tests.console.console import running
from tests.console.test_http_requests import problem
from tests.gateway.people import People

SEND = "/api/v1/messages"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(within=True) as found:
        yield found


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    async with running(cluster.address) as browser:
        yield browser.client


async def sent(client: httpx.AsyncClient, status: int = 201, key: str = "", **message: Any) -> dict[str, Any]:
    headers = {"idempotency-key": key} if key else {}
    answer = await client.post(SEND, json={"topic": "orders"} | message, headers=headers)
    assert answer.status_code == status, answer.text
    return dict(answer.json())


async def received(client: httpx.AsyncClient, **given: Any) -> list[dict[str, Any]]:
    wanted = {"group": "billing", "topic": "orders", "wait": "0s"} | given
    answer = await client.post("/api/v1/receive", json=wanted)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["messages"])


async def test_message_is_sent_received_and_acknowledged(client: httpx.AsyncClient) -> None:
    given = {"tags": "paid", "keys": ["42"], "properties": {"size": "6"}, "flag": 7, "body": "grün"}
    result = await sent(client, **given)
    (message,) = await received(client)
    assert given.items() <= message.items()
    assert (message["id"], message["attempt"], message["due_at"]) == (result["id"], 1, None)
    answer = await client.post("/api/v1/ack", json={"group": "billing", "receipts": [message["receipt"]]})
    assert answer.json() == {"results": [{"receipt": message["receipt"], "status": "ok"}]}
    assert await received(client) == []


BODIES: list[tuple[dict[str, Any], dict[str, str], dict[str, str]]] = [
    ({"body": ""}, {"body": ""}, {}),
    ({}, {"body": ""}, {}),
    ({"body_base64": "/wA="}, {"body_base64": "/wA="}, {}),
    ({"body_json": {"ä": [1, None]}}, {"body": '{"ä":[1,null]}'}, {"content_type": "application/json"}),
    ({"body_json": None}, {"body": "null"}, {"content_type": "application/json"}),
    (
        {"body_json": 1, "properties": {"content_type": "application/x"}},
        {"body": "1"},
        {"content_type": "application/x"},
    ),
]


async def test_body_has_three_forms(client: httpx.AsyncClient) -> None:
    for given, told, properties in BODIES:
        await sent(client, **given)
        (message,) = await received(client)
        await client.post("/api/v1/ack", json={"group": "billing", "receipts": [message["receipt"]]})
        assert {name: value for name, value in message.items() if name.startswith("body")} == told
        assert message["properties"] == properties


@pytest.mark.parametrize(
    ("due", "at_ms", "level"),
    [
        ({"delay": "90s"}, 90_000, None),
        ({"delay": "1ms"}, 1, None),
        ({"delay_level": 2}, 5_000, 2),
        ({"deliver_at": START_MS + 7}, 7, None),
        ({"deliver_at": "2023-11-14T23:13:21.000001+01:00"}, 1_001, None),
    ],
)
async def test_message_falls_due_at_its_time(
    cluster: Cluster, client: httpx.AsyncClient, due: dict[str, Any], at_ms: int, level: int | None
) -> None:
    result = await sent(client, id="later", **due)
    assert result["delay_level"] == level
    await cluster.advance(f"{at_ms - 1}ms")
    assert await received(client) == []
    found = (await client.get(f"{SEND}/later")).json()
    assert (found["state"], found["due_at"]) == ("pending", result["deliver_at"])
    await cluster.advance("1ms")
    assert [message["id"] for message in await received(client)] == ["later"]


async def test_idempotency_key_is_the_id_and_repeats_the_first_result(client: httpx.AsyncClient) -> None:
    first = await sent(client, key="order-42", body="a", delay="1h")
    again = await sent(client, 200, key='"order-42"', body="b", delay="1h")
    assert first["id"] == "order-42"
    assert again == first | {"duplicate": True}
    found = await client.get(f"{SEND}/order-42", params={"topic": "orders"})
    assert found.json()["body"] == "a"


async def test_idempotency_key_of_cancelled_message_is_refused(client: httpx.AsyncClient) -> None:
    await sent(client, key="order-42-timeout", topic="orders", body="one", delay="30m")
    assert (await client.delete("/api/v1/messages/order-42-timeout?topic=orders")).status_code == 200
    given = {"topic": "orders", "body": "one", "delay": "30m"}
    answer = await client.post("/api/v1/messages", json=given, headers={"Idempotency-Key": "order-42-timeout"})
    told = answer.json()
    assert (answer.status_code, told["reason"]) == (409, "MESSAGE_CANCELLED")
    assert told["metadata"] == {"topic": "orders", "id": "order-42-timeout", "end": "CANCELLED"}
    answer = await client.post("/api/v1/messages/batch", json={"messages": [{**given, "id": "order-42-timeout"}]})
    (result,) = answer.json()["results"]
    assert (result["problem"]["status"], result["problem"]["metadata"]["end"]) == (409, "CANCELLED")


async def test_answer_to_a_send_has_the_place_of_the_message(client: httpx.AsyncClient) -> None:
    answer = await client.post(SEND, json={"topic": "orders", "id": "a/b?c"})
    place = answer.headers["location"]
    assert place == "/api/v1/messages/a%2Fb%3Fc?topic=orders"
    assert (await client.get(place)).json()["id"] == "a/b?c"
    assert answer.headers["cache-control"] == "no-store"


async def test_faults_of_a_batch_accompany_the_results(client: httpx.AsyncClient) -> None:
    messages = [{"topic": "orders", "id": "a"}, {"topic": "SCHEDULE_TOPIC_XXXX"}, {"topic": "orders", "id": "b"}]
    answer = await client.post(f"{SEND}/batch", json={"messages": messages})
    assert answer.status_code == 200
    first, second, third = answer.json()["results"]
    assert (first["sent"]["id"], third["sent"]["id"]) == ("a", "b")
    assert second["problem"]["status"] == 400
    assert second["problem"]["violations"][0]["field"] == "topic"


async def test_gateway_fault_is_shown_with_its_fields(client: httpx.AsyncClient) -> None:
    answer = await client.post(SEND, json={"topic": "orders", "keys": ["a b"], "properties": {"TAGS": "x"}})
    found = problem(answer, 400)
    assert found["reason"] == "MESSAGE_INVALID"
    assert len(found["violations"]) == 2


async def test_id_of_two_topics_needs_the_topic(client: httpx.AsyncClient) -> None:
    for topic in ("one", "other"):
        await sent(client, id="a", topic=topic, delay="1h")
    path = "/api/v1/messages/a"
    for answer in (await client.delete(path), await client.patch(path, json={"delay": "2h"}), await client.get(path)):
        assert problem(answer, 400)["reason"] == "ID_AMBIGUOUS"
    for _ in range(2):
        assert (await client.delete(f"{path}?topic=one")).status_code == 200
    assert (await client.get(f"{path}?topic=other")).json()["state"] == "pending"


async def test_pending_message_is_cancelled_once(cluster: Cluster, client: httpx.AsyncClient) -> None:
    result = await sent(client, id="a", delay="1h")
    # The due time of a message just cancelled is known.
    for due_at in (result["deliver_at"], None):
        answer = await client.delete(f"{SEND}/a", params={"topic": "orders"})
        assert answer.json() == {"id": "a", "status": "cancelled", "due_at": due_at}
    await sent(client, id="b", delay="1h")
    await cluster.advance("1h")
    assert problem(await client.delete(f"{SEND}/b"), 409)["reason"] == "ALREADY_FIRED"
    assert problem(await client.delete(f"{SEND}/c"), 404)["reason"] == "MESSAGE_NOT_FOUND"
    assert [message["id"] for message in await received(client)] == ["b"]


async def test_pending_message_gets_another_time_and_body(cluster: Cluster, client: httpx.AsyncClient) -> None:
    await sent(client, id="a", delay="1h", body="old")
    for _ in range(2):
        answer = await client.patch(
            f"{SEND}/a", json={"delay": "1s", "body": "new"}, headers={"idempotency-key": "change1"}
        )
        assert answer.json()["status"] == "rescheduled", answer.text
    await cluster.advance("1s")
    (message,) = await received(client)
    assert (message["id"], message["body"]) == ("a", "new")
    assert problem(await client.patch(f"{SEND}/b", json={"deliver_at": START_MS}), 404)


async def test_rescheduled_message_counts_for_the_quota(cluster: Cluster, client: httpx.AsyncClient) -> None:
    await sent(client, id="a", delay="1h")
    quota = quotas_pb2.Quota(of=quotas_pb2.QuotaOf(user="*"), per_host=True, messages_per_s=1, burst_messages=2)
    async with make_channel(cluster.address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)
        await stub.SetQuota(quotas_pb2.SetQuotaRequest(quota=quota), timeout=60)
    statuses = [(await client.patch(f"{SEND}/a", json={"delay": "2h"})).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]


async def test_system_topic_is_refused(client: httpx.AsyncClient) -> None:
    wanted = {"group": "billing", "topic": "RMQ_SYS_TRANS_HALF_TOPIC", "wait": "0s"}
    problem(await client.post("/api/v1/receive", json=wanted), 400)


async def test_body_stays_where_none_is_given(cluster: Cluster, client: httpx.AsyncClient) -> None:
    await sent(client, id="a", delay="1h", body="old")
    assert (await client.patch(f"{SEND}/a", json={"delay": "0s"})).status_code == 200
    await cluster.advance("1ms")
    assert [message["body"] for message in await received(client)] == ["old"]
    assert problem(await client.patch(f"{SEND}/a", json={"body": "x"}), 400)


async def test_message_is_shown_with_its_history(cluster: Cluster, client: httpx.AsyncClient) -> None:
    await sent(client, id="a", delay="1s")
    await cluster.advance("1s")
    (message,) = await received(client)
    error = {"type": "ValueError", "message": "no stock"}
    given = {"group": "billing", "failures": [{"receipt": message["receipt"], "reject": True, "error": error}]}
    (result,) = (await client.post("/api/v1/nack", json=given)).json()["results"]
    assert (result["status"], result["dead"], result["attempt"], result["deliver_at"]) == ("ok", True, 1, None)
    found = (await client.get(f"{SEND}/a?topic=orders&trace=true")).json()
    events = found["trace"]["events"]
    kinds = [event["kind"] for event in events]
    assert kinds == sorted(kinds, key=["accepted", "deferred", "restored", "received", "failed", "dead"].index)
    failed = next(event for event in events if event["kind"] in ("failed", "dead") and event["error_type"])
    assert (failed["error_message"], failed["group"]) == ("no stock", "billing")
    assert "trace" not in (await client.get(f"{SEND}/a?topic=orders")).json()


async def test_failed_message_is_redelivered_after_its_delay(cluster: Cluster, client: httpx.AsyncClient) -> None:
    await sent(client)
    (message,) = await received(client)
    given = {"group": "billing", "failures": [{"receipt": message["receipt"], "delay": "3s"}]}
    answer = await client.post("/api/v1/nack", json=given)
    assert answer.json()["results"][0]["dead"] is False
    await cluster.advance("3s")
    assert [(each["id"], each["attempt"]) for each in await received(client)] == [(message["id"], 2)]


async def test_lease_is_given_back(client: httpx.AsyncClient) -> None:
    await sent(client)
    (message,) = await received(client)
    given = {"group": "billing", "receipts": [message["receipt"]], "invisible": "0s", "not_attempted": True}
    answer = await client.post("/api/v1/change-invisible", json=given)
    assert answer.json()["results"][0]["status"] == "ok"
    assert [each["attempt"] for each in await received(client)] == [1]


async def test_invalid_receipt_is_reported(client: httpx.AsyncClient) -> None:
    await sent(client)
    await received(client)
    receipt = base64.urlsafe_b64encode(b"nothing").decode().rstrip("=")
    answer = await client.post("/api/v1/ack", json={"group": "billing", "receipts": [receipt]})
    assert answer.json()["results"][0]["status"] == "unknown"


async def test_pending_messages_are_listed_page_by_page(client: httpx.AsyncClient) -> None:
    for number in range(5):
        await sent(
            client, id=f"m{number}", delay=f"{number + 1}h", body="x", keys=["even" if number % 2 == 0 else "odd"]
        )
    ids: list[str] = []
    page = ""
    while True:
        found = (await client.get("/api/v1/pending", params={"max": 2, "topic": "orders", "page": page})).json()
        assert all("body" not in message for message in found["messages"])
        ids += [message["id"] for message in found["messages"]]
        page = found["next_page"]
        if not page:
            break
    assert ids == ["m0", "m1", "m2", "m3", "m4"]
    found = (await client.get("/api/v1/pending?key=odd&bodies=true&topic=orders")).json()
    assert [(message["id"], message["body"]) for message in found["messages"]] == [("m1", "x"), ("m3", "x")]


async def test_backlog_counts_pending_messages(client: httpx.AsyncClient) -> None:
    await sent(client, delay="1h")
    await sent(client, delay="30s")
    found = (await client.get("/api/v1/backlog?topic=orders")).json()
    assert (found["pending_count"], found["overdue_count"], found["unreachable_shards"]) == (2, 0, [])
    assert sum(bucket["count"] for bucket in found["buckets"]) == 2


async def test_message_is_found_by_key_or_tag(client: httpx.AsyncClient) -> None:
    await sent(client, id="a", keys=["42"], tags="paid")
    for wanted in ({"key": "42"}, {"tag": "paid"}):
        found = (await client.get(SEND, params={"topic": "orders", **wanted})).json()
        assert [(message["id"], message["state"]) for message in found["messages"]] == [("a", "stored")]
    both = problem(await client.get(SEND, params={"topic": "orders", "key": "42", "tag": "paid"}), 400)
    assert "give either key or tag" in str(both)
    assert problem(await client.get(f"{SEND}/nowhere"), 404)["reason"] == "MESSAGE_NOT_FOUND"
    problem(await client.post("/api/v1/receive", json={"group": "billing", "topic": "nowhere"}), 404)


async def made_topic(cluster: Cluster, name: str, kind: "gateway_pb2.TopicType") -> None:
    async with grpc.aio.insecure_channel(cluster.address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)  # type: ignore[no-untyped-call]
        await stub.CreateTopic(gateway_pb2.CreateTopicRequest(name=name, queue_count=4, message_type=kind), timeout=60)


async def test_higher_priorities_come_first(cluster: Cluster, client: httpx.AsyncClient) -> None:
    await made_topic(cluster, "alerts", gateway_pb2.TOPIC_TYPE_PRIORITY)
    for priority in (0, 9, 2):
        await sent(client, topic="alerts", priority=priority)
    found = await received(client, topic="alerts")
    assert [(one["priority"], one["queue"]) for one in found] == [(9, 3), (2, 2), (0, 0)]
    for priority in (-1, 2**31):
        await sent(client, 400, topic="alerts", priority=priority)
    await sent(client, 400, priority=1)


async def test_message_tells_when_it_expires(client: httpx.AsyncClient) -> None:
    await sent(client, id="code", expires="5m")
    await sent(client, id="other")
    found = {one["id"]: one for one in await received(client)}
    stored, expires = (datetime.fromisoformat(found["code"][name]) for name in ("stored_at", "expires_at"))
    assert (expires - stored, found["other"]["expires_at"]) == (timedelta(minutes=5), None)
    await sent(client, 400, expires="9999999d")


async def test_lite_topics_are_received_and_listed(cluster: Cluster, client: httpx.AsyncClient) -> None:
    await made_topic(cluster, "rooms", gateway_pb2.TOPIC_TYPE_LITE)
    for name in ("a", "b", "a"):
        await sent(client, topic="rooms", lite_topic=name)
    found = await received(client, topic="rooms", lite_topics=["a"])
    assert [one["lite_topic"] for one in found] == ["a", "a"]
    address = "/api/v1/topics/rooms/lite-topics"
    listed = (await client.get(address, params={"group": "billing"})).json()
    assert listed == {
        "lite_topics": [{"name": "a", "messages": 2, "unread": 0}, {"name": "b", "messages": 1, "unread": 1}]
    }
    rest = (await client.get(address, params={"after": "a", "max": 1})).json()
    assert rest == {"lite_topics": [{"name": "b", "messages": 1, "unread": None}]}
    problem(await client.get("/api/v1/topics/nowhere/lite-topics"), 404)


async def waiting(cluster: Cluster, count: int) -> None:
    """Waits until `count` calls of Receive run in the console's gateway."""
    async with grpc.aio.insecure_channel(cluster.address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)  # type: ignore[no-untyped-call]
        while consuming._receives.used != count:
            await stub.ListTopics(gateway_pb2.ListTopicsRequest())


async def test_receive_waits_and_is_woken(cluster: Cluster, client: httpx.AsyncClient) -> None:
    await sent(client)
    (message,) = await received(client)
    waits = asyncio.ensure_future(received(client, wait="30s"))
    await waiting(cluster, 1)
    second = await sent(client, id="second")
    assert [each["id"] for each in await waits] == [second["id"]] != [message["id"]]


async def test_receive_ends_when_its_client_goes(cluster: Cluster, client: httpx.AsyncClient) -> None:
    await sent(client)
    await received(client)
    call = asyncio.ensure_future(received(client, wait="30s"))
    await waiting(cluster, 1)
    call.cancel()
    await waiting(cluster, 0)
    # Nobody has a message that comes now.
    await sent(client, id="next")
    assert [message["id"] for message in await received(client)] == ["next"]


async def test_waiting_calls_are_bounded(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await sent(client)
    seats = Seats(2, "calls wait", reason="RECEIVES_EXHAUSTED")
    seats.hold("another", 2)
    monkeypatch.setattr(consuming, "_receives", seats)
    answer = await client.post("/api/v1/receive", json={"group": "billing", "topic": "orders", "wait": "1s"})
    assert problem(answer, 429)["reason"] == "RECEIVES_EXHAUSTED"
    assert answer.headers["retry-after"] == "1"


async def test_token_of_the_call_counts_and_a_cookie_does_not(tmp_path: Path) -> None:
    async with (
        Cluster(tmp_path / "cluster", gateway_settings={"auth": "required"}) as cluster,
        People(cluster.database_url) as people,
        running(cluster.address) as browser,
    ):
        client = browser.client
        admin = str(await people.add("root", "admin"))
        reader = str(await people.add("reader", "receive topic orders", "receive group billing"))

        async def send(**headers: str) -> httpx.Response:
            return await client.post(SEND, json={"topic": "orders"}, headers=headers)

        answer = await send()
        assert problem(answer, 401)["reason"] == "TOKEN_MISSING"
        assert answer.headers["www-authenticate"] == "Bearer"
        assert problem(await send(authorization="Bearer nobody"), 401)
        assert (await send(authorization=f"bearer {admin}")).status_code == 201
        assert problem(await send(authorization=f"Bearer {reader}"), 403)["reason"] == "RIGHT_MISSING"
        # A session of the pages, signed in as the admin.
        assert (await browser.post("/sign-in", {"token": admin, "next": "/"})).status_code == 303
        assert client.cookies
        assert problem(await send(), 401)["reason"] == "TOKEN_MISSING"
        assert (await client.get("/api/v1")).status_code == 200


async def test_type_of_a_problem_leads_to_its_reason(client: httpx.AsyncClient) -> None:
    for answer in (await client.get(f"{SEND}/nowhere"), await client.get("/api/v1/backlog?x=1")):
        page, _, anchor = answer.json()["type"].partition("#")
        assert page == "/errors"
        assert f'id="{anchor}"' in (await client.get(page)).text


async def test_page_shows_every_operation(client: httpx.AsyncClient) -> None:
    text = (await client.get("/api/v1")).text
    for words in (
        "POST /api/v1/messages/batch",
        "DELETE /api/v1/messages/{id}",
        "Idempotency-Key",
        'id="MessageFields"',
    ):
        assert words in text
