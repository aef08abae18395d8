"""Checks that a record put in an entry's place is that entry's restored record, and no other message.

The pending record in the log alone decides the restored one (duetime_format.restore); the scheduler has no choice. So
each restored record is compared with the expected one, byte for byte; nearly all pass in one compiled run. An entry may
be quarantined only if it can't be restored: its record is unreadable, has no valid destination, or yields a record that
this store rejects.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from duetime_core.errors import InvalidArgument
from duetime_core.telemetry.logs import sparing
from duetime_core.telemetry.traces import name_of
from duetime_format import record
from duetime_format.errors import DamagedBytes
from duetime_format.lanes import lane_of
from duetime_format.names import QUARANTINE_TOPIC
from duetime_format.properties import decode_properties, value_of
from duetime_format.restore import PulledEntry, UnrestorableEntry, is_entry, message_id_of, quickest_count, restore
from duetime_format.units import FILLER_SIZE, Ints, Units

from duetime_store.log.commitlog import CommitLog
from duetime_store.log.intake import Intake
from duetime_store.log.spread import are_spread, span_bytes

log = sparing()

_QUARANTINE_TOPIC = QUARANTINE_TOPIC.encode()
# The properties of a quarantine record.
_ASIDE_PROPERTIES = {record.UNIQ_KEY, record.FAULT, record.LANE_ENTRY, record.CRC}
# Characters of a rejected record's topic or id shown in the answer.
_SHOWN_CHARS_MAX = 64

# Returns the reason to reject a record; empty: accepted.
Refusal = Callable[[bytes], str]


@dataclass(frozen=True, slots=True)
class Original:
    """An entry's own record. If it is unreadable, `damage` is the reason, and `data` holds the bytes in its place."""

    data: bytes
    damage: str = ""


class Originals:
    """Compares records of puts with the entries that they name."""

    def __init__(self, log: CommitLog, refusal: Refusal) -> None:
        self._log = log
        self._refusal = refusal
        # Records rejected because they differ from their entries.
        self.mismatched_count = 0

    def genuine(self, intake: Intake, indices: Ints, lane: int, entries: Ints, units: Units) -> tuple[int, str]:
        """Compares the records at `indices` with the lane's entries. Returns the number of matching records before the
        first mismatch, and its fault. `units`: those of the entries."""
        # The ends of runs of consecutive records.
        ends = np.append(np.flatnonzero(np.diff(indices) != 1) + 1, len(units)).tolist()
        count = 0
        for end in ends:
            while count < end:
                count += self._count_matching(intake, int(indices[count]), lane, entries[count:end], units[count:end])
                if count < end:
                    index, entry = int(indices[count]), int(entries[count])
                    fault = self._compare(intake, index, lane, entry, units[count].item())
                    if fault:
                        self.mismatched_count += 1
                        log.warning("record rejected in place of a pending message", lane=lane, entry=entry, why=fault)
                        return count, fault
                    count += 1
        return count, ""

    def _count_matching(self, intake: Intake, index: int, lane: int, entries: Ints, units: Units) -> int:
        """Stops also where the next record is in another segment, unless the records are spread over the log."""
        start = int(intake.starts[index])
        if are_spread(units, self._log.segment_bytes):
            data, places = self._log.read_spread(units)
            stop = len(places)
            if stop:
                return int(quickest_count(data, 0, units[:stop], lane, entries[:stop], intake.data, start, places))
        segment = self._log.segment_at(int(units["position"][0]))
        if segment is None:
            return 0
        count = quickest_count(segment.map, segment.base, units, lane, entries, intake.data, start)
        segment.touch(span_bytes(units[:count]))
        return int(count)

    def _compare(self, intake: Intake, index: int, level: int, entry: int, unit: tuple[int, int, int]) -> str:
        data = intake.bytes_of(index)
        topic, _ = intake.keys[int(intake.key_of[index])]
        original = self._original(level, entry, unit)
        expected, why = self._expected(PulledEntry(level, entry, unit[2], original.data), original.damage)
        if topic == _QUARANTINE_TOPIC:
            return _aside_fault(data, original) if why else f"entry {entry} of lane {level} can be restored"
        if why:
            return f"entry {entry} of lane {level} can't be restored, only quarantined: {why}"
        return "" if data == expected else f"is not entry {entry} of lane {level}: {_difference(data, expected)}"

    def _original(self, level: int, entry: int, unit: tuple[int, int, int]) -> Original:
        position, size, _ = unit
        if size == FILLER_SIZE:
            return Original(b"", "the log has no record for it")
        data = self._log.read(position, size)
        try:
            found = record.decode(data)
        except DamagedBytes as error:
            return Original(data, error.text)
        if (
            found.size != size
            or lane_of(found.topic, found.queue) != level
            or not is_entry(data, level, entry, position)
        ):
            return Original(data, "another record is in its place")
        return Original(data)

    def _expected(self, entry: PulledEntry, damage: str) -> tuple[bytes, str]:
        """The record that belongs in the entry's place, or the reason for having none."""
        if damage:
            return b"", damage
        try:
            expected = restore(entry)
        except UnrestorableEntry as error:
            return b"", str(error)
        except Exception as error:
            # A bug of ours, which schedulers have too: one odd entry must not block its lane.
            return b"", name_of(error)
        try:
            return expected, self._refusal(expected)
        except InvalidArgument as error:
            return expected, error.text


def _aside_fault(data: bytes, original: Original) -> str:
    """The fault of a record that quarantines an entry. The scheduler words its reason freely."""
    try:
        found = record.decode(data, check_crc=False)
    except DamagedBytes as error:
        return error.text
    properties = decode_properties(found.properties)
    if found.queue != 0 or not properties.keys() <= _ASIDE_PROPERTIES:
        return "is not a quarantine record"
    if found.body != original.data[: len(found.body)]:
        return "quarantines other bytes than the entry's"
    message_id, own = properties.get(record.UNIQ_KEY, ""), message_id_of(original.data)
    if message_id and message_id != own:
        return f"quarantines message {_shown(message_id.encode())}, but the entry's is {_shown(own.encode())}"
    return ""


def _difference(data: bytes, expected: bytes) -> str:
    """The first difference of a record from the expected one."""
    try:
        given, right = record.decode(data, check_crc=False), record.decode(expected, check_crc=False)
    except DamagedBytes as error:
        return error.text
    if given.topic != right.topic:
        return f"its topic is {_shown(given.topic.encode())}, not {right.topic}"
    if given.queue != right.queue:
        return f"its queue is {given.queue}, not {right.queue}"
    if given.body != right.body:
        return f"its body of {len(given.body)} bytes is not the pending one of {len(right.body)}"
    ids = [value_of(one.properties, record.UNIQ_KEY.encode()) for one in (given, right)]
    if ids[0] != ids[1]:
        return f"its id is {_shown(ids[0])}, not {_shown(ids[1])}"
    if given.properties != right.properties:
        return "its properties are not the pending ones"
    return "its head is not the pending one's"


def _shown(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace")[:_SHOWN_CHARS_MAX])
