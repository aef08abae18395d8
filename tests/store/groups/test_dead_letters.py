"""Dead letters in a real store: the list is right, and each ends once despite crashes."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, store_pb2
from duetime_format import record
from duetime_format.names import dlq_topic, retry_topic
from duetime_store.groups import dead_letters, snapshot
from duetime_store.log.segment import Segment

from tests.store.conftest import ids, sent
from tests.store.groups.running import GROUP, Consuming, copy

DLQ, RETRY = dlq_topic(GROUP), retry_topic(GROUP)
STORED, SETTLED = store_pb2.PUT_STATUS_OK, store_pb2.PUT_STATUS_SETTLED


class Letters(Consuming):
    async def die(self, *ids: str) -> None:
        await self.put(*(sent(one, topic=DLQ) for one in ids))

    async def there(self, **options: Any) -> list[int]:
        """Offsets of those that are there, pulled one after the other."""
        found: list[int] = []
        offset = max_offset = 0
        while not found or offset < max_offset:
            request = store_pb2.PullDeadLettersRequest(
                **{"topic": DLQ, "offset": offset, "max_count": 2, "max_bytes": 1 << 20, **options}
            )
            answer = await self.stub.PullDeadLetters(request, timeout=60)
            assert answer.next_offset > offset or answer.next_offset == answer.max_offset
            found += answer.offsets
            offset, max_offset = answer.next_offset, answer.max_offset
            if offset >= max_offset:
                break
        return found

    async def redrive(self, *offsets: int) -> list[int]:
        """Puts copies together with the ends of dead letters; returns the statuses."""
        letters = [store_pb2.DeadLetterPlace(topic=DLQ, offset=offset) for offset in offsets]
        settles = [
            store_pb2.Settle(record=index, dead_letter=letter, group=GROUP) for index, letter in enumerate(letters)
        ]
        answer = await self.put_settling(*(copy(f"{offset}") for offset in offsets), settles=settles)
        return list(answer.statuses) or [STORED] * len(offsets)

    async def drop(self, *offsets: int) -> list[bool]:
        letters = [store_pb2.DeadLetterPlace(topic=DLQ, offset=offset) for offset in offsets]
        return list((await self.stub.DropDeadLetters(store_pb2.DropDeadLettersRequest(letters=letters))).dropped)

    def copies(self) -> list[str]:
        """Ids in %RETRY%group."""
        store = self.node.store
        units = store.queues.find(RETRY, 0).read(0, 100)[["position", "size"]].tolist()
        return ids([record.decode(store.read_record(*unit)) for unit in units])

    @property
    def count(self) -> float | None:
        return self.node.registry.get_sample_value("duetime_store_dead_letters", {"group": GROUP})


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Letters]:
    async with Letters(tmp_path / "store") as running:
        await running.stub.PutTopic(store_pb2.PutTopicRequest(name=RETRY, queue_count=1))
        yield running


async def test_those_that_are_there_are_pulled(store: Letters) -> None:
    await store.die("a", "b", "c", "d", "e")
    request = store_pb2.PullDeadLettersRequest(topic=DLQ, offset=1, max_count=3, max_bytes=1 << 20)
    answer = await store.stub.PullDeadLetters(request)
    assert (list(answer.offsets), answer.next_offset, answer.max_offset) == ([1, 2, 3], 4, 5)
    assert answer.records.count(b"UNIQ_KEY") == 3
    one = await store.stub.PullDeadLetters(store_pb2.PullDeadLettersRequest(topic=DLQ, max_count=9, max_bytes=1))
    assert (list(one.offsets), one.next_offset) == ([0], 1)
    assert store.count == 5


async def test_redriven_and_dropped_letters_are_not_listed(store: Letters) -> None:
    await store.die("a", "b", "c", "d", "e")
    assert await store.redrive(1, 3) == [STORED, STORED]
    assert await store.drop(0, 3) == [True, False]
    assert await store.there() == [2, 4]
    assert store.copies() == ["1", "3"]
    assert store.count == 2


async def back(store: Letters, **options: Any) -> list[list[int]]:
    """Offsets of each pull from the end to `offset`."""
    found: list[list[int]] = []
    wanted = {"topic": DLQ, "max_count": 2, "max_bytes": 1 << 20, "before_offset": 1 << 60, **options}
    while wanted["before_offset"] > wanted.get("offset", 0):
        answer = await store.stub.PullDeadLetters(store_pb2.PullDeadLettersRequest(**wanted), timeout=60)
        assert answer.next_offset < wanted["before_offset"]
        found.append(list(answer.offsets))
        wanted["before_offset"] = answer.next_offset
    return found


async def test_letters_are_pulled_backward(store: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.die("a", "b", "c", "d", "e")
    assert await back(store) == [[3, 4], [1, 2], [0]]
    assert await back(store, max_bytes=1) == [[4], [3], [2], [1], [0]]
    assert await back(store, offset=2) == [[3, 4], [2]]
    assert await back(store, before_offset=4) == [[2, 3], [0, 1]]
    await store.drop(0, 2, 3)
    assert await back(store) == [[1, 4]]
    monkeypatch.setattr(dead_letters, "SCAN_UNITS", 1)
    monkeypatch.setattr(dead_letters, "SCAN_UNITS_MAX", 2)
    assert await back(store, max_count=1) == [[4], [], [1], []]


async def test_the_second_of_two_is_reported_and_not_stored(store: Letters) -> None:
    await store.die("a", "b")
    assert await store.redrive(0, 0) == [STORED, SETTLED]
    assert await store.redrive(0, 1) == [SETTLED, STORED]
    assert await store.drop(0, 1) == [False, False]
    assert store.copies() == ["0", "1"]
    first, second = await asyncio.gather(store.redrive(1), store.redrive(1))
    assert first == second == [SETTLED]


async def test_two_at_once_make_one_copy(store: Letters) -> None:
    await store.die("a")
    first, second, dropped = await asyncio.gather(store.redrive(0), store.redrive(0), store.drop(0))
    redriven = [first, second].count([STORED])
    assert redriven + dropped.count(True) == 1
    assert len(store.copies()) == redriven


@pytest.mark.parametrize("stop", ["stopped", "killed", "killed behind a checkpoint"])
async def test_they_are_deleted_after_a_start(store: Letters, stop: str) -> None:
    await store.die("a", "b", "c")
    await store.redrive(0)
    if stop == "killed behind a checkpoint":
        await store.node.parts.checkpointer.write()
    await store.drop(2)
    await (store.again() if stop == "stopped" else store.kill())
    assert await store.there() == [1]
    assert await store.redrive(0, 1, 2) == [SETTLED, STORED, SETTLED]
    await store.kill()
    assert await store.there() == []
    assert store.copies() == ["0", "1"]


async def test_a_copy_that_a_crash_took_leaves_its_dead_letter(store: Letters, tmp_path: Path) -> None:
    """The log has the end before its copy; then another record takes the copy's position."""
    await store.die("a", "b")
    await store.redrive(0)
    position = int(store.node.store.queues.find(RETRY, 0).read(0, 1)["position"][0])

    def tear() -> None:
        with (tmp_path / "store" / "commitlog" / f"{0:020}").open("r+b") as file:
            file.seek(position)
            file.write(bytes(400))

    def forget() -> None:
        """The journal is read from its start, with the end that does not count."""
        (tmp_path / "store" / snapshot.FILE).unlink()

    await store.kill(tear)
    assert await store.there() == [0, 1]
    assert store.copies() == []
    assert await store.redrive(1) == [STORED]
    for _ in range(2):
        await store.kill(forget)
        assert await store.there() == [0]
    assert await store.redrive(0) == [STORED]
    await store.kill(forget)
    assert await store.there() == []
    assert store.copies() == ["1", "0"]


async def test_dead_letters_stay_listed_after_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Letters(tmp_path / "store") as store:
        await store.stub.PutTopic(store_pb2.PutTopicRequest(name=RETRY, queue_count=1))
        await store.die("a", "b")
        write = Segment.write

        def fail(segment: Segment, position: int, buffers: Any) -> None:
            monkeypatch.setattr(Segment, "write", write)
            raise OSError(errno.ENOSPC, "no room")

        monkeypatch.setattr(Segment, "is_plain", False)
        monkeypatch.setattr(Segment, "write", fail)
        with pytest.raises(grpc.aio.AioRpcError, match="no room"):
            await store.redrive(0)
        assert await store.there() == [0, 1]
        await store.kill()
        assert await store.there() == [0, 1]
        assert await store.redrive(0) == [STORED]


@pytest.mark.parametrize(
    ("letter", "text"),
    [
        ({"topic": "orders", "offset": 0}, "'orders' is not a topic of dead letters"),
        ({"topic": DLQ, "offset": 1}, "1 is not within 0 and 0 of queue 0"),
        ({"topic": DLQ, "offset": -1}, "-1 is not within 0 and 0 of queue 0"),
        ({"topic": "%DLQ%other", "offset": 0}, "not known to this shard"),
    ],
)
async def test_invalid_place_is_rejected(store: Letters, letter: dict[str, Any], text: str) -> None:
    await store.die("a")
    place = store_pb2.DeadLetterPlace(**letter)
    with pytest.raises(grpc.aio.AioRpcError, match=text):
        await store.stub.DropDeadLetters(store_pb2.DropDeadLettersRequest(letters=[place]))
    with pytest.raises(grpc.aio.AioRpcError, match=text):
        await store.put_settling(copy("0"), settles=[store_pb2.Settle(record=0, dead_letter=place, group=GROUP)])


async def test_a_redriven_message_is_received_by_its_group(store: Letters) -> None:
    await store.die("a")
    await store.redrive(0)
    (message,) = await store.receive()
    assert (message.message.id, message.message.topic, message.attempt) == ("0", "orders", 2)
    assert await store.ack(message) == [consumer_pb2.RECEIPT_STATUS_OK]
