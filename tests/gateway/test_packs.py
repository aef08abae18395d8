"""Packs through a gateway: ranges of stored messages, and each fault for its own message."""

from typing import Any

import grpc
import pytest
from duetime.v1 import gateway_pb2, message_pb2, pending_pb2
from google.rpc import code_pb2

from tests.gateway.conftest import Gateway, TappedStore, error_of, message
from tests.tap import WAIT_S

PREFIX = "7F0000014D2A9C0FF1E3"


def pack_of(*bodies: bytes, **fields: Any) -> gateway_pb2.SendRequest:
    given = {"topic": "orders", "id_prefix": PREFIX, **fields}
    sizes = [len(body) for body in bodies]
    return gateway_pb2.SendRequest(packs=[gateway_pb2.Pack(sizes=sizes, bodies=b"".join(bodies), **given)])


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def ranges(gateway: Gateway, request: gateway_pb2.SendRequest) -> list[gateway_pb2.ResultRange]:
    response = await gateway.stub.Send(request, timeout=WAIT_S)
    assert not response.results
    return list(response.ranges)


async def test_a_pack_of_one_topic_is_one_range_in_one_queue(gateway: Gateway) -> None:
    # The first pack is sent as the Python encoder makes it: its topic is new.
    queues = set()
    for number in range(8):
        (found,) = await ranges(gateway, pack_of(*numbered(100), first_number=1_000 * number, tags="new"))
        assert (found.count, found.first.shard) == (100, 0)
        assert found.first.message_id == f"{PREFIX}{1_000 * number:012X}"
        pulled = await gateway.pull(queue=found.first.queue, offset=found.first.offset, max_count=100)
        assert [one.body for one in pulled.messages] == numbered(100)
        assert [one.id for one in pulled.messages] == [f"{PREFIX}{1_000 * number + n:012X}" for n in range(100)]
        assert {one.tags for one in pulled.messages} == {"new"}
        queues.add(found.first.queue)
    assert queues == {0, 1, 2, 3}


@pytest.mark.parametrize("due", [{"delay_level": 1}, {"delay_ms": 7_000}, {"delay_ms": 3_600_000}])
async def test_a_delayed_pack_is_one_range_of_its_lane(gateway: Gateway, due: dict[str, int]) -> None:
    for number in range(2):
        (found,) = await ranges(gateway, pack_of(*numbered(5), first_number=10 * number, **due))
        assert found.count == 5
        assert found.first.lane
        assert found.first.deliver_at_ms


@pytest.mark.parametrize("due", [{"delay_level": 3}, {"delay_ms": 3_600_000}])
async def test_cancelled_message_of_a_pack_is_refused_alone(gateway: Gateway, due: dict[str, int]) -> None:
    (first,) = await ranges(gateway, pack_of(*numbered(5), **due))
    ref = pending_pb2.PendingRef(message_id=f"{PREFIX}{2:012X}", topic="orders")
    (ended,) = (await gateway.stub.Cancel(pending_pb2.CancelRequest(messages=[ref]), timeout=WAIT_S)).results
    assert ended.status == pending_pb2.CANCEL_STATUS_CANCELLED
    found = await ranges(gateway, pack_of(*numbered(7), **due))
    assert [(one.count, one.first.duplicate) for one in found] == [(2, True), (1, False), (2, True), (2, False)]
    fault = found[1].first.fault
    assert (fault.reason, fault.code) == ("MESSAGE_CANCELLED", code_pb2.FAILED_PRECONDITION)
    assert dict(fault.metadata) == {"topic": "orders", "id": ref.message_id, "end": "CANCELLED"}
    assert found[0].first.deliver_at_ms == first.first.deliver_at_ms


async def test_a_bad_message_harms_no_other(gateway: Gateway) -> None:
    large = bytes(4 * 1024 * 1024 + 1)
    found = await ranges(gateway, pack_of(b"a", b"b", large, b"c"))
    assert [(one.count, one.first.HasField("fault")) for one in found] == [(2, False), (1, True), (1, False)]
    assert found[1].first.fault.violations[0].field == "body"
    assert found[1].first.message_id == f"{PREFIX}{2:012X}"
    assert found[2].first.offset == found[0].first.offset + 2


async def test_common_fault_is_reported_of_all(gateway: Gateway) -> None:
    (found,) = await ranges(gateway, pack_of(*numbered(3), delay_ms=-1))
    assert (found.count, found.first.fault.code) == (3, code_pb2.INVALID_ARGUMENT)
    assert [one.field for one in found.first.fault.violations] == ["delay_ms"]


async def test_a_repeated_pack_is_answered_with_the_first_results(gateway: Gateway) -> None:
    (first,) = await ranges(gateway, pack_of(*numbered(5)))
    (again,) = await ranges(gateway, pack_of(*numbered(5)))
    assert again.first.duplicate
    again.first.duplicate = False
    assert again == first
    (before, new) = await ranges(gateway, pack_of(*numbered(7)))
    assert (before.count, before.first.duplicate, new.count, new.first.duplicate) == (5, True, 2, False)
    # Also one that comes alone, with an id of the pack.
    (alone,) = await gateway.send(message(id=f"{PREFIX}{3:012X}"))
    assert alone.duplicate
    assert (alone.queue, alone.offset) == (first.first.queue, first.first.offset + 3)


async def test_ids_that_the_gateway_makes_are_counted_up(gateway: Gateway) -> None:
    found = await ranges(gateway, pack_of(*numbered(300), id_prefix=""))
    assert sum(one.count for one in found) == 300
    assert len(found[0].first.message_id) == 32


async def test_blocks_of_ids_go_to_the_shards_to_which_single_messages_go(two_shards: Gateway) -> None:
    found = await ranges(two_shards, pack_of(*numbered(2_000), first_number=200))
    assert {one.first.shard for one in found} == {0, 1}
    assert len(found) <= 1 + 2_200 // 256 + 1
    number = 200
    for one in found:
        for index in (number, number + one.count - 1):
            (alone,) = await two_shards.send(message(id=f"{PREFIX}{index:012X}"))
            assert alone.duplicate
            assert alone.shard == one.first.shard
            assert alone.offset == one.first.offset + index - number
        number += one.count


async def test_packs_and_messages_share_a_stream(gateway: Gateway) -> None:
    stream = gateway.stub.SendStream()
    for request in (
        pack_of(*numbered(3)),
        gateway_pb2.SendRequest(messages=[message()]),
        pack_of(b"x", delay_ms=9_000),
    ):
        await stream.write(request)
    answers = [await stream.read() for _ in range(3)]
    assert [(len(one.results), [each.count for each in one.ranges]) for one in answers] == [(0, [3]), (1, []), (0, [1])]
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF


async def test_an_unavailable_shard_fails_only_its_messages(tapped: Gateway, taps: list[TappedStore]) -> None:
    await ranges(tapped, pack_of(*numbered(1_000)))
    await taps[1].stop()
    found = await ranges(tapped, pack_of(*numbered(1_000), first_number=10_000))
    refused = [one for one in found if one.first.HasField("fault")]
    assert {one.first.fault.reason for one in refused} == {"SHARD_UNAVAILABLE"}
    assert {one.first.shard for one in found if not one.first.HasField("fault")} == {0}
    assert sum(one.count for one in found) == 1_000


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sizes": [1, 1]}, "packs[0].sizes"),
        ({"sizes": [-1, 4]}, "packs[0].sizes"),
        ({"first_number": -1}, "packs[0].first_number"),
        ({"first_number": 1 << 48}, "packs[0].first_number"),
    ],
)
async def test_sizes_and_numbers_that_make_no_messages_refuse_the_pack(
    gateway: Gateway, change: dict[str, Any], field: str
) -> None:
    given = {"topic": "orders", "id_prefix": PREFIX, "sizes": [3], "bodies": b"abc", **change}
    error = await error_of(
        gateway.stub.Send(gateway_pb2.SendRequest(packs=[gateway_pb2.Pack(**given)]), timeout=WAIT_S)
    )
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field in str(error.trailing_metadata())


async def test_several_packs_of_a_request_each_have_their_ids_topics_and_delays(gateway: Gateway) -> None:
    joined = pack_of(*numbered(3), first_number=0)
    joined.packs.extend(pack_of(*numbered(2), first_number=4_096, delay_level=1).packs)
    joined.packs.extend(pack_of(*numbered(4), first_number=8_192, topic="paid").packs)
    # The first time their topics are new: the Python encoder makes the records.
    for turn in range(2):
        for pack in joined.packs:
            pack.first_number += 100 * turn
        plain, delayed, paid = await ranges(gateway, joined)
        assert [one.count for one in (plain, delayed, paid)] == [3, 2, 4]
        firsts = [f"{PREFIX}{pack.first_number:012X}" for pack in joined.packs]
        assert [one.first.message_id for one in (plain, delayed, paid)] == firsts
        assert [one.first.lane for one in (plain, delayed, paid)] == [0, 1, 0]
        pulled = await gateway.pull("paid", paid.first.queue, offset=paid.first.offset, max_count=10)
        assert [one.body for one in pulled.messages] == numbered(4)


async def test_a_message_that_is_wrong_harms_no_other_pack(gateway: Gateway) -> None:
    joined = pack_of(b"a", bytes(4 * 1024 * 1024 + 1), first_number=0)
    joined.packs.extend(pack_of(b"b", first_number=4_096).packs)
    joined.packs.extend(pack_of(b"c", first_number=8_192, delay_ms=-1).packs)
    found = await ranges(gateway, joined)
    assert [one.first.HasField("fault") for one in found] == [False, True, False, True]
    assert found[2].first.message_id == f"{PREFIX}{4_096:012X}"


async def test_packs_with_equal_ids_are_stored_once(gateway: Gateway) -> None:
    joined = pack_of(b"a", b"b", first_number=0)
    joined.packs.extend(pack_of(b"b", b"c", first_number=1).packs)
    found = await ranges(gateway, joined)
    assert [(one.count, one.first.duplicate) for one in found] == [(2, False), (1, True), (1, False)]


async def test_a_request_has_messages_or_a_pack(gateway: Gateway) -> None:
    both = pack_of(b"a")
    both.messages.append(message_pb2.Message(topic="orders"))
    for request in (both, pack_of(), pack_of(*[b""] * 4_097)):
        error = await error_of(gateway.stub.Send(request, timeout=WAIT_S))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
