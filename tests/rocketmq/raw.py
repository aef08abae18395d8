"""A client of RocketMQ's protocol by raw stubs: it shows details hidden by clients."""

import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
from duetime.v1 import gateway_pb2, gateway_pb2_grpc
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

SERVICE = "/apache.rocketmq.v2.MessagingService/"
ORDERS, BILLING = pb.Resource(name="orders"), pb.Resource(name="billing")
Metadata = tuple[tuple[str, str], ...]


def new_id(number: int = 1) -> str:
    """As clients make them: 34 hex digits."""
    return f"01A2B3C4D5E6F7{number:020X}"


def message(body: bytes = b"body", number: int = 1, topic: Any = ORDERS, **system: Any) -> Any:
    made = pb.Message(topic=topic, body=body)
    made.system_properties.message_id = new_id(number)
    for name, value in system.items():
        if name == "delivery_ms":
            seconds, rest_ms = divmod(value, 1_000)
            made.system_properties.delivery_timestamp.seconds = seconds
            made.system_properties.delivery_timestamp.nanos = rest_ms * 1_000_000
        elif name == "keys":
            made.system_properties.keys.extend(value)
        else:
            setattr(made.system_properties, name, value)
    return made


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Raw:
    """One client."""

    def __init__(self, channel: grpc.aio.Channel, port: int, client_id: str = "client", more: Metadata = ()) -> None:
        self.channel = channel
        # The tap before the store, if the fixture has one.
        self.tap: Any = None
        self.endpoints = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="127.0.0.1", port=port)])
        self.metadata = (("x-mq-client-id", client_id), *more) if client_id else more

    async def make_topic(self, name: str = "orders", **fields: Any) -> None:
        stub = gateway_pb2_grpc.GatewayStub(self.channel)
        await stub.CreateTopic(gateway_pb2.CreateTopicRequest(name=name, **fields), timeout=60)

    async def call(self, name: str, request: Any = None, *, timeout: float = 60, **fields: Any) -> Any:
        make = self.channel.unary_unary(
            SERVICE + name,
            request_serializer=lambda one: one.SerializeToString(),
            response_deserializer=getattr(pb, f"{name}Response").FromString,
        )
        request = getattr(pb, f"{name}Request")(**fields) if request is None else request
        return await make(request, metadata=self.metadata, timeout=timeout)

    async def send(self, *messages: Any) -> Any:
        return await self.call("SendMessage", messages=messages)

    async def send_ok(self, *messages: Any) -> Any:
        answer = await self.send(*messages)
        assert answer.status.code == pb.OK, answer.status
        return list(answer.entries)

    async def frames(self, timeout: float = 60, **fields: Any) -> list[Any]:
        """Frames of a ReceiveMessage answer."""
        return [frame async for frame in self.receiving(timeout, **fields)]

    def receiving(self, timeout: float | None = 60, **fields: Any) -> Any:
        make = self.channel.unary_stream(
            SERVICE + "ReceiveMessage",
            request_serializer=lambda one: one.SerializeToString(),
            response_deserializer=pb.ReceiveMessageResponse.FromString,
        )
        return make(self.receive_request(**fields), metadata=self.metadata, timeout=timeout)

    def receive_request(
        self,
        topic: Any = ORDERS,
        group: Any = BILLING,
        batch_size: int = 8,
        invisible_ms: int | None = 30_000,
        wait_ms: int | None = 5_000,
        **fields: Any,
    ) -> Any:
        request = pb.ReceiveMessageRequest(group=group, batch_size=batch_size, **fields)
        request.message_queue.topic.CopyFrom(topic)
        for field, value in (("invisible_duration", invisible_ms), ("long_polling_timeout", wait_ms)):
            if value is not None and not (field == "invisible_duration" and request.auto_renew):
                getattr(request, field).seconds, rest_ms = divmod(value, 1_000)
                getattr(request, field).nanos = rest_ms * 1_000_000
        return request

    async def receive(self, timeout: float = 60, **fields: Any) -> list[Any]:
        """The messages of a ReceiveMessage."""
        frames = await self.frames(timeout, **fields)
        assert frames[0].status.code in (pb.OK, pb.MESSAGE_NOT_FOUND), frames[0].status
        return [frame.message for frame in frames if frame.WhichOneof("content") == "message"]

    async def ack(self, *messages: Any, group: Any = BILLING) -> Any:
        entries = [
            pb.AckMessageEntry(
                message_id=one.system_properties.message_id, receipt_handle=one.system_properties.receipt_handle
            )
            for one in messages
        ]
        return await self.call("AckMessage", group=group, topic=ORDERS, entries=entries)

    async def change(self, handle: str, length_ms: int, group: Any = BILLING, **fields: Any) -> Any:
        request = pb.ChangeInvisibleDurationRequest(group=group, topic=ORDERS, receipt_handle=handle, **fields)
        request.invisible_duration.seconds, rest_ms = divmod(length_ms, 1_000)
        request.invisible_duration.nanos = rest_ms * 1_000_000
        return await self.call("ChangeInvisibleDuration", request)

    def telemetry(self) -> "Stream":
        return Stream(self)

    def producer_settings(self, *topics: str) -> Any:
        settings = pb.Settings(client_type=pb.PRODUCER, access_point=self.endpoints)
        settings.publishing.topics.extend(pb.Resource(name=topic) for topic in topics)
        settings.publishing.SetInParent()
        return settings

    def consumer_settings(self, group: str = "billing", kind: int = pb.PUSH_CONSUMER) -> Any:
        settings = pb.Settings(client_type=kind, access_point=self.endpoints)
        settings.subscription.group.name = group
        return settings


class Stream:
    """One stream of Telemetry."""

    def __init__(self, raw: Raw) -> None:
        make = raw.channel.stream_stream(
            SERVICE + "Telemetry",
            request_serializer=lambda one: one.SerializeToString(),
            response_deserializer=pb.TelemetryCommand.FromString,
        )
        self.call = make(metadata=raw.metadata, timeout=60)

    async def say(self, settings: Any) -> Any:
        """The answer to settings."""
        await self.call.write(pb.TelemetryCommand(settings=settings))
        return await self.read()

    async def read(self) -> Any:
        return await self.call.read()

    async def checks(self) -> AsyncIterator[Any]:
        """Checks of transactions; settings that are repeated meanwhile are left out."""
        while (command := await self.read()) is not grpc.aio.EOF:
            if command.WhichOneof("command") == "recover_orphaned_transaction_command":
                yield command.recover_orphaned_transaction_command
