"""ReceiveStream of the fake gateway: what its Receive and Ack do, in a stream."""

import asyncio
from typing import TYPE_CHECKING

from duetime.v1 import consumer_pb2, leases_pb2
from duetime_core.calls import fault_of
from duetime_core.errors import DueTimeError
from duetime_core.leasestreams import Answer, LeaseStream
from duetime_format import receipts
from duetime_format.ranges import offsets_of, ranges

if TYPE_CHECKING:
    from tests.sdk.fake_groups import FakeGroups


class FakeStream(LeaseStream):
    """One stream. Its faults are those of Receive and Ack."""

    def __init__(self, groups: "FakeGroups") -> None:
        super().__init__()
        self._groups = groups
        self._subscription = consumer_pb2.ReceiveRequest()
        self._acks: set[asyncio.Task[None]] = set()

    async def subscribe(self, subscription: consumer_pb2.ReceiveRequest) -> None:
        self._subscription = subscription

    def begun(self) -> None:
        pass

    def ack(self, ack: leases_pb2.AckLeases) -> None:
        task = asyncio.create_task(self._ack(ack))
        self._acks.add(task)
        task.add_done_callback(self._acks.discard)

    async def _ack(self, ack: leases_pb2.AckLeases) -> None:
        answer = leases_pb2.Acked(number=ack.number)
        try:
            for one in ack.leases:
                offsets = offsets_of(one.offsets)
                statuses = await self._groups.acknowledge(receipts.of_lease(one.lease, offsets))
                for status in set(statuses) - {0}:
                    late = [offset for offset, of_it in zip(offsets, statuses, strict=True) if of_it == status]
                    messages = leases_pb2.LeaseOffsets(lease=one.lease, offsets=ranges(late))
                    answer.rest.add(status=status, messages=messages)
        except DueTimeError as error:
            answer.fault.CopyFrom(fault_of(error))
        self.put_acked(answer)

    async def take(self, take: leases_pb2.Take) -> Answer:
        request = consumer_pb2.ReceiveRequest()
        request.CopyFrom(self._subscription)
        request.max_count, request.max_bytes, request.wait_ms = take.max_count, take.max_bytes, take.wait_ms
        response = await self._groups.give(request)
        taken = leases_pb2.Taken(number=take.number)
        for run in response.runs:
            names = [receipts.parse(receipt) for receipt in run.receipts]
            offsets = ranges([name.offset for name in names if name])
            taken.runs.add(
                topic=run.topic,
                queue=run.queue,
                records=run.records,
                lease=leases_pb2.LeaseOffsets(lease=run.receipts[0][: receipts.LEASE_BYTES], offsets=offsets),
                attempts=run.attempts,
                lease_ends_at_ms=run.lease_ends_at_ms,
            )

        def done(written: bool) -> None:
            if not written:
                self._groups.take_back([receipt for run in response.runs for receipt in run.receipts])

        return Answer(taken, sum(len(run.records) for run in response.runs), done)
