"""Messages found by key, id and offset id on one shard, in every state and at every stage of indexing."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import gateway_pb2, store_pb2
from duetime_format import halves, record
from duetime_format.keys import key_hash
from duetime_format.names import GIVEN_UP_TOPIC
from duetime_format.properties import encode_properties
from duetime_store.finding import finder
from duetime_store.log.newkeys import NewKeys
from duetime_store.writing.halves import HalfResolutions
from duetime_store.writing.halves import end as stage_end

from tests.store.conftest import MIB, restored, sent
from tests.store.running import Running
from tests.store.transacting import ROLLBACK, end, end_of, prepared
from tests.store.transacting import get as get_half

STORED = gateway_pb2.MESSAGE_STATE_STORED
PENDING = gateway_pb2.MESSAGE_STATE_PENDING
QUARANTINED = gateway_pb2.MESSAGE_STATE_QUARANTINED
PREPARED = gateway_pb2.MESSAGE_STATE_PREPARED
GIVEN_UP = gateway_pb2.MESSAGE_STATE_GIVEN_UP
ROLLED_BACK = gateway_pb2.MESSAGE_STATE_ROLLED_BACK


def keyed(message_id: str, *keys: str, level: int = 0, topic: str = "orders", body: bytes = b"body") -> bytes:
    properties = {"KEYS": " ".join(keys), "UNIQ_KEY": message_id}
    queue = 0
    if level:
        properties |= record.deferral(level, topic, 3)
        topic, queue = "SCHEDULE_TOPIC_XXXX", level - 1
    return record.encode(
        record.Record(topic, queue, body, encode_properties(properties), store_host=record.host_bytes("::1", 7))
    )


async def query(store: Running, key: str, topic: str = "orders", **options: Any) -> list[gateway_pb2.FoundMessage]:
    request = gateway_pb2.QueryMessagesRequest(topic=topic, key=key, **options)
    return list((await store.stub.QueryMessages(request, timeout=60)).messages)


async def ids(store: Running, key: str, **options: Any) -> list[str]:
    return [found.message.id for found in await query(store, key, **options)]


async def get(store: Running, message_id: str, topic: str = "") -> gateway_pb2.FoundMessage:
    return await store.stub.GetMessage(gateway_pb2.GetMessageRequest(id=message_id, topic=topic), timeout=60)


async def restore(store: Running, lane: int = 1) -> None:
    """Restores the lane's head as a scheduler does."""
    due = await store.pull_due(lane, max_count=1)
    answer = await store.put_entries(
        restored(store.node.store, lane, due.first_entry, 1), lane=lane, first_entry=due.first_entry
    )
    assert not any(answer.statuses)


async def indexed(store: Running) -> None:
    """Lets the indexer read all that is published."""
    await store.clock.advance(25)
    async with asyncio.timeout(60):
        while store.node.parts.indexer.behind_bytes:
            # A new file is made on a thread.
            await store.stub.Describe(store_pb2.DescribeRequest())
            await store.clock.advance(2)


async def kept(_: Running) -> None:
    """Leaves the keys of published records in place."""


async def forgotten(store: Running) -> None:
    """As if there were no room for them: they are read from the log."""
    store.node.store.new_keys = NewKeys(store.node.store.published_end)


@pytest.fixture(params=[kept, forgotten, indexed])
async def settle(request: pytest.FixtureRequest) -> Any:
    """Runs before each search; decides where the search finds published records."""
    return request.param


async def test_messages_are_found_by_key_and_id_newest_first(store: Running, settle: Any) -> None:
    await store.put(*(keyed(f"id-{number}", "all", f"key-{number}") for number in range(5)), keyed("x", "all-5"))
    await settle(store)
    assert await ids(store, "all") == [f"id-{number}" for number in (4, 3, 2, 1, 0)]
    assert await ids(store, "key-2") == await ids(store, "id-2") == ["id-2"]
    assert await ids(store, "none") == []
    assert await ids(store, "all", topic="payments") == []
    (found,) = await query(store, "key-2")
    assert (found.state, found.shard, found.message.offset, found.message.body) == (STORED, 0, 2, b"body")
    assert found.message.keys == ["all", "key-2"]


async def test_messages_are_found_by_tag(store: Running, settle: Any) -> None:
    """`sent` gives the tag `paid`; a key of that text is none."""
    await store.put(
        sent("A"), sent("B", topic="payments"), sent("C", level=1), keyed("D", "paid"), keyed("E", "T#paid")
    )
    await settle(store)
    found = await query(store, "", tag="paid")
    assert [(one.message.id, one.state) for one in found] == [("C", PENDING), ("A", STORED)]
    assert [one.message.id for one in await query(store, "", "payments", tag="paid")] == ["B"]
    assert await query(store, "", tag="pai") == []
    assert await ids(store, "paid") == ["D"]


async def test_answer_is_limited_and_marked_as_such(store: Running, settle: Any) -> None:
    await store.put(*(keyed(f"id-{number}", "all") for number in range(5)))
    await settle(store)
    request = gateway_pb2.QueryMessagesRequest(topic="orders", key="all", max_count=2)
    answer = await store.stub.QueryMessages(request, timeout=60)
    assert ([found.message.id for found in answer.messages], answer.more) == (["id-4", "id-3"], True)
    request.max_count = 5
    assert not (await store.stub.QueryMessages(request, timeout=60)).more


async def test_answer_of_large_messages_is_cut_by_bytes(tmp_path: Path) -> None:
    async with Running(tmp_path / "store", segment_bytes=32 * MIB) as store:
        await store.put(*(keyed(f"id-{number}", "all", body=bytes(4 * MIB)) for number in range(5)))
        answer = await store.stub.QueryMessages(gateway_pb2.QueryMessagesRequest(topic="orders", key="all"), timeout=60)
        assert (len(answer.messages), answer.more) == (3, True)


async def test_times_are_exact_to_the_millisecond(store: Running, settle: Any) -> None:
    at = []
    for number in range(6):
        at.append(store.clock.now_ms())
        await store.put(keyed(f"id-{number}", "all"))
        await store.clock.advance(700)
    await settle(store)
    assert await ids(store, "all", from_ms=at[2], to_ms=at[4]) == ["id-4", "id-3", "id-2"]
    assert await ids(store, "all", from_ms=at[2] + 1, to_ms=at[4] - 1) == ["id-3"]
    assert await ids(store, "all", from_ms=at[5]) == ["id-5"]
    assert await ids(store, "all", to_ms=at[0]) == ["id-0"]
    assert await ids(store, "all", to_ms=at[0] - 1) == []


async def test_a_hash_collision_gives_no_foreign_message(store: Running, settle: Any) -> None:
    assert key_hash("orders", "AaAa") == key_hash("orders", "BBBB")
    await store.put(keyed("1", "AaAa"), keyed("AaBB", "2"))
    await settle(store)
    assert await ids(store, "AaAa") == ["1"]
    assert await ids(store, "BBBB") == []
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await get(store, "BBAa")
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


async def test_a_deferred_message_is_pending_and_then_stored_once(store: Running, settle: Any) -> None:
    await store.put(keyed("A", "key", level=1), keyed("B", "key", level=2))
    due_at_ms = store.clock.now_ms() + 1_000
    await settle(store)
    found = {one.message.id: one for one in await query(store, "key")}
    assert [found[name].state for name in "AB"] == [PENDING, PENDING]
    message = found["A"].message
    assert (message.topic, message.queue, message.offset, message.delay_level) == ("orders", 3, 0, 1)
    assert message.due_at_ms == due_at_ms
    assert (await get(store, "A")).state == PENDING
    assert await ids(store, "key", topic="payments") == []
    place = found["A"].offset_id
    await store.clock.advance(1_000)
    await restore(store)
    await settle(store)
    assert [(one.message.id, one.state) for one in await query(store, "key")] == [("A", STORED), ("B", PENDING)]
    restored = await get(store, "A")
    assert (restored.state, restored.message.topic, restored.message.due_at_ms) == (STORED, "orders", due_at_ms)
    # The offset id of the lane's record leads to the message too, which has a new one.
    assert restored.offset_id != place
    assert await get(store, place) == restored


async def test_a_message_put_aside_is_quarantined(store: Running, settle: Any) -> None:
    unrestorable = keyed("A", "key", level=1).replace(b"REAL_QID\x013", b"REAL_QID\x01x")
    await store.put(unrestorable, keyed("B", "key", level=1))
    await store.clock.advance(1_000)
    await restore(store)
    await restore(store)
    await settle(store)
    assert [(one.message.id, one.state) for one in await query(store, "key")] == [("B", STORED), ("A", QUARANTINED)]
    found = await get(store, "A")
    assert (found.state, found.message.topic, found.message.body) == (QUARANTINED, "orders", b"body")
    (raw,) = await query(store, "A", topic="DT_QUARANTINE")
    assert (raw.state, raw.message.topic) == (QUARANTINED, "DT_QUARANTINE")


@pytest.mark.parametrize("again", [False, True])
async def test_a_half_message_is_found_with_its_outcome(store: Running, settle: Any, again: bool) -> None:
    names = ["open", "committed", "rolled back", "given up"]
    halves_of = dict(zip(names, await prepared(store, *names, topic="orders", queue=3), strict=True))
    place = (await get(store, "committed")).offset_id
    await end(
        store, end_of(halves_of["committed"], "committed"), end_of(halves_of["rolled back"], "rolled back", ROLLBACK)
    )
    copy = halves.given_up(record.decode((await get_half(store, halves_of["given up"])).record), 15)
    decided = HalfResolutions([halves_of["given up"].offset], [halves.GIVEN_UP], [copy])
    stage_end(store.node.store, decided, lambda _: None)
    await store.put(keyed("behind"))
    if again:
        await end(store, end_of(halves_of["given up"], "given up", ROLLBACK), given_up=True)
    await settle(store)
    expected = {"open": PREPARED, "committed": STORED, "rolled back": ROLLED_BACK}
    expected["given up"] = ROLLED_BACK if again else GIVEN_UP
    for name, state in expected.items():
        for topic in ("", "orders"):
            found = await get(store, name, topic=topic)
            assert (found.state, found.message.topic, found.message.queue) == (state, "orders", 3)
            # The offset id of any of its records leads to the same.
            assert await get(store, found.offset_id) == found
    # That of the half message leads to the message too, which has another one.
    assert await get(store, place) == await get(store, "committed")
    assert await ids(store, "open") == []
    assert await ids(store, "given up", topic=GIVEN_UP_TOPIC) == ["given up"]


async def test_one_id_in_several_topics(store: Running, settle: Any) -> None:
    await store.put(keyed("A", topic="orders"), keyed("A", topic="payments"), keyed("A", topic="%RETRY%group"))
    await settle(store)
    with pytest.raises(grpc.aio.AioRpcError, match="id 'A' is known in the topics orders, payments: name one"):
        await get(store, "A")
    assert (await get(store, "A", topic="payments")).message.topic == "payments"
    assert (await get(store, "A", topic="orders")).message.topic == "orders"
    assert (await get(store, "A", topic="%RETRY%group")).message.topic == "%RETRY%group"
    await store.put(keyed("B", topic="%DLQ%group"))
    assert (await get(store, "B")).message.topic == "%DLQ%group"


async def test_a_key_is_no_id(store: Running, settle: Any) -> None:
    await store.put(keyed("A", "key"))
    await settle(store)
    with pytest.raises(grpc.aio.AioRpcError, match="no message key on shard 0"):
        await get(store, "key")


async def test_offset_id_needs_its_host_and_a_record_s_start(store: Running) -> None:
    await store.put(keyed("A"), keyed("B"))
    found = await get(store, "B")
    assert len(found.offset_id) == 56
    assert await get(store, found.offset_id) == await get(store, found.offset_id.lower()) == found
    assert await get(store, found.offset_id, "orders") == found
    host, position = found.offset_id[:-16], int(found.offset_id[-16:], 16)
    for other in (f"{host}{position + 1:016X}", f"{host[:-1]}8{position:016X}", f"{host}{1 << 40:016X}", "F" * 32):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await get(store, other)
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND


async def test_a_damaged_record_is_counted_and_the_others_listed(store: Running, settle: Any) -> None:
    await store.put(keyed("A", "key"), keyed("B", "key"), keyed("C", "key"))
    await settle(store)
    position = int((await get(store, "B")).offset_id[-16:], 16)
    with (store.settings.data_dir / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(position + 100)
        file.write(b"\xff")
    assert await ids(store, "key") == ["C", "A"]
    damaged = store.node.registry.get_sample_value("duetime_store_records_damaged_total")
    # A record that was damaged when its keys were read has none.
    assert damaged == (0 if settle is forgotten else 1)


async def test_too_long_a_tail_is_reported(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.put(keyed("A", "key"))
    # Keys in memory are found without reading the log, however many they are.
    monkeypatch.setattr(finder, "TAIL_BYTES_MAX", 10)
    assert await ids(store, "key") == ["A"]
    await forgotten(store)
    with pytest.raises(grpc.aio.AioRpcError, match="are not indexed yet; repeat later") as caught:
        await query(store, "key")
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    place = record.offset_message_id(record.host_bytes("::1", 7), 0)
    assert (await get(store, place)).message.id == "A"
    await indexed(store)
    assert await ids(store, "key") == ["A"]


async def test_without_an_index_only_places_are_found(tmp_path: Path) -> None:
    async with Running(tmp_path / "store", index=False) as store:
        await store.put(keyed("A", "key"))
        with pytest.raises(grpc.aio.AioRpcError, match="builds no index") as caught:
            await query(store, "key")
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert (await get(store, record.offset_message_id(record.host_bytes("::1", 7), 0))).message.id == "A"
    assert not (tmp_path / "store" / "index").exists()


async def test_found_after_a_restart(tmp_path: Path) -> None:
    async with Running(tmp_path / "store") as store:
        await store.put(*(keyed(f"id-{number}", "all") for number in range(5)))
    async with Running(tmp_path / "store") as store:
        await store.put(keyed("id-5", "all"))
        assert await ids(store, "all") == [f"id-{number}" for number in (5, 4, 3, 2, 1, 0)]


async def offset_at(store: Running, topic: str = "orders", **at: Any) -> int:
    request = gateway_pb2.SearchOffsetRequest(topic=topic, **at)
    return (await store.stub.SearchOffset(request, timeout=60)).offset


async def test_offsets_by_time(store: Running) -> None:
    times = []
    for number in range(10):
        times.append(store.clock.now_ms())
        await store.put(*[sent(f"{number}-{copy}") for copy in range(3)])
        await store.clock.advance(10)
    for number, at_ms in enumerate(times):
        assert await offset_at(store, at_ms=at_ms) == 3 * number
        assert await offset_at(store, at_ms=at_ms + 1) == 3 * number + 3
    assert await offset_at(store, at_ms=0) == await offset_at(store, earliest=True) == 0
    assert await offset_at(store, at_ms=-5) == 0
    assert await offset_at(store, latest=True) == 30


async def test_offset_by_time_of_an_empty_and_of_an_unknown_queue(store: Running) -> None:
    await store.stub.PutTopic(store_pb2.PutTopicRequest(name="orders", queue_count=1))
    assert await offset_at(store, at_ms=1) == await offset_at(store, latest=True) == 0
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await offset_at(store, queue=1, at_ms=1)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


async def test_search_skips_records_without_time(store: Running) -> None:
    times = []
    for number in range(20):
        times.append(store.clock.now_ms())
        await store.put(sent(f"{number}"))
        await store.clock.advance(10)
    size = len(sent("0"))
    with (store.settings.data_dir / "commitlog" / ("0" * 20)).open("r+b") as file:
        for number in (*range(8, 12), 0, 19):
            # Sizes of two digits' ids are one more.
            file.seek(number * size + max(number - 10, 0) + 4)
            file.write(b"\xff")
    lost = {*range(8, 12), 0, 19}
    for number, at_ms in enumerate(times):
        expected = next((later for later in range(number, 20) if later not in lost), 20)
        assert await offset_at(store, at_ms=at_ms) == expected
