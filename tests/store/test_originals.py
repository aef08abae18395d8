"""An entry's place accepts exactly the record that the entry describes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from duetime_format import record
from duetime_format.names import QUARANTINE_TOPIC
from duetime_format.properties import decode_properties, encode_properties
from duetime_format.record import Record
from duetime_format.restore import PulledEntry, count_restored, quarantine, restore
from duetime_store.writing.staging import DUPLICATE, GAP, OK, REFUSED

from tests.store.conftest import Shard, flip, ids, log_file, restored, sent
from tests.twins import compiled

FORGERIES: dict[str, tuple[Callable[[Record], Record], str]] = {
    "body": (lambda one: replace(one, body=b"ydob"), "its body of 4 bytes is not the pending one of 4"),
    "longer body": (lambda one: replace(one, body=one.body + b"."), "its body of 5 bytes"),
    "topic": (lambda one: replace(one, topic="invoices"), "its topic is 'invoices', not orders"),
    "queue": (lambda one: replace(one, queue=7), "its queue is 7, not 0"),
    "id": (lambda one: replace(one, properties=one.properties.replace(b"KEY\x01A", b"KEY\x01B")), "its id is 'B'"),
    "tag": (lambda one: replace(one, properties=one.properties.replace(b"paid", b"void")), "its properties are not"),
    "flag": (lambda one: replace(one, flag=1), "its head is not the pending one's"),
    "sender": (lambda one: replace(one, born_host=bytes(7) + b"\1"), "its head is not the pending one's"),
    "age": (lambda one: replace(one, born_at_ms=1), "its head is not the pending one's"),
    "compression": (lambda one: replace(one, sys_flag=1), "its head is not the pending one's"),
}


def pending(shard: Shard, *names: str, **options: object) -> None:
    shard.put(*(sent(name, level=1, **options) for name in names or "A"))  # type: ignore[arg-type]
    shard.clock.wall_ms += 1_000


@pytest.mark.parametrize("forge", FORGERIES)
def test_record_that_is_not_the_pending_one_is_refused_and_the_right_one_is_taken(shard: Shard, forge: str) -> None:
    pending(shard)
    make, why = FORGERIES[forge]
    right = restored(shard.store, 1, 0, 1)
    wrong = record.encode(make(record.decode(right)))
    assert wrong != right
    outcome = shard.put_entries(wrong, lane=1, first_entry=0)
    assert outcome.statuses == [REFUSED]
    assert outcome.faults[0].startswith("is not entry 0 of lane 1: ")
    assert why in outcome.faults[0]
    assert (shard.store.originals.mismatched_count, shard.store.lanes[1].watermark) == (1, 0)
    assert shard.put_entries(right, lane=1, first_entry=0).statuses == [OK]
    assert ids(shard.pulled()) == ["A"]


def test_forged_crc_of_a_body_is_no_way_in(shard: Shard) -> None:
    """The encoder writes the CRC of a body, so it may equal the pending one's."""
    pending(shard)
    right = restored(shard.store, 1, 0, 1)
    wrong = right.replace(b"body", b"ydob", 1)
    assert record.decode(wrong, check_crc=False).body_crc == record.decode(right, check_crc=False).body_crc
    assert shard.put_entries(wrong, lane=1, first_entry=0).statuses == [REFUSED]


def test_records_before_a_forged_one_are_accepted_later_ones_are_not(shard: Shard) -> None:
    pending(shard, "A", "B", "C", "D")
    records = [restored(shard.store, 1, entry, 1) for entry in range(4)]
    forged = [*records[:2], records[2].replace(b"body", b"ydob", 1), records[3]]
    assert shard.put_entries(*forged, lane=1, first_entry=0).statuses == [OK, OK, REFUSED, GAP]
    assert shard.put_entries(*records, lane=1, first_entry=0).statuses == [DUPLICATE, DUPLICATE, OK, OK]
    assert ids(shard.pulled()) == ["A", "B", "C", "D"]


def test_entry_that_can_be_restored_is_not_put_aside(shard: Shard) -> None:
    pending(shard)
    position, size, due = shard.store.lanes[1].queue.read(0, 1)[0].item()
    aside = quarantine(PulledEntry(1, 0, due, shard.store.read_record(position, size)), "why not")
    outcome = shard.put_entries(aside, lane=1, first_entry=0)
    assert (outcome.statuses, outcome.faults) == ([REFUSED], {0: "entry 0 of lane 1 can be restored"})
    assert shard.restore(1, 0, 1).statuses == [OK]


def test_damaged_entry_is_put_aside_and_nothing_else_takes_its_place(shard: Shard) -> None:
    pending(shard)
    right = restored(shard.store, 1, 0, 1)
    _, size, due = shard.store.lanes[1].queue.read(0, 1)[0].item()
    flip(log_file(shard), 90)
    outcome = shard.put_entries(right, lane=1, first_entry=0)
    assert outcome.statuses == [REFUSED]
    assert "can't be restored, only quarantined" in outcome.faults[0]
    entry = PulledEntry(1, 0, due, b"")
    other = record.decode(quarantine(entry, "torn"))
    for wrong in (
        replace(other, body=b"another message"),
        replace(other, queue=1),
        replace(other, properties=b"a\x01b\x02" + other.properties),
        replace(other, properties=b"UNIQ_KEY\x01B\x02" + other.properties),
    ):
        assert shard.put_entries(record.encode(wrong), lane=1, first_entry=0).statuses == [REFUSED]
    assert shard.put_entries(quarantine(entry, "torn"), lane=1, first_entry=0).statuses == [OK]
    assert shard.store.lanes[1].quarantined_count == 1
    assert size


def test_entry_that_leads_nowhere_is_put_aside_with_its_bytes(shard: Shard) -> None:
    shard.put(sent("A", level=1).replace(b"REAL_QID\x010", b"REAL_QID\x01x"))
    shard.clock.wall_ms += 1_000
    aside = restored(shard.store, 1, 0, 1)
    assert record.decode(aside).topic == QUARANTINE_TOPIC
    shortened = quarantine(PulledEntry(1, 0, shard.clock.wall_ms, b""), "why")
    # Without the original, as where it would be too large.
    assert shard.put_entries(shortened, lane=1, first_entry=0).statuses == [OK]


def test_entry_with_a_rejected_restored_record_is_put_aside(shard: Shard) -> None:
    """It fits into a segment, but not with the properties that restoring adds."""
    fixed = len(sent("A", level=1, body=b"", topic="x" * 127))
    size = shard.store.log.record_bytes_max - fixed
    pending(shard, topic="x" * 127, body=bytes(size))
    right = restored(shard.store, 1, 0, 1)
    outcome = shard.put_entries(right, lane=1, first_entry=0)
    assert outcome.statuses == [REFUSED]
    due = shard.clock.wall_ms
    assert shard.put_entries(quarantine(PulledEntry(1, 0, due, b""), "too large"), lane=1, first_entry=0).statuses == [
        OK
    ]


def test_odd_shapes_are_compared_too(shard: Shard) -> None:
    """Those that the compiled pass leaves to Python: IPv6 hosts, and a target that is not the last property."""
    odd = record.decode(sent("B", level=1))
    names = decode_properties(odd.properties)
    names = {name: names[name] for name in ("REAL_QID", "REAL_TOPIC", "DELAY", "UNIQ_KEY")}
    mixed = record.with_crc_mark(encode_properties(names))
    shard.put(
        sent("A", level=1),
        record.encode(replace(odd, properties=mixed)),
        record.encode(replace(record.decode(sent("C", level=1)), born_host=bytes(20))),
        sent("D", level=1),
    )
    shard.clock.wall_ms += 1_000
    wrong = [restored(shard.store, 1, entry, 1).replace(b"body", b"ydob", 1) for entry in range(4)]
    for entry in range(4):
        assert shard.put_entries(wrong[entry], lane=1, first_entry=entry).statuses == [REFUSED]
        assert shard.restore(1, entry, 1).statuses == [OK]


def test_compiled_comparison_counts_as_the_python_one(shard: Shard) -> None:
    count = compiled("duetime_format._restore").count_restored
    shard.put(*(sent(f"M{n}", level=1, body=bytes(n % 7)) for n in range(40)))
    shard.clock.wall_ms += 1_000
    units = shard.store.lanes[1].queue.read(0, 40)
    segment = shard.store.log.segment_at(0)
    assert segment is not None
    records = b"".join(
        restore(PulledEntry(1, entry, due, shard.store.read_record(position, size)))
        for entry, (position, size, due) in enumerate(units.tolist())
    )
    for data, start, first, level, base in (
        (records, 0, 0, 1, 0),
        (records[:-1], 0, 0, 1, 0),
        (records[:50], 0, 0, 1, 0),
        (b"x" + records, 1, 0, 1, 0),
        (records, 0, 1, 1, 0),
        (records, 0, 0, 2, 0),
        (records, 0, 0, 1, 5),
        (records, len(records), 0, 1, 0),
        (b"", 0, 0, 1, 0),
        (records.replace(b"M17", b"N17"), 0, 0, 1, 0),
        (records.replace(b"orders", b"ORDERS"), 0, 0, 1, 0),
    ):
        numbers = np.arange(first, first + 40)
        expected = count_restored(segment.map, base, units, level, numbers, data, start)
        assert count(segment.map, base, units, level, numbers, data, start) == expected
    wild = units.copy()
    for field, value in (
        ("position", -1),
        ("position", 2**62),
        ("size", 0x7FFFFFFF),
        ("size", -5),
        ("size", 3),
        ("tags", -9),
    ):
        wild[20] = units[20]
        wild[20][field] = value
        assert count(segment.map, 0, wild, 1, np.arange(40), records, 0) == 20
        assert count_restored(segment.map, 0, wild, 1, np.arange(40), records, 0) == 20
