"""Users at work, by the SDK and by calls: each gets their rights, and refused requests harm nothing."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from duetime import (
    AsyncProducer,
    AsyncPuller,
    AsyncReceiver,
    AsyncSchedules,
    Consumer,
    Message,
    PermissionDenied,
    Schedule,
    ScheduleDefinition,
)
from duetime.cli.app import run
from duetime.client.tokens import TOKEN_VARIABLE
from duetime.v1 import audit_pb2, consumer_pb2, gateway_pb2, transactions_pb2
from duetime_gateway.packing.sends import EncodedRequest

from tests.gateway.conftest import Gateway, error_of, message, real_store, request
from tests.gateway.people import People, reason_of, shown


class Site:
    """A gateway, its users, and its address."""

    def __init__(self, people: People, gateway: Gateway) -> None:
        self.people = people
        self.gateway = gateway
        self.address = f"127.0.0.1:{gateway.node.port}"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with (
        People(f"sqlite:///{tmp_path / 'meta.db'}") as people,
        real_store(tmp_path) as store,
        Gateway(tmp_path, {0: store.port}, auth="required") as gateway,
    ):
        yield Site(people, gateway)


async def test_producers_and_consumers_work_with_no_more_than_their_rights(site: Site) -> None:
    sender = str(await site.people.add("sender", "send topic orders*"))
    reader = str(await site.people.add("reader", "receive topic orders", "receive group billing"))
    handled: list[bytes] = []
    async with AsyncProducer(site.address, token=sender) as producer:
        # The first round creates the topic, the second uses it: drafts, messages and a pack.
        for _ in range(2):
            await producer.send("orders", b"one")
        for outcome in await producer.send_many([Message("orders", b"packed")] * 32):
            assert outcome.message_id
        with pytest.raises(PermissionDenied):
            await producer.send("secrets", b"one")
        with pytest.raises(PermissionDenied):
            await producer.send_batch("secrets", [b"one", b"two"])
        await producer.send_batch("orders", [b"one", b"two"])
    async with AsyncPuller(site.address, "orders", token=reader) as puller:
        assert [one.body async for one in _first(puller, 36)].count(b"packed") == 32
    async with AsyncPuller(site.address, "orders", token=sender) as puller:
        with pytest.raises(PermissionDenied):
            assert [one async for one in _first(puller, 1)]
    consumer = Consumer(site.address, group="billing", token=reader)

    @consumer.handler("orders")
    async def handle(one: object) -> None:
        handled.append(one.body)  # type: ignore[attr-defined]
        if len(handled) == 36:
            consumer.stop()

    await asyncio.wait_for(consumer.run_async(), 60)
    assert len(handled) == 36
    async with AsyncReceiver(site.address, "orders", group="other", token=reader) as receiver:
        with pytest.raises(PermissionDenied):
            await receiver.receive(wait="0s")


async def test_pull_command_reports_a_missing_right_on_an_empty_topic_too(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, str(await site.people.add("sender", "send topic orders", "manage topic orders")))
    async with AsyncProducer(site.address) as producer:
        await producer.send("orders", b"due later", delay="1h")
        for _ in range(2):
            assert await asyncio.to_thread(run, ["pull", "orders", "--server", site.address]) == 1
            assert "has no right" in capsys.readouterr().err
            await producer.send("orders", b"now")


async def _first(puller: AsyncPuller, count: int) -> AsyncIterator[object]:
    async for one in puller:
        yield one
        count -= 1
        if not count:
            return


async def test_messages_without_a_right_are_faults_and_others_are_stored(site: Site) -> None:
    token = await site.people.add("sender", "send topic orders", "send topic invoices")
    topics = ["orders", "secrets", "invoices", "orders"]
    for _ in range(3):
        answer = await site.gateway.stub.Send(
            request(*(message(topic=topic) for topic in topics)), metadata=shown(token), timeout=60
        )
        faults = [one.fault.reason for one in answer.results]
        assert faults == ["", "RIGHT_MISSING", "", ""]
    admin = shown(await site.people.add("ops", "admin"))
    listed = await site.gateway.stub.ListTopics(gateway_pb2.ListTopicsRequest(), metadata=admin, timeout=60)
    assert {topic.name for topic in listed.topics} == {"orders", "invoices"}


async def test_user_without_a_right_is_refused_a_topic_in_use(site: Site) -> None:
    """The gateway knows its route, and packs others' requests by it."""
    admin = shown(await site.people.add("ops", "admin"))
    token = await site.people.add("sender", "send topic orders")
    stub = site.gateway.stub
    for topic in ("orders", "secrets", "orders", "secrets"):
        answer = await stub.Send(request(message(topic=topic)), metadata=admin, timeout=60)
        assert not answer.results[0].HasField("fault")
    for _ in range(2):
        for topic, reason in (("orders", ""), ("secrets", "RIGHT_MISSING")):
            answer = await stub.Send(
                request(message(topic=topic), message(topic=topic)), metadata=shown(token), timeout=60
            )
            assert [one.fault.reason for one in answer.results] == [reason] * 2
    pack = gateway_pb2.Pack(topic="secrets", sizes=[1, 1], bodies=b"ab", id_prefix="A" * 20)
    for metadata, reason in ((admin, ""), (shown(token), "RIGHT_MISSING")):
        answer = await stub.Send(gateway_pb2.SendRequest(packs=[pack]), metadata=metadata, timeout=60)
        assert answer.ranges[0].first.fault.reason == reason
    batch = gateway_pb2.SendBatchRequest(topic="secrets", messages=[message(topic="")])
    refused = await error_of(stub.SendBatch(batch, metadata=shown(token), timeout=60))
    assert refused.code() is grpc.StatusCode.PERMISSION_DENIED
    listed = await stub.DescribeTopic(gateway_pb2.DescribeTopicRequest(name="secrets"), metadata=admin, timeout=60)
    assert sum(queue.max_offset for queue in listed.queues) == 4


async def test_packed_requests_stay_packed_for_limited_senders(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    token = await site.people.add("sender", "send topic orders")
    calls = [site.gateway.stub.Send(request(message()), metadata=shown(token), timeout=60) for _ in range(2)]
    for call in calls:
        await call
    monkeypatch.setattr(EncodedRequest, "drafts", lambda self: pytest.fail("is read message by message"))
    answer = await site.gateway.stub.Send(request(message(), message()), metadata=shown(token), timeout=60)
    assert not any(one.HasField("fault") for one in answer.results)


async def test_lists_show_only_permitted_names(site: Site) -> None:
    admin = shown(await site.people.add("ops", "admin"))
    some = shown(await site.people.add("shop", "send topic a*", "receive group a*"))
    none = shown(await site.people.add("new"))
    stub = site.gateway.stub
    for name in ("apples", "bananas"):
        await stub.CreateTopic(gateway_pb2.CreateTopicRequest(name=name), metadata=admin, timeout=60)
        group = consumer_pb2.CreateGroupRequest(group=consumer_pb2.Group(name=name))
        await stub.CreateGroup(group, metadata=admin, timeout=60)
    for metadata, names in ((admin, ["apples", "bananas"]), (some, ["apples"]), (none, [])):
        topics = await stub.ListTopics(gateway_pb2.ListTopicsRequest(), metadata=metadata, timeout=60)
        groups = await stub.ListGroups(consumer_pb2.ListGroupsRequest(), metadata=metadata, timeout=60)
        assert [topic.name for topic in topics.topics] == names
        assert [group.name for group in groups.groups] == names


async def test_refusal_is_the_same_whether_a_topic_exists_or_not(site: Site) -> None:
    admin = shown(await site.people.add("ops", "admin"))
    token = shown(await site.people.add("shop", "receive topic other"))
    await site.gateway.stub.Send(request(message(topic="secrets")), metadata=admin, timeout=60)
    texts = set()
    for topic in ("secrets", "nothing"):
        refused = await error_of(site.gateway.stub.GetRoute(gateway_pb2.GetRouteRequest(topic=topic), metadata=token))
        texts.add((refused.code(), refused.details().replace(topic, "TOPIC")))
    assert len(texts) == 1


async def test_transactions_are_their_groups(site: Site) -> None:
    token = shown(await site.people.add("shop", "send topic orders", "send group shops"))
    stub = site.gateway.stub

    def prepare(group: str, topic: str = "orders") -> transactions_pb2.PrepareRequest:
        return transactions_pb2.PrepareRequest(group=group, messages=[message(topic=topic)])

    # Twice: the second time the group is known, and the request is packed.
    for _ in range(2):
        answer = await stub.Prepare(prepare("shops"), metadata=token, timeout=60)
        assert not answer.results[0].HasField("fault")
        for group in ("others", "shops2"):
            refused = await error_of(stub.Prepare(prepare(group), metadata=token, timeout=60))
            assert (refused.code(), reason_of(refused)) == (grpc.StatusCode.PERMISSION_DENIED, "RIGHT_MISSING")
    other = await stub.Prepare(prepare("shops", "secrets"), metadata=token, timeout=60)
    assert other.results[0].fault.reason == "RIGHT_MISSING"
    end = transactions_pb2.TransactionEnd(
        transaction_id=answer.results[0].transaction_id, decision=transactions_pb2.DECISION_COMMIT
    )
    for given_up, code in ((True, grpc.StatusCode.PERMISSION_DENIED), (False, None)):
        ending = transactions_pb2.EndTransactionRequest(group="shops", ends=[end], given_up=given_up)
        call = stub.EndTransaction(ending, metadata=token, timeout=60)
        if code is not None:
            assert (await error_of(call)).code() is code
        else:
            assert (await call).results[0].state == transactions_pb2.TRANSACTION_STATE_COMMITTED


async def test_group_of_a_prepare_is_checked_when_another_has_made_it_known(site: Site) -> None:
    owner = shown(await site.people.add("owner", "send topic orders", "send group shops"))
    other = shown(await site.people.add("other", "send topic orders", "send group mine"))

    def prepare(group: str) -> transactions_pb2.PrepareRequest:
        return transactions_pb2.PrepareRequest(group=group, messages=[message()])

    # Both groups and the topic are known, so that requests are packed.
    for _ in range(2):
        await site.gateway.stub.Prepare(prepare("shops"), metadata=owner, timeout=60)
        await site.gateway.stub.Prepare(prepare("mine"), metadata=other, timeout=60)
    refused = await error_of(site.gateway.stub.Prepare(prepare("shops"), metadata=other, timeout=60))
    assert refused.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_schedules_of_other_topics_are_refused_one_by_one(site: Site) -> None:
    sender, admin = await site.people.add("sender", "send topic orders*"), await site.people.add("root", "admin")
    topics = ("orders", "secrets", "orders-eu", "others")
    definitions = [ScheduleDefinition("hourly", Message(topic, b"x"), every="1h") for topic in topics]
    async with AsyncSchedules(site.address, token=str(sender)) as schedules:
        outcomes = await schedules.put_all(definitions, errors="return")
        assert [isinstance(one, Schedule) for one in outcomes] == [True, False, True, False]
        assert {type(one) for one in outcomes[1::2]} == {PermissionDenied}
        assert [one.name async for one in schedules.list("orders")] == ["hourly"]
        none = [ScheduleDefinition("hourly", Message("secrets", b"x"), every="1h")]
        assert type((await schedules.put_all(none, errors="return"))[0]) is PermissionDenied
    wanted = audit_pb2.ListAuditEventsRequest()
    async with asyncio.timeout(60):
        while True:
            found = await site.gateway.stub.ListAuditEvents(wanted, metadata=shown(admin), timeout=60)
            refused = {one.resource for one in found.events if one.user == "sender" and one.reason == "RIGHT_MISSING"}
            if len(refused) == 2:
                break
    assert refused == {"topic others and 1 more", "topic secrets"}
