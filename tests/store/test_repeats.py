"""Repeated sends: topic and id are equal, also to those of a send in progress."""

import random
from pathlib import Path

import numpy as np
import pytest
from duetime_core.errors import DiskFull
from duetime_format import layout, record
from duetime_format.names import HALF_TOPIC
from duetime_format.properties import encode_properties
from duetime_store.log.recent import CANDIDATES_MAX, Ints
from duetime_store.writing.staging import DUPLICATE, OK, REFUSED, PutOutcome, refuse
from duetime_store.writing.visible import VisibleLog
from hypothesis import given
from hypothesis import strategies as st

from tests.store.conftest import HandClock, Shard, ids, sent

RECORD_BYTES = 300


def test_id_of_another_topic_is_no_repetition(shard: Shard) -> None:
    shard.put(sent("A", topic="invoices"), sent("B", topic="invoices", level=1))
    outcome = shard.put(sent("A"), sent("B"), sent("A", level=1, topic="letters"))
    assert outcome.statuses == [OK, OK, OK]
    assert ids(shard.pulled()) == ["A", "B"]


@pytest.mark.parametrize(("first", "then"), [(0, 1), (1, 0), (1, 2)])
def test_delayed_message_is_known_by_the_topic_that_it_goes_to(shard: Shard, first: int, then: int) -> None:
    shard.put(sent("A", level=first, queue=3))
    outcome = shard.put(sent("A", level=then, queue=5))
    assert (outcome.statuses, outcome.duplicate_queues) == ([DUPLICATE], {0: 3})
    assert outcome.duplicate_lanes == {0: first}
    due = shard.clock.wall_ms + 1_000 if first else 0
    assert outcome.due_at_ms == [due]


def test_id_that_many_topics_use_is_found_in_each(shard: Shard) -> None:
    topics = [f"topic-{number}" for number in range(3 * CANDIDATES_MAX)]
    for topic in topics:
        shard.put(sent("42", topic=topic, level=len(topic) % 2))
    again = [sent("42", topic=topic) for topic in topics]
    assert shard.put(*again).statuses == [DUPLICATE] * len(again)
    shard.checkpoint()
    shard.reopen()
    assert shard.put(*again).statuses == [DUPLICATE] * len(again)


def test_ids_that_end_as_their_topics_are_found_in_each(shard: Shard) -> None:
    names = [str(number) for number in range(1_000, 1_000 + 3 * CANDIDATES_MAX)]
    shard.put(*[sent(name, topic=f"orders-{name}") for name in names])
    again = [sent(name, topic=f"orders-{name}") for name in names]
    assert shard.put(*again).statuses == [DUPLICATE] * len(again)


def test_copies_of_a_failed_message_do_not_hide_it(shard: Shard) -> None:
    shard.put(sent("A"))
    for attempt in range(2 * CANDIDATES_MAX):
        shard.put(sent("A", topic="%RETRY%billing", level=attempt % 2))
    assert shard.put(sent("A")).statuses == [DUPLICATE]


@pytest.mark.parametrize("level", [0, 1])
def test_one_of_equal_ids_in_a_put_is_stored_and_answers_the_others(shard: Shard, level: int) -> None:
    put = [sent(name, level=level, queue=queue) for queue, name in enumerate("ABABA")]
    outcome = shard.put(*put, sent("A", topic="invoices"))
    assert outcome.statuses == [OK, OK, DUPLICATE, DUPLICATE, DUPLICATE, OK]
    offsets = [0, 1, 0, 1, 0] if level else [0, 0, 0, 0, 0]
    assert outcome.queue_offsets == [*offsets, 0]
    assert outcome.duplicate_queues == {2: 0, 3: 1, 4: 0}
    assert outcome.duplicate_lanes == {2: level, 3: level, 4: level}
    due = shard.clock.wall_ms + 1_000 if level else 0
    assert outcome.due_at_ms == [due] * 5 + [0]


def test_first_of_two_in_one_put_is_the_one_that_is_stored(shard: Shard) -> None:
    outcome = shard.put(sent("A"), sent("B"), sent("A"))
    assert (outcome.statuses, outcome.queue_offsets) == ([OK, OK, DUPLICATE], [0, 1, 0])


def test_equal_hashes_of_other_ids_are_all_stored(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard.store.recent, "look", lambda hashes: list(range(len(hashes))))
    outcome = shard.put(sent("A"), sent("B"))
    assert (outcome.statuses, outcome.queue_offsets) == ([OK, OK], [0, 1])


def test_refused_record_is_not_a_first_send(shard: Shard) -> None:
    outcome = shard.put(sent("A", level=9), sent("A"))
    assert outcome.statuses == [REFUSED, OK]


@pytest.mark.parametrize("prefix", ["%RETRY%", "%DLQ%"])
def test_copies_of_a_group_repeat_each_other_by_their_token_only(shard: Shard, prefix: str) -> None:
    topic = f"{prefix}billing"
    assert shard.put(copy("A", topic), copy("A", topic)).statuses == [OK, OK]
    assert shard.put(copy("A", topic, "t1"), copy("A", topic, "t2")).statuses == [OK, OK]
    again = shard.put(copy("A", topic, "t2"), copy("A", topic, "t1"), copy("A", topic), copy("B", topic, "t1"))
    assert (again.statuses, again.queue_offsets[:2]) == ([DUPLICATE, DUPLICATE, OK, OK], [3, 2])


def copy(message_id: str, topic: str, token: str = "") -> bytes:
    properties = {"UNIQ_KEY": message_id, **({"DT_SEND_BACK": token} if token else {})}
    return record.encode(record.Record(topic, 0, b"body", record.with_crc_mark(encode_properties(properties))))


def test_half_message_is_known_by_the_topic_that_it_goes_to(shard: Shard) -> None:
    properties = {"UNIQ_KEY": "A", "REAL_TOPIC": "orders", "REAL_QID": "1"}
    half = record.Record(HALF_TOPIC, 0, b"body", record.with_crc_mark(encode_properties(properties)))
    intake = shard.store.admit(record.encode(half))
    shard.store.stage_sent(intake, PutOutcome([], stored_at_ms=shard.clock.wall_ms))
    for _ in range(2):
        first = shard.store.first_copies(shard.store.admit(sent("A")), [0]).get(0)
        assert first is not None
        assert (first.name, first.topic_queue, first.is_delayed) == ((b"orders", b"A", b""), 1, False)
        shard.flush()


def test_window_ends_after_its_time(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "store", HandClock(), recent_ids_ms=60_000)
    shard.put(sent("A"))
    shard.clock.wall_ms += 59_999
    assert shard.put(sent("A")).statuses == [DUPLICATE]
    shard.clock.wall_ms += 1
    assert shard.put(sent("A")).statuses == [OK]
    assert shard.put(sent("A")).queue_offsets == [1]
    shard.crash()


@pytest.mark.parametrize("saved", [False, True])
def test_window_bounds_its_ids(tmp_path: Path, saved: bool) -> None:
    shard = Shard(tmp_path / "store", HandClock(), recent_ids_count=3)
    shard.put(*[sent(name) for name in "ABCD"])
    if saved:
        shard.checkpoint_ids()
    shard.reopen()
    assert shard.store.recent.count == 3
    assert shard.put(*[sent(name) for name in "DCB"]).queue_offsets == [3, 2, 1]
    assert shard.put(sent("A")).statuses == [OK]
    assert shard.put(sent("B"), sent("A")).statuses == [OK, DUPLICATE]
    shard.crash()


def test_nothing_is_looked_up_without_remembered_ids(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "store", HandClock(), recent_ids_count=0)
    assert shard.put(sent("A"), sent("A")).statuses == [OK, OK]
    shard.crash()


def test_repetition_of_an_undone_send_is_stored(shard: Shard) -> None:
    """Also where its bytes have reached the disk."""
    first = shard.store.put(sent("A"))
    batch = shard.store.take()
    assert batch is not None
    shard.store.log.write(batch.runs)
    assert shard.store.put(sent("A")).statuses == [DUPLICATE]
    shard.store.undo()
    again = shard.store.put(sent("A"))
    assert (first.statuses, again.statuses) == ([OK], [OK])


async def test_repetition_of_a_send_in_flight_shares_its_result(shard: Shard) -> None:
    for ends_well in (True, False):
        name = f"A{ends_well}"
        shard.store.put(sent(name))
        batch = shard.store.take()
        assert batch is not None
        assert shard.store.put(sent(name)).statuses == [DUPLICATE]
        durable = shard.store.when_durable()
        assert durable is not None
        assert not durable.done()
        if ends_well:
            shard.store.log.write(batch.runs)
            shard.store.publish(batch, 0)
            await durable
        else:
            # Nothing is stored, and no send was answered as stored.
            refuse(shard.store.undo(), DiskFull("no room"))
            with pytest.raises(DiskFull):
                await durable
            assert shard.put(sent(name)).statuses == [OK]


def test_damaged_place_of_a_first_is_no_first(shard: Shard) -> None:
    shard.put(sent("A"))
    shard.store.recent.add_all(shard_hashes("A"), shard_positions(7), shard.clock.wall_ms)
    assert shard.put(sent("A")).statuses == [DUPLICATE]
    shard.store.recent.add_all(shard_hashes("B"), shard_positions(0, 7, 10**9), shard.clock.wall_ms)
    assert shard.put(sent("B")).statuses == [OK]


def shard_hashes(name: str) -> Ints:
    return np.full(3, record.id_hash(b"orders", name.encode()), np.int64)


def shard_positions(*positions: int) -> Ints:
    return np.resize(np.array(positions, np.int64), 3)


def test_body_of_a_first_is_not_read(shard: Shard) -> None:
    shard.put(sent("A", body=bytes(500_000)))
    log = VisibleLog(shard.store.log, shard.store.published_end, ())
    read = log.read
    sizes: list[int] = []

    def counting(position: int, size: int) -> bytes:
        sizes.append(size)
        return read(position, size)

    log.read = counting  # type: ignore[method-assign]
    found = log.record_at(0)
    assert found is not None
    assert found.name == (b"orders", b"A", b"")
    assert sum(sizes) < RECORD_BYTES


@given(
    st.builds(
        record.Record,
        topic=st.sampled_from(["orders", "o", "x" * 127]),
        queue=st.integers(0, 9),
        body=st.binary(max_size=400),
        properties=st.sampled_from([b"UNIQ_KEY\x01k", b"", b"TAGS\x01t\x02UNIQ_KEY\x01k\x02REAL_TOPIC\x01r"]),
        born_host=st.sampled_from([bytes(8), bytes(20)]),
        store_host=st.sampled_from([bytes(8), bytes(20)]),
        magic=st.sampled_from([layout.MAGIC_V1, layout.MAGIC_V2]),
        stored_at_ms=st.integers(0, 2**40),
        queue_offset=st.integers(0, 2**40),
        position=st.just(0),
    )
)
def test_any_shape_of_record_is_recognised(found: record.Record) -> None:
    class Log:
        def read(self, position: int, size: int) -> bytes:
            return record.encode(found)[position : position + size]

    first = VisibleLog(Log(), 10**6, ()).record_at(0)  # type: ignore[arg-type]
    assert first is not None
    assert (first.topic, first.queue, first.properties) == (found.topic.encode(), found.queue, found.properties)
    assert (first.queue_offset, first.stored_at_ms) == (found.queue_offset, found.stored_at_ms)
    assert VisibleLog(Log(), 0, ()).record_at(0) is None  # type: ignore[arg-type]


def test_twenty_ids_sent_twenty_times_in_parallel_are_stored_once(tmp_path: Path) -> None:
    """As puts that join several callers carry them, some staged, some being flushed, some with their first attempts."""
    for seed in range(20):
        chance = random.Random(seed)
        shard = Shard(tmp_path / f"store-{seed}", HandClock())
        try:
            sends = [(name, True) for name in range(20) for _ in range(19)]
            chance.shuffle(sends)
            # Each id's first attempt comes before most of its repetitions.
            for name in range(20):
                sends.insert(chance.randrange(len(sends) // 4), (name, False))
            batch = None
            told: dict[int, set[int]] = {}
            while sends:
                part, sends = sends[: chance.randrange(1, 30)], sends[30:]
                put = b"".join(sent(f"id-{name}", level=name % 2) for name, _ in part)
                outcome = shard.store.put(put)
                for (name, _), offset in zip(part, outcome.queue_offsets, strict=True):
                    told.setdefault(name, set()).add(offset)
                if batch is None and chance.random() < 0.5:
                    batch = shard.store.take()
                elif batch is not None:
                    shard.store.log.write(batch.runs)
                    shard.store.publish(batch, 0)
                    batch = None
            if batch is not None:
                shard.store.log.write(batch.runs)
                shard.store.publish(batch, 0)
            shard.flush()
            stored = [*ids(shard.pulled()), *ids(shard.pulled("SCHEDULE_TOPIC_XXXX"))]
            assert sorted(stored) == sorted({f"id-{name}" for name in told}), seed
            assert all(len(offsets) == 1 for offsets in told.values()), seed
        finally:
            shard.crash()
