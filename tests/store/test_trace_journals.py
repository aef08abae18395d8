"""A trace finds events, cancels and checks by the index, and reads journals of earlier releases in order."""

import random
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from duetime.v1 import pending_pb2
from duetime_format import record
from duetime_format.names import CANCELLED_TOPIC
from duetime_store.finding import journals
from duetime_store.log import journal
from duetime_store.log.journal import JournalEntry, event_records
from duetime_store.writing.indexed import IndexedJournals

from tests.seeds import seed
from tests.store.conftest import sent
from tests.store.groups.running import TOPIC, Consuming
from tests.store.test_trace import LANE, life, lines

WHOLE = [f"accepted {TOPIC}:0:0", f"received {TOPIC}:0:0 #1", f"acknowledged {TOPIC}:0:0 #1"]


@pytest.fixture
async def shard(tmp_path: Path) -> AsyncIterator[Consuming]:
    async with Consuming(tmp_path) as running:
        yield running


@contextmanager
def earlier_release() -> Iterator[None]:
    """The journal's records are written without words."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal.subjects, "properties_of", lambda words, since: record.with_crc_mark(b""))
        yield


async def take(shard: Consuming, *ids: str) -> None:
    """Sends, receives and acknowledges each in separate flushes."""
    for one in ids:
        await shard.send(one)
        (message,) = await shard.receive()
        await shard.ack(message)


def others(name: str, count: int = 20) -> list[str]:
    return [f"{name}{number}" for number in range(count)]


async def test_only_records_about_the_message_are_read(shard: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    await take(shard, "A", *others("B"))
    # Two records fit, those of all messages do not.
    monkeypatch.setattr(journals, "BYTES_MAX", 800)
    answer = await life(shard)
    assert (lines(answer), list(answer.gaps)) == (WHOLE, [])
    shutil.rmtree(shard.settings.data_dir / "index")
    await shard.again()
    answer = await life(shard)
    assert (lines(answer), list(answer.gaps)) == (WHOLE, [])


async def test_a_journal_of_an_earlier_release_is_read_in_order(
    shard: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    with earlier_release():
        await take(shard, "A", *others("B"))
        await shard.send("C")
        (late,) = await shard.receive()
    await shard.again()
    await shard.ack(late)
    await shard.clock.advance(1_000)
    await take(shard, *others("D"))
    answer = await life(shard)
    assert (lines(answer), list(answer.gaps)) == (WHOLE, [])
    answer = await life(shard, "C")
    assert [line.split()[0] for line in lines(answer)] == ["accepted", "received", "acknowledged"]
    monkeypatch.setattr(journals, "BYTES_MAX", 800)
    monkeypatch.setattr(journals, "STEP_RECORDS", 1)
    assert lines(await life(shard)) == WHOLE
    (gap,) = (await life(shard)).gaps
    assert "records after that are left out" in gap
    answer = await life(shard, "D5")
    assert (len(answer.events), list(answer.gaps)) == (3, [])


async def test_an_earlier_release_may_serve_in_between(shard: Consuming) -> None:
    await take(shard, "A")
    with earlier_release():
        await shard.again()
        await take(shard, "B")
    await shard.kill()
    await take(shard, "C")
    await shard.kill()
    for number, one in enumerate("ABC"):
        answer = await life(shard, one)
        assert lines(answer) == [line.replace(":0:0", f":0:{number}") for line in WHOLE]
        assert not answer.gaps


async def test_without_an_index_a_message_without_an_id_is_traced_by_its_offset_id(tmp_path: Path) -> None:
    async with Consuming(tmp_path, index=False) as shard:
        await shard.put(record.encode(record.Record(TOPIC, 0, b"body", record.CRC_MARK)))
        (message,) = await shard.receive()
        await shard.ack(message)
        unit = shard.node.store.queues.find(TOPIC, 0).read(0, 1)
        found = record.decode(shard.node.store.read_record(int(unit["position"][0]), int(unit["size"][0])))
        answer = await life(shard, record.offset_message_id(found.store_host, found.position))
        assert (lines(answer), list(answer.gaps)) == (WHOLE, [])


async def test_cancels_of_others_are_not_read(shard: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    for one in ("A", *others("B")):
        await shard.put(sent(one, level=1))
        request = pending_pb2.CancelRequest(messages=[pending_pb2.PendingRef(message_id=one, topic=TOPIC)])
        await shard.stub.Cancel(request, timeout=60)
    queue = shard.node.store.queues.find(CANCELLED_TOPIC, 0)
    assert queue.max_offset == 21
    monkeypatch.setattr(journals, "BYTES_MAX", 400)
    for number, one in enumerate(("A", *others("B"))):
        answer = await life(shard, one)
        place = f"{LANE}:0:{number}"
        assert lines(answer) == [f"accepted {place}", f"deferred {place}", f"cancelled {place}"]
        assert not answer.gaps


async def test_both_ways_lead_to_the_same_life(shard: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed())
    count, leased = 0, []
    for _ in range(60):
        step = dice.randrange(5)
        if step == 0:
            more = dice.choice([1, 3, 40])
            await shard.send(*(f"M{number}" for number in range(count, count + more)))
            count += more
        elif step == 1:
            leased += await shard.receive(max_count=dice.choice([1, 7, 64]))
        elif step == 2 and leased:
            some = dice.sample(leased, dice.randint(1, len(leased)))
            await shard.ack(*some)
            leased = [one for one in leased if one not in some]
        elif step == 3 and leased:
            await shard.change(*dice.sample(leased, dice.randint(1, len(leased))), ms=dice.choice([0, 5_000]))
        else:
            await shard.clock.advance(dice.choice([10, 4_000]))
    chosen = [f"M{number}" for number in sorted(dice.sample(range(count), min(count, 12)))]
    by_index = [await life(shard, one) for one in chosen]
    monkeypatch.setattr(IndexedJournals, "since", lambda self, topic: 1 << 40)
    assert [await life(shard, one) for one in chosen] == by_index
    assert not any(answer.gaps for answer in by_index)


def test_a_record_has_no_more_words_than_properties_take() -> None:
    entries = [JournalEntry(1, b"x" * 50, None, [f"{number:08x}", f"{number + 1:08x}"]) for number in range(3_000)]
    records = [record.decode(one) for one in event_records(entries, 0, 0)]
    assert [len(one.properties) < 10_000 for one in records] == [True] * 3
    words = {word for one in records for word in as_words(one)}
    assert words == {f"{number:08x}" for number in range(3_001)}


def as_words(found: record.Record) -> list[str]:
    return found.properties.split(b"\x02")[0].removeprefix(b"KEYS\x01").decode().split(" ")
