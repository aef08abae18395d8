"""Contents of a cluster under view: messages of all states, put there through its gateway."""

from typing import Any

from duetime import AsyncProducer, Message
from duetime.v1 import consumer_pb2, gateway_pb2, gateway_pb2_grpc, message_pb2, transactions_pb2
from duetime_core.rpc.serving import make_channel

ORDERS, REMINDERS = "orders", "reminders"
BILLING, SHIPPING, SHOP = "billing", "shipping", "shop"
SCRIPT = b"<script>document.title = 'hacked'</script><img src=x onerror=\"document.title = 'hacked'\">"
TRACE = """Traceback (most recent call last):
  File "/srv/billing/worker.py", line 31, in charge
    bank.charge(order)
  File "/srv/billing/bank.py", line 112, in _post
    raise {kind}({text!r})
"""
# Leases that outlive every test, and every wait of a page.
LEASE_MS = 3_600_000


class Traffic:
    """Sends, receives and fails messages of a running cluster; `async with`."""

    def __init__(self, address: str, token: str = "") -> None:
        self.address = address
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._token = token

    async def __aenter__(self) -> "Traffic":
        self._channel = make_channel(self.address)
        self._stub: Any = gateway_pb2_grpc.GatewayStub(self._channel)  # type: ignore[no-untyped-call]
        self._producer = AsyncProducer(self.address, **({"token": self._token} if self._token else {}))
        await self._producer.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._producer.__aexit__(*error)
        await self._channel.close()

    async def call(self, method: str, request: Any) -> Any:
        return await getattr(self._stub, method)(request, timeout=60, metadata=self._metadata)

    async def drain(self, method: str, request: Any) -> int:
        """The number of answers of a stream, which is read to its end."""
        return len([one async for one in getattr(self._stub, method)(request, timeout=60, metadata=self._metadata)])

    async def send(self, topic: str, count: int, **fields: Any) -> list[str]:
        """The ids of messages that are alike."""
        messages = [
            Message(topic, b'{"order": %d}' % number, keys=[f"order-{number}"], **fields) for number in range(count)
        ]
        return [receipt.message_id for receipt in await self._producer.send_many(messages)]

    async def send_one(self, topic: str, body: bytes, **fields: Any) -> str:
        return (await self._producer.send(topic, body, **fields)).message_id

    async def receive(self, group: str, topic: str, count: int) -> list[Any]:
        """Leased for an hour."""
        found: list[Any] = []
        while len(found) < count:
            request = consumer_pb2.ReceiveRequest(
                group=group,
                topic=topic,
                max_count=count - len(found),
                invisible_ms=LEASE_MS,
                member=f"{group}-worker-1",
            )
            more = (await self.call("Receive", request)).messages
            assert more, f"{topic} has only {len(found)} messages for {group}"
            found += more
        return found

    async def ack(self, group: str, messages: list[Any]) -> None:
        await self.call("Ack", consumer_pb2.AckRequest(group=group, receipts=[one.receipt for one in messages]))

    async def reject(self, group: str, messages: list[Any], kind: str, text: str) -> None:
        """They become dead letters, with an error of this kind."""
        nacks = [
            consumer_pb2.Nack(
                receipt=one.receipt,
                reject=True,
                error=consumer_pb2.HandlerError(
                    type=kind, message=text.format(number=number), trace=TRACE.format(kind=kind, text=text)
                ),
            )
            for number, one in enumerate(messages)
        ]
        answer = await self.call("Nack", consumer_pb2.NackRequest(group=group, nacks=nacks))
        assert all(one.dead for one in answer.results)

    async def kill(
        self, group: str, topic: str, count: int, kind: str, text: str = "order {number} is refused"
    ) -> list[str]:
        """Sends messages to a topic that the group has read, and makes dead letters of them."""
        sent = await self.send(topic, count)
        await self.reject(group, await self.receive(group, topic, count), kind, text)
        return sent

    async def fail(self, group: str, topic: str, *ids: str, delay_ms: int, kind: str = "TimeoutError") -> None:
        """Sends messages with these ids to a topic that the group has read; they fail, and wait for a retry."""
        for name in ids:
            await self.send_one(topic, b"x", id=name)
        error = consumer_pb2.HandlerError(type=kind, message="<b>bank</b>")
        leased = await self.receive(group, topic, len(ids))
        nacks = [consumer_pb2.Nack(receipt=one.receipt, delay_ms=delay_ms, error=error) for one in leased]
        await self.call("Nack", consumer_pb2.NackRequest(group=group, nacks=nacks))

    async def prepare(self, group: str, topic: str, count: int) -> list[str]:
        """Ids of transactions that stay open."""
        messages = [message_pb2.Message(topic=topic, body=b"half %d" % number) for number in range(count)]
        answer = await self.call("Prepare", transactions_pb2.PrepareRequest(group=group, messages=messages))
        return [one.transaction_id for one in answer.results]

    async def create_topic(self, name: str, queues: int = 4) -> None:
        await self.call("CreateTopic", gateway_pb2.CreateTopicRequest(name=name, queue_count=queues))

    async def fill(self) -> None:
        """A shop's day: dead letters of two kinds, leases, lag, pending ones in lanes of levels and for any time, a
        script for a body, and transactions that nobody ended."""
        for topic in (ORDERS, REMINDERS):
            await self.create_topic(topic)
        await self.kill(BILLING, ORDERS, 12, "PaymentRefused")
        await self.kill(BILLING, ORDERS, 5, "TimeoutError", "bank answered nothing within 30 s")
        await self.send(ORDERS, 20, tags="paid", properties={"color": "red"})
        await self.receive(BILLING, ORDERS, 4)
        await self.ack(SHIPPING, await self.receive(SHIPPING, ORDERS, 10))
        for delay, count in (("1m", 8), ("30m", 6), ("1h", 4)):
            await self.send(REMINDERS, count, delay=delay)
        for delay in ("90s", "17m", "5h", "30h", "9d", "100d", "2000d"):
            await self.send(REMINDERS, 3, delay=delay)
        await self.send_one(REMINDERS, SCRIPT, id="with-a-script", keys=["script"], delay="3h")
        await self.prepare(SHOP, ORDERS, 3)
