"""The facts of a run, against its records one by one."""

import numpy as np
import pytest
from duetime_format import ends, halves, layout, plans, record
from duetime_format.columns import RecordRun, take
from duetime_format.deletions import Deletion
from duetime_format.lanes import LanePlace
from duetime_format.names import (
    CANCELLED_TOPIC,
    DELETED_TOPIC,
    GIVEN_UP_TOPIC,
    OP_TOPIC,
    PLANS_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from duetime_format.record import Record, encode
from duetime_shard.facts import NOWHERE, Facts, by_lane, decided, facts_of
from duetime_shard.laneends import LaneEndReader

OUT = b"TIMER_OUT_MS\x011700000000000"


def run_of(*records: Record) -> RecordRun:
    data = bytearray()
    for one in records:
        fields = {name: getattr(one, name) for name in Record.__slots__} | {"position": len(data)}
        data += encode(Record(**fields))
    run = take(bytes(data), 0, 0)
    assert run.count == len(records)
    return run


def facts(*records: Record, before_ms: int = 0) -> Facts:
    return facts_of(run_of(*records), before_ms)


def message(text: bytes, topic: str = "orders", at_ms: int = 10) -> Record:
    return Record(topic, 0, b"b", text, stored_at_ms=at_ms)


def system(topic: str, body: bytes) -> Record:
    return Record(topic, 0, body, b"", stored_at_ms=10)


def test_restored_and_replaced_entries_are_told_apart() -> None:
    found = facts(
        message(b"DT_ENTRY\x013:7:99"),
        message(b"n\x01v"),
        message(b"DT_ENTRY\x011000:5:88\x02" + OUT, TIMER_TOPIC),
        message(b"DT_ENTRY\x013:8:99", SCHEDULE_TOPIC),
    )
    assert found.restored[:3].T.tolist() == [[3, 7, 99]]
    assert found.replaced[:3].T.tolist() == [[1000, 5, 88]]
    assert not found.cancelled.size
    assert found.replaced[3] > found.restored[3]


def test_rows_of_system_topics_are_read() -> None:
    plan = plans.Plan(1000, [(b"orders", 0)], plans.rows_of(np.array([0]), np.array([4]), np.array([9])))
    deletion = Deletion("orders", 2, (5,))
    rows = ends.encode(2, np.array([3, 4]), np.array([30, 40])) + ends.encode(1000, np.array([6]), np.array([60]))
    found = facts(
        system(CANCELLED_TOPIC, rows), system(PLANS_TOPIC, plan.encode()), system(DELETED_TOPIC, deletion.encode())
    )
    assert {lane: own[:2].T.tolist() for lane, own in by_lane(found.cancelled)} == {
        2: [[3, 30], [4, 40]],
        1000: [[6, 60]],
    }
    ((at_ms, planned),) = found.planned
    assert (at_ms, planned.lane, planned.rows["entry"].tolist()) == (10, 1000, [4])
    assert [one._replace(position=0) for one in found.deleted] == [deletion]
    assert found.deleted[0].position > 0
    assert not found.damage


@pytest.mark.parametrize("topic", [CANCELLED_TOPIC, PLANS_TOPIC, DELETED_TOPIC])
def test_unreadable_system_record_is_damage_and_hides_no_other(topic: str) -> None:
    found = facts(system(topic, b"\xff"), message(b"DT_ENTRY\x013:7:99"))
    ((position, what),) = found.unread_plans if topic == PLANS_TOPIC else found.damage
    assert position == 0
    assert not (topic == PLANS_TOPIC and found.damage)
    assert what.startswith(f"record of {topic}: ")
    assert found.restored.size


def test_copies_are_older_than_the_records_before_them() -> None:
    texts = [b"DT_ENTRY\x011000:%d:88\x02" % entry + OUT for entry in range(3)]
    found = facts(*(message(text, TIMER_TOPIC, at) for text, at in zip(texts, (20, 15, 25), strict=True)), before_ms=18)
    assert found.copied.tolist() == [False, True, False]
    reader = LaneEndReader()
    reader.see(found)
    lane = reader.ends(1000)
    assert lane.ended()[0].tolist() == [0, 1, 2]
    assert lane.ended(since=1)[0].tolist() == [2], "those of copies have ended before"
    assert lane.left[0].tolist() == [0, 2]
    lane.add_ended(np.array([0, 9]), np.array([0, 90]))
    assert lane.ended_entries.tolist() == [0, 1, 2, 9]
    assert lane.ended()[1].tolist() == [88, 88, 88, 90], "the log has the due time"
    assert lane.left[0].tolist() == [0, 2]


def test_restored_entries_of_a_checkpoint_are_left_out() -> None:
    found = facts(
        *(message(b"DT_ENTRY\x01%d:%d:%d" % row) for row in [(3, 6, 1), (3, 7, 1), (1000, 4, 50), (1000, 5, 50)])
    )
    reader = LaneEndReader({3: 7}, {1000: LanePlace(50, 4)})
    reader.see(found)
    assert reader.ends(3).restored_entries.tolist() == [7]
    assert reader.ends(1000).restored_entries.tolist() == [5]
    assert reader.lanes == {3, 1000}


def test_ends_of_half_messages_are_told_with_their_record() -> None:
    op = halves.op_record(b"3,4,", halves.ROLLED_BACK, 10)
    flags = {"sys_flag": layout.SYS_TRANSACTION_COMMIT, "prepared_transaction_offset": 500}
    records = [
        record.decode(op, check_crc=False),
        Record(GIVEN_UP_TOPIC, 0, b"b", b"DT_HALF\x017"),
        Record("orders", 0, b"b", b"DT_HALF\x018", **flags),
        Record("orders", 0, b"b", b"n\x01v", **flags),
        Record("orders", 0, b"b", b"DT_HALF\x018\x02DT_ENTRY\x013:7:99", **flags),
        Record(OP_TOPIC, 0, b"x", b""),
        Record(OP_TOPIC, 0, b"x", record.decode(op, check_crc=False).properties),
        Record(OP_TOPIC, 1, b"9,", b""),
    ]
    rows, damage = decided(run_of(*records))
    assert rows.T.tolist() == [
        [3, halves.ROLLED_BACK, 0, 1],
        [4, halves.ROLLED_BACK, 0, 1],
        [7, halves.GIVEN_UP, 1, 0],
        [8, halves.COMMITTED, 2, 0],
        [NOWHERE, halves.COMMITTED, 3, 0],
    ]
    ((_, what),) = damage
    assert "is not an offset of a half message" in what
