r"""The record that replaces a due lane entry: its restored record, or a quarantine record. Pure bytes.

Schedulers make these records, and stores accept no others: both use this module, so a store rejects records made by
another version that differ. Its output for an entry must therefore never change, unless stores still accept the old
form too.

The restored record differs from the lane's in

    topic, queueId              from REAL_TOPIC and REAL_QID
    queueOffset, position,
    storeTimestamp              0: the store fills them in
    preparedTransactionOffset   0
    properties                  + DT_ENTRY, the lane entry it comes from, as the last one
                                a CRC mark of its own after them, for the store to fill in

DELAY, TIMER_OUT_MS, REAL_TOPIC and REAL_QID stay, as in RocketMQ; the DT_ENTRY of an entry replaced by the lane's
record does not. An entry that can't be restored becomes a record of DT_QUARANTINE with the original's bytes and the
reason, and the same ending: the watermark passes it.
"""

from dataclasses import dataclass, replace
from mmap import mmap

import numpy as np

from duetime_format import layout, record
from duetime_format.compiled import twin
from duetime_format.errors import DamagedBytes
from duetime_format.lanes import place_of
from duetime_format.limits import BODY_BYTES_MAX, PROPERTIES_BYTES_MAX, TOPIC_CHARS_MAX
from duetime_format.names import HALF_TOPIC, QUARANTINE_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, is_name
from duetime_format.properties import VALUE_END, decode_properties, encode_properties
from duetime_format.units import Ints, Units

# A quarantine record has the original as its body, which must stay below the body's limit.
QUARANTINE_BODY_BYTES_MAX = BODY_BYTES_MAX - 64 * 1024
FAULT_CHARS_MAX = 1_000

# Properties that a restored record does not inherit: an older lane entry, and the checksum of a changed record.
_NOT_KEPT = (b"DT_ENTRY\x01", b"__CRC32#\x01")
# Left out if the lane entry would not fit otherwise: they are no longer needed.
_DEFERRAL = (b"DELAY\x01", b"REAL_TOPIC\x01", b"REAL_QID\x01")

_QUEUE_ID_MAX = 2**31 - 1
# A delayed half message has lost its topic, and nothing would ever commit it; a broker's timer that was put back has
# not.
_NO_TARGETS = (SCHEDULE_TOPIC, TIMER_TOPIC, QUARANTINE_TOPIC, HALF_TOPIC)


class UnrestorableEntry(Exception):
    """The entry can't be restored; the text is the reason."""


@dataclass(slots=True)
class PulledEntry:
    """One lane entry as the store gave it. `data` is empty when the record is damaged."""

    lane: int
    number: int
    due_at_ms: int
    data: bytes


@dataclass(slots=True)
class PulledEntries:
    """Entries of a lane as the store gave them: `records` back to back, no bytes for an entry of size 0."""

    lane: int
    # Entry numbers, an i64 array.
    numbers: Ints
    records: bytes
    sizes: list[int]
    due_at_ms: list[int]

    def entry(self, index: int) -> PulledEntry:
        at = sum(self.sizes[:index])
        data = self.records[at : at + self.sizes[index]]
        return PulledEntry(self.lane, int(self.numbers[index]), self.due_at_ms[index], data)


def restore_run(entries: PulledEntries, index: int) -> tuple[bytes, int]:
    """Restored records of the entries from `index` on, back to back, and their number.

    The run ends at the first entry that `restore` has to judge; the compiled one may end sooner.
    """
    restored: list[bytes] = []
    at = sum(entries.sizes[:index])
    for row in range(index, len(entries.sizes)):
        end = at + entries.sizes[row]
        entry = PulledEntry(entries.lane, int(entries.numbers[row]), entries.due_at_ms[row], entries.records[at:end])
        try:
            restored.append(restore(entry))
        except UnrestorableEntry:
            break
        at = end
    return b"".join(restored), len(restored)


def count_restored(
    log: mmap | bytes,
    base: int,
    units: Units,
    lane: int,
    numbers: Ints,
    records: bytes,
    start: int,
    places: Ints | None = None,
) -> int:
    """The number of a lane's units with their restored records in `records`, back to back from byte `start` on. Stops
    at the first mismatch, or the first one that `restore` has to judge.

    Args:
        log: a segment's bytes, beginning at position `base`.
        numbers: of the units' entries, an i64 array.
        places: starts of the units' records in `log`, which then has just these, and `base` is 0.
    """
    at = start
    begins = units["position"].astype(np.int64) - base if places is None else places
    for index, (position, size, due_at_ms) in enumerate(units.tolist()):
        number = int(numbers[index])
        begin = int(begins[index])
        own = log[begin : begin + size] if 0 <= begin <= len(log) - size else b""
        if len(own) != size or size < layout.RECORD_BYTES_MIN or not is_entry(own, lane, number, position):
            return index
        try:
            restored = restore(PulledEntry(lane, number, due_at_ms, own))
        except UnrestorableEntry:
            return index
        if records[at : at + len(restored)] != restored:
            return index
        at += len(restored)
    return len(units)


def is_entry(data: bytes, lane: int, number: int, position: int) -> bool:
    """Whether a record names itself as this entry of a lane, at this position."""
    fields = layout.PREFIX.unpack_from(data)
    return (fields[3], fields[5], fields[6]) == (place_of(lane)[1], number, position)


_compiled = twin("duetime_format._restore")
quickest_run = restore_run if _compiled is None else _compiled.restore_run
quickest_count = count_restored if _compiled is None else _compiled.count_restored


def restore(entry: PulledEntry) -> bytes:
    """The entry's restored record.

    Raises:
        UnrestorableEntry: it names no valid topic or queue, or its bytes are not a record.
    """
    try:
        found = record.decode(entry.data, check_crc=False)
    except DamagedBytes as error:
        raise UnrestorableEntry(error.text) from error
    topic, queue = target_of(found.properties)
    return record.encode(
        replace(
            found,
            topic=topic,
            queue=queue,
            properties=_restored_properties(found.properties, entry),
            stored_at_ms=0,
            prepared_transaction_offset=0,
            queue_offset=0,
            position=0,
            magic=layout.MAGIC_V1,
        )
    )


def target_of(properties: bytes) -> tuple[str, int]:
    """Topic and queue named by the properties. Raises: UnrestorableEntry."""
    named = decode_properties(properties)
    topic, queue = named.get(record.REAL_TOPIC, ""), named.get(record.REAL_QID, "")
    if not topic:
        raise UnrestorableEntry("it has no REAL_TOPIC")
    if not is_name(topic) or len(topic) > TOPIC_CHARS_MAX or topic in _NO_TARGETS:
        raise UnrestorableEntry(f"REAL_TOPIC {topic!r} is not a topic to restore to")
    if not (queue.isascii() and queue.isdigit() and len(queue) <= 10 and int(queue) <= _QUEUE_ID_MAX):
        raise UnrestorableEntry(f"REAL_QID {queue!r} is not a queue")
    return topic, int(queue)


def _restored_properties(properties: bytes, entry: PulledEntry) -> bytes:
    parts = [part for part in properties.split(VALUE_END) if part and not part.startswith(_NOT_KEPT)]
    ending = record.lane_entry(entry.lane, entry.number, entry.due_at_ms)
    restored = record.with_crc_mark(VALUE_END.join([*parts, ending]))
    if len(restored) > PROPERTIES_BYTES_MAX:
        kept = VALUE_END.join([*(part for part in parts if not part.startswith(_DEFERRAL)), ending])
        restored = record.with_crc_mark(kept)
        if len(restored) > PROPERTIES_BYTES_MAX:
            # Only a broker's record is so full, and had no mark in the lane either.
            restored = kept
    if len(restored) > PROPERTIES_BYTES_MAX:
        raise UnrestorableEntry(f"its properties would take {len(restored)} bytes; the limit is {PROPERTIES_BYTES_MAX}")
    return restored


def quarantine(entry: PulledEntry, reason: str, *, keep_body: bool = True) -> bytes:
    """The record that replaces an entry that can't be restored, with the original as its body."""
    body = entry.data[:QUARANTINE_BODY_BYTES_MAX] if keep_body else b""
    if len(body) < len(entry.data) and len(entry.data) >= layout.PREFIX_BYTES:
        position = layout.PREFIX.unpack_from(entry.data)[6]
        reason = f"{reason}; whole at log position {position}, {len(entry.data)} bytes"
    reason = reason.replace("\x01", " ").replace("\x02", " ")[:FAULT_CHARS_MAX]
    message_id = message_id_of(entry.data)
    properties = encode_properties(
        {**({record.UNIQ_KEY: message_id} if message_id else {}), record.FAULT: reason or "unknown"}
    )
    ending = record.lane_entry(entry.lane, entry.number, entry.due_at_ms)
    return record.encode(
        record.Record(
            topic=QUARANTINE_TOPIC,
            queue=0,
            body=body,
            properties=record.with_crc_mark(properties + VALUE_END + ending),
            born_at_ms=entry.due_at_ms,
        )
    )


def message_id_of(data: bytes) -> str:
    """The id of the message, if its record is whole enough."""
    try:
        properties = record.decode(data, check_crc=False).properties
    except DamagedBytes:
        return ""
    return decode_properties(properties).get(record.UNIQ_KEY, "")[:255]
