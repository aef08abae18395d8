"""Pending messages counted one by one, to compare with the table of counts."""

from collections import Counter

from duetime_format import record
from duetime_format.errors import DamagedBytes
from duetime_format.lanes import LanePlace
from duetime_format.names import QUARANTINE_TOPIC
from duetime_format.properties import decode_properties
from duetime_store.counting.cells import MINUTE_MS
from duetime_store.counting.tally import CountRequest, Tally
from duetime_store.lanes.order.topics import NO_TOPIC
from duetime_store.writing.store import Store

Cell = tuple[int, str, int, int]  # lane, topic, start of the span, its width, in ms


def cells(store: Store) -> dict[Cell, int]:
    """The table's contents."""
    ledger = store.ledger
    tally = Tally(ledger.counts.snapshot(), CountRequest(), 1_000_000)
    for _ in tally.add([lane.number for lane in store.lanes]):
        pass
    found = tally.buckets()
    columns = found.lanes, found.topics, found.starts_ms, found.widths_ms, found.counts
    return {
        (lane, topic_name(store, topic), start, width): count
        for lane, topic, start, width, count in zip(*(column.tolist() for column in columns), strict=True)
    }


def topic_name(store: Store, number: int) -> str:
    return QUARANTINE_TOPIC if number == NO_TOPIC else store.ledger.numbers.names[number].decode()


def pending(store: Store) -> list[tuple[int, int, str, int]]:
    """Lane, entry, topic and due time of each pending message, by its unit and record."""
    found = []
    for lane in store.lanes:
        rows = lane.scan(LanePlace(-1, -1), 1 << 62, 1 << 30)
        units = lane.units(rows.entries)
        for entry, due_at_ms, unit in zip(rows.entries.tolist(), rows.dues.tolist(), units.tolist(), strict=True):
            try:
                # A torn record that still names its topic counts there.
                properties = record.decode(store.read_record(*unit[:2]), check_crc=False).properties
                topic = decode_properties(properties).get(record.REAL_TOPIC, QUARANTINE_TOPIC)
            except DamagedBytes:
                topic = QUARANTINE_TOPIC
            found.append((lane.number, entry, topic, due_at_ms))
        assert len(rows.entries) == lane.pending_count
    return found


def check_counts(store: Store) -> None:
    """The table matches the pending messages exactly."""
    assert not store.ledger.counts.suspects
    table, messages = cells(store), pending(store)
    expected: Counter[Cell] = Counter()
    by_topic: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for lane, topic, start, width in table:
        by_topic.setdefault((lane, topic), []).append((start, width))
    for lane, entry, topic, due_at_ms in messages:
        spans = [span for span in by_topic.get((lane, topic), ()) if span[0] <= due_at_ms < sum(span)]
        assert len(spans) == 1, f"entry {entry} of lane {lane} for {topic} is counted in {spans}"
        expected[lane, topic, *spans[0]] += 1
    wrong = {cell for cell in (*table, *expected) if table.get(cell, 0) != expected.get(cell, 0)}
    assert not wrong, [(cell, table.get(cell, 0), expected.get(cell, 0)) for cell in sorted(wrong)]
    assert all(width >= MINUTE_MS for *_, width in table)
