"""A shard's log with half messages, as brokers and DueTime write them, record by record."""

import json
from pathlib import Path

from duetime_format import halves, record
from duetime_format.names import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC
from duetime_format.properties import decode_properties, encode_properties
from duetime_format.record import Record, encode
from duetime_shard.halves import GROUP

START_MS = 1_700_000_000_000
SEGMENT_BYTES = 1 << 20
COMMIT = 8


class HalfLog:
    """Each method appends a record; `write` writes the files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = bytearray()
        # Position of the newest record, by the half message's offset.
        self.positions: dict[int, int] = {}
        self._offsets: dict[tuple[str, int], int] = {}
        self._records: dict[int, Record] = {}

    def half(
        self, message_id: str, *, topic: str = "orders", group: str = "g", born_ms: int = START_MS, **more: str
    ) -> int:
        """A half message. Returns its offset."""
        known = {"UNIQ_KEY": message_id} if message_id else {}
        known |= {"TRAN_MSG": "true", "PGROUP": group, "REAL_TOPIC": topic, "REAL_QID": "0", "TAGS": "t", **more}
        return self._half(Record(HALF_TOPIC, 0, message_id.encode(), encode_properties(known), born_at_ms=born_ms))

    def asked(self, offset: int, checks: int) -> int:
        """The half message again, as a broker appends it when it asks. Returns the new offset."""
        return self._again(offset, TRANSACTION_CHECK_TIMES=str(checks))

    def put_off(self, offset: int) -> int:
        """The half message again, as a broker appends it while it is immune. Returns the new offset."""
        return self._again(offset, TRAN_PREPARED_QUEUE_OFFSET=str(offset))

    def kept(self, offset: int) -> None:
        """Retention appends a half message once more, at its offset."""
        self._write(self._records[offset], offset)
        self.positions[offset] = self._last

    def op(self, body: str) -> int:
        """A broker's op record. Returns its position."""
        return self._append(Record(OP_TOPIC, 0, body.encode(), encode_properties({"TAGS": "d"})))

    def ended(self, decision: str, *offsets: int) -> int:
        """An op record of ours. Returns its position."""
        properties = encode_properties({"TAGS": "d", "DT_DECISION": decision})
        return self._append(Record(OP_TOPIC, 0, next(halves.op_bodies(offsets)), properties))

    def committed(self, offset: int, *, ours: bool = False, topic: str = "orders") -> int:
        """The real record of a half message. Returns its position."""
        half = self._records[offset]
        named = {"DT_HALF": str(offset)} if ours else {}
        properties = half.properties + b"\x02" + encode_properties(named)
        place = {"prepared_transaction_offset": self.positions[offset], "born_at_ms": half.born_at_ms}
        return self._append(Record(topic, 0, half.body, properties, sys_flag=COMMIT, **place))

    def given_up(self, offset: int, *, ours: bool = False) -> int:
        """The message in the topic of those that were given up. Returns its position."""
        half = self._records[offset]
        properties = half.properties + b"\x02" + encode_properties({"DT_HALF": str(offset)} if ours else {})
        return self._append(Record(GIVEN_UP_TOPIC, 0, half.body, properties, born_at_ms=half.born_at_ms))

    def write(self, half_progress: int | None = None, op_progress: int = 0) -> Path:
        (self.root / "commitlog").mkdir(parents=True)
        (self.root / "commitlog" / f"{0:020d}").write_bytes(bytes(self.data).ljust(SEGMENT_BYTES, b"\0"))
        (self.root / "config").mkdir()
        if half_progress is not None:
            known = {HALF_TOPIC: half_progress, OP_TOPIC: op_progress}
            table = {f"{topic}@{GROUP}": {"0": offset} for topic, offset in known.items()}
            (self.root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
        return self.root

    def _half(self, found: Record) -> int:
        position = self._append(found)
        offset = self._offsets[HALF_TOPIC, 0] - 1
        self.positions[offset], self._records[offset] = position, found
        return offset

    def _again(self, offset: int, **changes: str) -> int:
        found = self._records[offset]
        properties = encode_properties({**decode_properties(found.properties), **changes})
        return self._half(Record(HALF_TOPIC, 0, found.body, properties, born_at_ms=found.born_at_ms))

    def _append(self, found: Record) -> int:
        offset = self._offsets.get((found.topic, found.queue), 0)
        self._offsets[found.topic, found.queue] = offset + 1
        self._write(found, offset)
        return self._last

    def _write(self, found: Record, offset: int) -> None:
        self._last = len(self.data)
        known = {name: getattr(found, name) for name in ("sys_flag", "born_at_ms", "prepared_transaction_offset")}
        place = {"queue_offset": offset, "position": self._last, "stored_at_ms": START_MS}
        properties = record.without_crc_mark(found.properties)
        self.data += encode(Record(found.topic, found.queue, found.body, properties, **known, **place))
