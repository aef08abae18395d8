"""The rooms inside the gateway serve a face without a message of `duetime.v1`: drafts in, outcomes out, and leases."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from duetime_core.errors import InvalidArgument, NotFound, Unavailable
from duetime_format import record
from duetime_format.admission import Draft
from duetime_format.making import RecordMaker, topic_field
from duetime_format.properties import encode_properties
from duetime_gateway.parts import GatewayParts
from duetime_gateway.queries import Encoding, Extension, LeaseStatus, Position, Pull, Receive, Selection
from duetime_gateway.sending.drafts import Caller, DraftList, Drafts, EncodingRules
from duetime_gateway.sending.outcomes import AllStored, SendOutcomes
from duetime_gateway.shards.contract import receipts_of
from duetime_gateway.shards.route import Route
from duetime_gateway.transactions.columns import EndColumns
from duetime_gateway.transactions.ending import EndDecision
from duetime_gateway.transactions.names import TransactionName

from tests.gateway.conftest import Gateway

CALLER = Caller("somebody", record.host_bytes("192.0.2.1", 5), remaining_ms=10_000)


@pytest.fixture
def parts(gateway: Gateway) -> GatewayParts:
    """Of a gateway with one real store; nobody calls its face."""
    return gateway.node.parts


@dataclass(frozen=True, slots=True)
class Drafted:
    """A request of another protocol without a packer: to send, or to prepare transactions."""

    drafts_: Sequence[Draft]
    size: int = 0
    is_batch: bool = False

    def pack(self, rules: EncodingRules, routes: dict[str, Route], arrived_at_ms: int, born_host: bytes) -> None:
        return None

    def drafts(self) -> Drafts:
        return DraftList(self.drafts_)

    def transactions(self) -> tuple[str, int]:
        return "billing", 0


async def send(parts: GatewayParts, *drafts: Draft) -> SendOutcomes:
    outcome = await (await parts.sender.begin(Drafted(drafts), CALLER)).outcome()
    assert isinstance(outcome, SendOutcomes)
    return outcome


async def receive(parts: GatewayParts, **selected: int) -> bytes:
    return await parts.leases.receive(Receive("billing", "orders", Selection(**selected)), 10_000, CALLER.peer)


async def test_drafts_have_an_outcome_each(parts: GatewayParts) -> None:
    outcomes = await send(
        parts,
        Draft("orders", b"a", id="one", queue=2),
        Draft("orders", b"b", tags="x|y", id="two"),
        Draft("orders", b"c", id="three", delay_level=99),
        Draft("orders", b"d", id="one"),
    )
    assert outcomes.ids == ["one", "two", "three", "one"]
    assert [outcomes.queues[index] for index in (0, 3)] == [2, 2]
    assert outcomes.offsets == [0, -1, 0, 0]
    assert outcomes.levels == [0, 0, 18, 0]
    assert outcomes.due_at_ms[2] > 0
    assert outcomes.requested_levels == {2: 99}
    assert outcomes.duplicates == {3}
    fault = outcomes.faults[1]
    assert isinstance(fault, InvalidArgument)
    assert [violation.field for violation in fault.violations] == ["tags"]
    again = await send(parts, Draft("orders", b"a", id="one", queue=2))
    assert (again.offsets, again.duplicates) == ([0], {0})


async def test_sent_messages_are_pulled_and_offsets_kept(parts: GatewayParts) -> None:
    await send(parts, *(Draft("orders", b"body-%d" % number, queue=0) for number in range(3)))
    pull = Pull("orders", Position(0, 1), Selection(encoding=Encoding.RECORDS))
    answer = await parts.puller.pull(pull, None)
    assert [b"body-%d" % number in answer for number in range(3)] == [False, True, True]
    await parts.offsets.commit("billing", "orders", [Position(0, 3)], CALLER.sharer)
    assert await parts.offsets.find("billing", "orders") == [Position(0, 3)]
    with pytest.raises(NotFound, match="queue 9 is not one of the 4 queues"):
        await parts.puller.pull(Pull("orders", Position(9, 0), Selection()), None)


async def test_transactions_are_prepared_ended_and_watched(parts: GatewayParts) -> None:
    transactions = parts.transactions
    drafts = [Draft("orders", b"a", id="one", queue=2), Draft("orders", b"b", tags="x|y"), Draft("orders", id="two")]
    outcomes = await transactions.preparer.prepare(Drafted(drafts), CALLER)
    assert (list(outcomes.offsets), list(outcomes.faults)) == ([0, -1, 1], [1])
    names = [
        TransactionName(outcomes.shards[index], outcomes.offsets[index], outcomes.positions[index], outcomes.ids[index])
        for index in (0, 2)
    ]
    ends = EndColumns.of([(names[0], EndDecision.COMMIT), (names[1], EndDecision.ROLLBACK)])
    ended = await transactions.ender.end("billing", ends)
    assert (ended.topics[0], ended.queues[0], ended.offsets) == ("orders", 2, [0, -1])
    assert (len(set(ended.states)), ended.others) == (2, {})
    watcher = await transactions.watching.join("billing", "a host")
    transactions.watching.end()
    with pytest.raises(Unavailable, match="stopping"):
        await transactions.watching.desk.fetch(watcher)
    transactions.watching.desk.leave(watcher)


async def test_leases_are_extended_given_back_and_acknowledged(parts: GatewayParts) -> None:
    await send(parts, *(Draft("orders", b"%d" % number) for number in range(3)))
    first, second, third = receipts_of(await receive(parts, max_count=8))
    assert await receive(parts) == b""
    assert not any(await parts.leases.extend(Extension("billing", [first], 60_000), None))
    assert not any(await parts.leases.extend(Extension("billing", [second], 0), None))
    assert not any(await parts.leases.ack("billing", [third], None))
    (back,) = receipts_of(await receive(parts, wait_ms=5_000))
    assert back != second
    statuses = await parts.leases.ack("billing", [first, back, second], None)
    assert list(statuses) == [LeaseStatus.OK, LeaseStatus.OK, LeaseStatus.EXPIRED]
    with pytest.raises(InvalidArgument, match="0 receipts"):
        await parts.leases.ack("billing", [], None)


@dataclass
class Bodies:
    """A request of another protocol, with a packer of its own: bodies for one queue, answered by their offsets."""

    bodies: Sequence[bytes]
    size = 100
    is_batch = False
    is_half = False

    def pack(
        self, rules: EncodingRules, routes: dict[str, Route], arrived_at_ms: int, born_host: bytes
    ) -> "Bodies | None":
        route = routes.get("orders")
        if route is None or 0 not in route.store_hosts:
            return None
        self._maker = RecordMaker(born_host, route.store_hosts[0])
        self._ids, self._now_ms = [rules.ids.make() for _ in self.bodies], arrived_at_ms
        return self

    def drafts(self) -> Drafts:
        return DraftList([Draft("orders", body, queue=1) for body in self.bodies])

    @property
    def count(self) -> int:
        return len(self.bodies)

    @property
    def parts(self) -> list[tuple[int, int]]:
        return [(0, self.count)]

    def records(self, part: int) -> bytes:
        field = topic_field("orders")
        return b"".join(
            self._maker.make(
                0, self._now_ms, body, field, 1, encode_properties({record.UNIQ_KEY: one}) + record.CRC_ENDING
            )
            for body, one in zip(self.bodies, self._ids, strict=True)
        )

    def response(self, answers: list[tuple[Sequence[int], Sequence[int], Sequence[int]]]) -> bytes:
        ((offsets, _, _),) = answers
        return repr(list(offsets)).encode()

    def columns(self) -> tuple[list[str], list[int], list[int], list[int], list[int]]:
        nothing = [0] * self.count
        return self._ids, [1] * self.count, nothing, nothing, nothing


async def test_a_face_packs_its_requests_itself(parts: GatewayParts) -> None:
    answers = []
    for bodies in ([b"a"], [b"b", b"c"]):
        # The first one makes the topic: it is packed once the shard knows it.
        outcome = await (await parts.sender.begin(Bodies(bodies), CALLER)).outcome()
        assert isinstance(outcome, AllStored)
        answers.append(outcome.response())
    assert answers == [b"[0]", b"[1, 2]"]


async def test_a_packed_request_that_fails_has_an_outcome_for_each_message(parts: GatewayParts) -> None:
    await send(parts, Draft("orders"))
    parts.shards.get(0).batcher.stop()
    outcome = await (await parts.sender.begin(Bodies([b"a", b"b"]), CALLER)).outcome()
    assert isinstance(outcome, SendOutcomes)
    assert {fault.reason for fault in outcome.faults.values()} == {"STOPPING"}
    assert outcome.offsets == [-1, -1]
