"""Checks index files against the records of the log: every entry names a record with its key, every chain is whole.

Entries are in the order of the log, so they are compared with it run by run. One out of order is looked up by itself.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from duetime_format import record
from duetime_format.columns import Ints, RecordRun
from duetime_format.errors import DamagedBytes
from duetime_format.keys import key_hash, rows_of, words_of
from duetime_format.properties import as_text, decode_properties
from duetime_format.record import Record
from duetime_shard.records import message
from duetime_shard.shard import DirectoryState

from duetime_store.finding.index import ENTRY, HEADER, SLOT_BYTES, Entries, IndexFile, file_paths
from duetime_store.offline.report import DamagedMessage, VerifyReport

_ENTRIES_AT_ONCE = 65_536
_HASH_BITS = 31
# Maximum wrong slots named one by one in a file; a wrong header makes many of them wrong.
_SLOTS_NAMED_MAX = 100


class _CheckedFile:
    """An index file, read from entry to entry; `slots` are built from its entries so far."""

    def __init__(self, path: Path) -> None:
        self.name = f"index/{path.name}"
        self.file = IndexFile(path)
        self.slots = np.zeros(self.file.shape.slot_count, np.int32)
        self.next = 1
        self.first_number = 1
        self.waiting = self.file.entries(1, 1)

    def fill(self, check: Callable[["_CheckedFile", int, Entries], None]) -> bool:
        """Reads more entries when none waits; False at the end."""
        if not len(self.waiting):
            stop = min(self.next + _ENTRIES_AT_ONCE, self.file.header.next_entry)
            self.first_number, self.waiting = self.next, self.file.entries(self.next, stop)
            check(self, self.next, self.waiting)
            self.next = stop
        return len(self.waiting) > 0

    def entry_at(self, number: int) -> int:
        """The byte offset of an entry in the file."""
        return self.file.shape.entries_at + number * ENTRY.size


class IndexCheck:
    """Takes the records of the log in order."""

    def __init__(self, state: DirectoryState, report: VerifyReport, is_known: Callable[[int], bool]) -> None:
        """`is_known`: whether a position is in a damaged part of the log, which is reported already."""
        self._state = state
        self._report = report
        self._is_known = is_known
        self._is_killed = (state.root / "abort").exists()
        self._paths = file_paths(state.root / "index")
        self._current: _CheckedFile | None = None

    def see_run(self, run: RecordRun) -> None:
        """Compares the entries that name records up to the end of the run."""
        hashes: Ints | None = None
        while (file := self._file()) is not None:
            positions = file.waiting["position"].astype(np.int64)
            # Stops once all following entries are after the run: one out of order does not delay the others.
            lowest = np.minimum.accumulate(positions[::-1])[::-1]
            count = int(np.searchsorted(lowest, run.end_position))
            if not count:
                return
            if hashes is None:
                rows = rows_of(run)
                owners = np.searchsorted(run.positions, rows["position"])
                hashes = np.unique(owners << _HASH_BITS | rows["hash"])
            self._compare(file, run, file.waiting[:count], hashes)
            file.waiting = file.waiting[count:]
            file.first_number += count

    def finish(self) -> None:
        """Checks the entries after the last record."""
        while (file := self._file()) is not None:
            for place, entry in enumerate(file.waiting):
                self._look_up(file, file.first_number + place, entry)
            file.waiting = file.waiting[:0]

    def _file(self) -> _CheckedFile | None:
        """The file with entries that wait to be compared."""
        while True:
            if self._current is not None:
                if self._current.fill(self._check_chains):
                    return self._current
                self._finish_file(self._current)
                self._current = None
            if not self._paths:
                return None
            path = self._paths.pop(0)
            try:
                self._current = _CheckedFile(path)
            except FileNotFoundError:
                continue  # it was deleted in the meantime
            except DamagedBytes as error:
                self._report.add(f"index/{path.name}", 0, error.text)

    def _compare(self, file: _CheckedFile, run: RecordRun, entries: Entries, hashes: Ints) -> None:
        self._report.index_entries += len(entries)
        positions, places = entries["position"].astype(np.int64), run.positions
        owners = np.minimum(np.searchsorted(places, positions), run.count - 1)
        right = places[owners] == positions
        right &= np.isin(owners << _HASH_BITS | entries["hash"], hashes)
        right &= _times_fit(file, file.first_number, entries, run.stored_at_ms[owners])
        for place in np.flatnonzero(~right).tolist():
            self._look_up(file, file.first_number + place, entries[place])

    def _look_up(self, file: _CheckedFile, number: int, entry: np.void) -> None:
        """Checks one entry against the record that it names."""
        position = int(entry["position"])
        if self._is_known(position) or 0 <= position < self._state.min_position:
            return
        found = message(self._state, position)
        what = ""
        if found is None or found.position != position:
            what = f"entry {number} names no record: position {position}"
            if position >= self._state.end and self._is_killed:
                return  # written before its record was on disk
        elif int(entry["hash"]) not in _hashes(found):
            what = f"entry {number} names the record at {position}, but that has no key with hash {entry['hash']}"
        elif not _times_fit(file, number, np.array([entry]), np.array([found.stored_at_ms]))[0]:
            what = f"entry {number} says {entry['seconds']} s, but the record at {position} was stored at another time"
        if what:
            self._report.add(file.name, file.entry_at(number), what, message_of(found))

    def _check_chains(self, file: _CheckedFile, first: int, entries: Entries) -> None:
        """Checks that each entry names the one before it in its slot."""
        if not len(entries):
            return
        slots = np.maximum(entries["hash"].astype(np.int64), 0) % file.file.shape.slot_count
        order = np.argsort(slots, kind="stable")
        grouped, numbers = slots[order], order + first
        opens = np.append(True, grouped[1:] != grouped[:-1])
        before = np.append(0, numbers[:-1])
        before[opens] = file.slots[grouped[opens]]
        wrong = entries["previous"][order] != before
        for place in np.flatnonzero(wrong).tolist():
            number = int(numbers[place])
            what = f"entry {number} follows entry {entries['previous'][order[place]]}, not {before[place]} as its slot"
            self._report.add(file.name, file.entry_at(number), what)
        closes = np.append(opens[1:], True)
        file.slots[grouped[closes]] = numbers[closes]

    def _finish_file(self, file: _CheckedFile) -> None:
        """Checks slots and header, once all entries were seen."""
        stored = file.file.slots()
        different = stored != file.slots
        if self._is_killed:
            # An uncounted entry is ignored: a broker writes the slot before it counts.
            different &= (stored < file.file.header.next_entry) | (stored >= file.file.shape.entry_count)
        wrong = np.flatnonzero(different)
        for slot in wrong[:_SLOTS_NAMED_MAX].tolist():
            what = f"slot {slot} names entry {stored[slot]}, its newest is {file.slots[slot]}"
            self._report.add(file.name, HEADER.size + slot * SLOT_BYTES, what)
        self._report.damage_count += len(wrong[_SLOTS_NAMED_MAX:])
        self._check_header(file)
        file.file.close()

    def _check_header(self, file: _CheckedFile) -> None:
        header = file.file.header
        if header.next_entry <= 1:
            return
        first, last = file.file.entries(1, 2)[0], file.file.entries(header.next_entry - 1)[0]
        ends = [
            (8 * number, name, said, position, at_ms)
            for number, name, said, position, at_ms in (
                (0, "first", header.begin_position, int(first["position"]), header.begin_at_ms),
                (1, "last", header.end_position, int(last["position"]), header.end_at_ms),
            )
        ]
        for at, name, said, position, at_ms in ends:
            if said != position:
                what = f"header says that the {name} entry names position {said}, it names {position}"
                self._report.add(file.name, 16 + at, what)
                continue
            found = message(self._state, position) if not self._is_known(position) else None
            if found is not None and found.position == position and found.stored_at_ms != at_ms:
                what = f"header says {at_ms} of the {name} entry, its record {found.stored_at_ms}"
                self._report.add(file.name, at, what)
        used = int(np.count_nonzero(file.slots))
        # Brokers before 4.4 counted every entry.
        if header.used_slots not in (used, header.next_entry - 1):
            self._report.add(file.name, 32, f"header says that {header.used_slots} slots are used, {used} are")


def _times_fit(file: _CheckedFile, first: int, entries: Entries, stored_at_ms: Ints) -> npt.NDArray[np.bool_]:
    """Whether the times of entries, the first being number `first`, equal the store times of their records.

    The first entry of a file counts from the file before.
    """
    begin = file.file.header.begin_at_ms
    fits: npt.NDArray[np.bool_] = entries["seconds"] == np.clip((stored_at_ms - begin) // 1000, 0, (1 << 31) - 1)
    if first == 1:
        fits[:1] = entries["seconds"][:1] >= 0
    return fits


def _hashes(found: Record) -> set[int]:
    return {key_hash(found.topic, as_text(word)) for word in words_of(found.properties)}


def message_of(found: Record | None) -> DamagedMessage:
    """The message that a record holds."""
    if found is None:
        return DamagedMessage()
    words = decode_properties(found.properties).get(record.UNIQ_KEY)
    name = words or record.offset_message_id(found.store_host, found.position)
    return DamagedMessage(found.topic, found.queue, found.queue_offset, name)
