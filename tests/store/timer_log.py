"""A shard's log with timers, written record by record: all else a reader makes from it."""

from pathlib import Path

import numpy as np
from duetime_format import ends, record
from duetime_format.lanes import place_of
from duetime_format.names import CANCELLED_TOPIC
from duetime_format.properties import encode_properties
from duetime_format.record import Record, encode

START_MS = 1_700_000_000_000
SEGMENT_BYTES = 1 << 20


class TimerLog:
    """Each method appends a record and returns its offset in its queue; `write` writes the file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = bytearray()
        self._offsets: dict[tuple[str, int], int] = {}

    def timer(
        self, message_id: str, due_at_ms: int, *, queue: int = 0, replaces: tuple[int, int, int] | None = None
    ) -> int:
        """A message for any time. `replaces`: lane, entry and due time of the message to replace."""
        properties = {"KEYS": "k", "TAGS": "t", "UNIQ_KEY": message_id, "TIMER_DELIVER_MS": str(due_at_ms)}
        encoded = encode_properties(properties)
        if replaces is not None:
            encoded += b"\x02" + record.lane_entry(*replaces)
        rest = {"TIMER_OUT_MS": f"{due_at_ms - 1:013d}", "REAL_TOPIC": "orders", "REAL_QID": "0"}
        return self._append("rmq_sys_wheel_timer", queue, encoded + b"\x02" + encode_properties(rest))

    def deferred(self, message_id: str, level: int) -> int:
        properties = {"UNIQ_KEY": message_id, **record.deferral(level, "orders", 0)}
        return self._append("SCHEDULE_TOPIC_XXXX", level - 1, encode_properties(properties))

    def restored(self, message_id: str, lane: int, entry: int, due_at_ms: int) -> int:
        properties = encode_properties({"UNIQ_KEY": message_id, "REAL_TOPIC": "orders", "REAL_QID": "0"})
        return self._append("orders", 0, properties + b"\x02" + record.lane_entry(lane, entry, due_at_ms))

    def cancelled(self, lane: int, *rows: tuple[int, int]) -> int:
        """`rows`: entries and due times."""
        entries, dues = (np.array([row[at] for row in rows], np.int64) for at in (0, 1))
        return self._append(CANCELLED_TOPIC, 0, b"", body=ends.encode(lane, entries, dues))

    def copied(self, lane: int, entry: int) -> None:
        """Appends an entry's record once more, as retention does."""
        topic, queue = place_of(lane)
        at = 0
        while at < len(self.data):
            found = record.decode(self.data, at)
            if (found.topic, found.queue, found.queue_offset) == (topic, queue, entry):
                self._write(topic, queue, entry, found.properties, found.body)
                return
            at += found.size
        raise AssertionError(f"lane {lane} has no entry {entry}")

    def write(self) -> Path:
        (self.root / "commitlog").mkdir(parents=True)
        (self.root / "commitlog" / f"{0:020d}").write_bytes(bytes(self.data).ljust(SEGMENT_BYTES, b"\0"))
        return self.root

    def _append(self, topic: str, queue: int, properties: bytes, body: bytes = b"body") -> int:
        offset = self._offsets.get((topic, queue), 0)
        self._offsets[topic, queue] = offset + 1
        self._write(topic, queue, offset, record.with_crc_mark(properties), body)
        return offset

    def _write(self, topic: str, queue: int, offset: int, properties: bytes, body: bytes) -> None:
        place = {"queue_offset": offset, "position": len(self.data), "stored_at_ms": START_MS}
        data = bytearray(encode(Record(topic, queue, body, properties, **place)))
        if record.has_crc_mark(properties):
            data[-record.CRC_DIGITS - 1 : -1] = record.crc_digits(memoryview(data)[: -len(record.CRC_MARK)])
        self.data += data
