"""Signatures, rights and quotas of RocketMQ's clients."""

import base64
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from duetime.v1 import gateway_pb2, quotas_pb2
from duetime_core.metadata import users as table
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

from tests.gateway.conftest import Gateway, real_store
from tests.gateway.people import DATE_TIME, People, shown, signed
from tests.gateway.test_audit import events
from tests.rocketmq.raw import BILLING, ORDERS, Raw, message

KEY = base64.b64encode(secrets.token_bytes(32)).decode()


class Office:
    """A gateway that authenticates callers, and the keys of its users."""

    def __init__(self, gateway: Gateway, people: People, root: object) -> None:
        self.gateway = gateway
        self.people = people
        # An admin's token.
        self.root = root

    async def hire(self, name: str, *grants: str) -> tuple[str, str]:
        """A user with these rights: access key and secret."""
        await self.people.add(name, *grants)
        return await self.people.add_key(name, KEY)

    def client(self, access_key: str, secret: str) -> Raw:
        return Raw(self.gateway.channel, self.gateway.node.port, more=signed(access_key, secret))


@pytest.fixture
async def office(tmp_path: Path) -> AsyncIterator[Office]:
    async with (
        People(f"sqlite:///{tmp_path / 'meta.db'}") as people,
        real_store(tmp_path) as store,
        Gateway(tmp_path, {0: store.port}, auth="required", secrets_key=KEY) as gateway,
    ):
        root = await people.add("root", "admin")
        create = gateway_pb2.CreateTopicRequest(name="orders")
        await gateway.stub.CreateTopic(create, metadata=shown(root), timeout=60)
        yield Office(gateway, people, root)


async def test_a_signed_call_has_its_user_s_rights(office: Office) -> None:
    sender = office.client(*await office.hire("sender", "send topic orders"))
    assert (await sender.send(message())).status.code == pb.OK
    assert (await sender.call("Heartbeat")).status.code == pb.OK
    (refused,) = await sender.frames()
    assert refused.status.code == pb.FORBIDDEN
    assert "no right to receive" in refused.status.message
    half = await sender.send(message(message_type=pb.TRANSACTION))
    assert half.status.code == pb.FORBIDDEN
    receiver = office.client(*await office.hire("receiver", "receive topic orders", "receive group billing"))
    assert len(await receiver.receive()) == 1
    assert (await receiver.send(message())).status.code == pb.FORBIDDEN
    assert (await receiver.call("QueryRoute", topic=ORDERS, endpoints=receiver.endpoints)).status.code == pb.OK


async def test_a_missing_or_wrong_signature_has_a_code(office: Office) -> None:
    access_key, secret = await office.hire("sender", "send topic orders")
    channel, port = office.gateway.channel, office.gateway.node.port
    wrong = [
        (),
        signed(access_key, secret + "x"),
        signed("f" * 24, secret),
        (("x-mq-date-time", DATE_TIME), ("authorization", "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time")),
        (("authorization", "Bearer dt_x"),),
    ]
    for metadata in wrong:
        client = Raw(channel, port, more=metadata)
        assert (await client.send(message())).status.code == pb.UNAUTHORIZED, metadata
        (frame,) = await client.frames()
        assert frame.status.code == pb.UNAUTHORIZED
        assert (await client.telemetry().read()).status.code == pb.UNAUTHORIZED
        assert (await client.change("h", 1)).receipt_handle == "h"


async def test_a_key_that_was_deleted_counts_no_more(office: Office) -> None:
    access_key, secret = await office.hire("sender", "send topic orders")
    client = office.client(access_key, secret)
    assert (await client.send(message())).status.code == pb.OK
    await office.people.change(lambda session: table.delete_key(session, access_key))
    await office.gateway.node.parts.access.book.refresh()
    assert (await client.send(message(number=2))).status.code == pb.UNAUTHORIZED


async def test_a_namespace_s_topics_are_granted_by_their_stored_names(office: Office) -> None:
    credentials = await office.hire("shop", "send topic shop%*", "receive topic shop%*", "receive group shop%*")
    client = Raw(
        office.gateway.channel, office.gateway.node.port, more=(("x-mq-namespace", "shop"), *signed(*credentials))
    )
    assert (await client.send(message())).status.code == pb.TOPIC_NOT_FOUND
    assert (await office.client(*credentials).send(message())).status.code == pb.FORBIDDEN


async def test_refusals_are_in_the_audit_log(office: Office) -> None:
    sender = office.client(*await office.hire("sender", "send topic orders"))
    assert (await sender.call("AckMessage", group=BILLING, topic=ORDERS)).status.code == pb.FORBIDDEN
    stranger = Raw(office.gateway.channel, office.gateway.node.port)
    assert (await stranger.call("Heartbeat")).status.code == pb.UNAUTHORIZED
    found = await events(office.gateway, 3, shown(office.root))
    assert [(one.method.partition("/")[2], one.user, one.status, one.reason) for one in reversed(found)][1:] == [
        ("AckMessage", "sender", "PERMISSION_DENIED", "RIGHT_MISSING"),
        ("Heartbeat", "", "UNAUTHENTICATED", "SIGNATURE_INVALID"),
    ]


async def test_quotas_are_reported_as_too_many_requests(gateway: Gateway, raw: Raw) -> None:
    quota = quotas_pb2.Quota(of=quotas_pb2.QuotaOf(topic="orders"), messages_per_s=1, burst_messages=2)
    await gateway.stub.SetQuota(quotas_pb2.SetQuotaRequest(quota=quota), timeout=60)
    found = {(await raw.send(message(number=number))).status.code for number in range(10)}
    assert found == {pb.OK, pb.TOO_MANY_REQUESTS}
