"""The gateway of a real cluster, with a journal of leases: messages given, acknowledged, failed, given back."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from duetime import ReceivedMessage
from duetime.client.record import split_records
from duetime.v1 import consumer_pb2, leases_pb2
from duetime_core.errors import DueTimeError
from duetime_core.rpc.calls import fault_of
from duetime_core.testing import LocalCluster
from duetime_format import receipts
from duetime_format.ranges import offsets_of

from tests.sdk.gateway import Gateway

T = TypeVar("T")
OK = consumer_pb2.RECEIPT_STATUS_OK
CALLS = ("Receive", "Ack", "Nack", "ChangeInvisible", "ListGroups")


class Groups(Gateway):
    """`log` has the node's answers, as (call, body of the message)."""

    def __init__(self, nodes: LocalCluster) -> None:
        super().__init__(nodes)
        self.watch = self._watch
        self.instead["ReceiveStream"] = self._fail_in_stream
        for call in CALLS:
            self.before[call] = lambda _, call=call: self._fail(call)  # type: ignore[misc]
        self.log: list[tuple[str, bytes]] = []
        # Messages by receipt, as known from calls: an expired lease stays.
        self.leases: dict[bytes, ReceivedMessage] = {}
        self.receives: list[consumer_pb2.ReceiveRequest] = []
        # How many calls of each name came; those in streams, too.
        self.calls: defaultdict[str, int] = defaultdict(int)
        # Errors for the next calls, which then do not reach the node; None: this one passes.
        self.faults: defaultdict[str, deque[DueTimeError | None]] = defaultdict(deque)
        self._bodies: dict[bytes, ReceivedMessage] = {}

    @property
    def nacks(self) -> list[consumer_pb2.NackRequest]:
        return self.requests["Nack"]

    @property
    def moves(self) -> list[consumer_pb2.ChangeInvisibleRequest]:
        return self.requests["ChangeInvisible"]

    @property
    def stream_count(self) -> int:
        """How many streams were opened."""
        return len(self.remaining["ReceiveStream"])

    def bodies(self, call: str) -> list[bytes]:
        return [body for name, body in self.log if name == call]

    def body_of(self, receipt: bytes) -> bytes:
        return self._bodies[receipt].body

    async def fill(self, topic: str, count: int, queue: int = 0, **fields: Any) -> list[bytes]:
        """Messages `0`, `1`, ... with ids `id-0`, ...; those of other queues than 0 have ids of their own."""
        await self.make_topic(topic, 2)
        bodies = [b"%d" % n for n in range(count)]
        await self.put(topic, *bodies, queue=queue, ids="id-%d" if queue == 0 else f"id-{queue}-%d", **fields)
        return bodies

    async def advance(self, by: str | float) -> None:
        """Moves the nodes' clock; due messages are delivered, and leases end."""
        await asyncio.to_thread(self.nodes.advance, by)

    async def after_waits(self, receiving: "asyncio.Task[T]") -> T:
        """The result of a receive that waits for nothing: the clock moves until the wait is over."""
        while not receiving.done():
            await self.advance("1s")
        return await receiving

    # --- faults -----------------------------------------------------------------------------------------------------

    def _fail(self, call: str) -> None:
        if self.faults[call] and (fault := self.faults[call].popleft()) is not None:
            raise fault

    def _fail_in_stream(self, request: leases_pb2.ReceiveStreamRequest) -> leases_pb2.ReceiveStreamResponse | None:
        answer = leases_pb2.ReceiveStreamResponse()
        for call, asked, answers in (("Ack", request.acks, answer.acked), ("Receive", request.takes, answer.taken)):
            for n in reversed(range(len(asked))):
                if self.faults[call] and (fault := self.faults[call].popleft()) is not None:
                    answers.add(number=asked[n].number, fault=fault_of(fault))
                    del asked[n]
        return answer if answer.ByteSize() else None

    # --- the journal --------------------------------------------------------------------------------------------------

    def _watch(self, method: str, sent: list[Any], answer: Any) -> None:
        if answer is None:
            self._note_request(method, sent)
        elif (note := getattr(self, f"_note_{method}", None)) is not None:
            note(sent, answer)

    def _note_request(self, method: str, sent: list[Any]) -> None:
        request = sent[-1]
        if method == "ReceiveStream":
            self.calls["Ack"] += len(request.acks)
            for take in request.takes:
                self.calls["Receive"] += 1
                self.receives.append(_received(sent[0].subscription, take))
            return
        self.calls[method] += 1
        if method == "Receive":
            self.receives.append(request)

    def _note_Receive(self, _sent: Sequence[Any], answer: consumer_pb2.ReceiveResponse) -> None:
        for run in answer.runs:
            self._note_leases(run.receipts, run.records)

    def _note_ReceiveStream(self, sent: Sequence[Any], answer: leases_pb2.ReceiveStreamResponse) -> None:
        for taken in answer.taken:
            for run in taken.runs:
                self._note_leases(_receipts_of(run.lease), run.records)
        for acked in answer.acked:
            (ack,) = [one for request in sent for one in request.acks if one.number == acked.number]
            rest = {receipt for one in acked.rest for receipt in _receipts_of(one.messages)}
            if not acked.HasField("fault"):
                self._note_ends("ack", (one for lease in ack.leases for one in _receipts_of(lease) if one not in rest))

    def _note_leases(self, given: Sequence[bytes], records: bytes) -> None:
        for receipt, message in zip(given, split_records(records), strict=True):
            self.leases[receipt] = self._bodies[receipt] = message
            self.log.append(("receive", message.body))

    def _note_Ack(self, sent: Sequence[Any], answer: consumer_pb2.AckResponse) -> None:
        self._note_ends("ack", _done(sent[0].receipts, answer.statuses))

    def _note_Nack(self, sent: Sequence[Any], answer: consumer_pb2.NackResponse) -> None:
        for nack, result in zip(sent[0].nacks, answer.results, strict=True):
            if result.status == OK and not result.HasField("fault"):
                self._note_ends("dead" if result.dead else "nack", [nack.receipt])

    def _note_ChangeInvisible(self, sent: Sequence[Any], answer: consumer_pb2.ChangeInvisibleResponse) -> None:
        (request,) = sent
        if request.invisible_ms:
            done = _done(request.receipts, answer.statuses)
            self.log += [("extend", self._bodies[receipt].body) for receipt in done]
        else:
            call = "return" if request.not_attempted else "break off"
            self._note_ends(call, _done(request.receipts, answer.statuses))

    def _note_ends(self, call: str, done: Any) -> None:
        for receipt in done:
            self.leases.pop(receipt, None)
            self.log.append((call, self._bodies[receipt].body))


def _received(subscription: consumer_pb2.ReceiveRequest, take: leases_pb2.Take) -> consumer_pb2.ReceiveRequest:
    request = consumer_pb2.ReceiveRequest()
    request.CopyFrom(subscription)
    request.max_count, request.max_bytes, request.wait_ms = take.max_count, take.max_bytes, take.wait_ms
    return request


def _receipts_of(lease: leases_pb2.LeaseOffsets) -> list[bytes]:
    return receipts.of_lease(lease.lease, offsets_of(lease.offsets))


def _done(given: Sequence[bytes], statuses: Sequence[int]) -> Iterator[bytes]:
    for n, receipt in enumerate(given):
        if not statuses or statuses[n] == OK:
            yield receipt
