"""Compares the marks of ended half messages, and the file of open transactions, with the records that ended them.

    record                                          end of the half message
    op record                                       its decision; a broker's: ended
    committed record with DT_HALF, or its place     committed
    DT_HALF in TRANS_CHECK_MAX_TIME_TOPIC           given up

A mark names the place of such a record, or of one that has left the log; after a broker's takeover it may name none.
Conversely, a checkpoint guarantees marks: each half message ended by a record before it is marked. Marks for later
records may be missing until the next start.
"""

import numpy as np
from duetime_format import halves, layout, record
from duetime_format.columns import Ints, RecordRun
from duetime_format.errors import DamagedBytes
from duetime_format.halves import are_ended, ends_of
from duetime_format.names import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC
from duetime_format.record import Record
from duetime_format.units import FILLER_SIZE
from duetime_shard.facts import decided
from duetime_shard.shard import DirectoryState
from duetime_shard.walk import scan_runs

from duetime_store.offline.report import DamagedMessage, VerifyReport
from duetime_store.offline.unitcheck import unit_place, units_at
from duetime_store.recovery.checkpoint import Checkpoint
from duetime_store.transactions import tablefile

_UNITS_AT_ONCE = 65_536
_NAMES = {halves.ENDED: "ended", halves.COMMITTED: "committed", halves.ROLLED_BACK: "rolled back"}
_NAMES[halves.GIVEN_UP] = "given up"
# Offsets, codes and positions.
_Rows = Ints


class HalfCheck:
    """Takes the items of a walk through the log, then checks the half queue."""

    def __init__(self, state: DirectoryState, report: VerifyReport) -> None:
        self._state = state
        self._report = report
        self._found: list[_Rows] = [np.empty((3, 0), np.int64)]

    def see(self, item: object) -> None:
        """Takes an item; only intact records matter."""
        if isinstance(item, RecordRun):
            rows, damage = decided(item)
            self._found.append(np.stack([rows[0], rows[1], item.positions[rows[2]]]))
            for place in damage:
                self._report_at(*place)

    def run(self, point: Checkpoint | None) -> None:
        """`point`: the checkpoint that a start would use."""
        queue = self._state.queues.get((HALF_TOPIC, 0))
        if queue is None:
            return
        # A running store marks units once their ends are in the log, which has grown since the walk.
        for item in scan_runs(self._state.log, self._state.end):
            self.see(item)
        said = np.concatenate(self._found, axis=1)
        said = said[:, np.lexsort((said[2], said[0]))]
        files = queue.files
        for first in range(files.min_offset, files.max_offset, _UNITS_AT_ONCE):
            self._check_marks(np.arange(first, min(first + _UNITS_AT_ONCE, files.max_offset)), said)
        if point is not None:
            self._check_unmarked(said[:, said[2] < point.position])
        self._check_table(point)

    def _check_marks(self, offsets: Ints, said: _Rows) -> None:
        units = units_at(self._state.queues[HALF_TOPIC, 0].files, offsets)
        tags = units["tags"].astype(np.int64)
        marked = are_ended(tags) & (units["size"] > 0) & (units["size"] != FILLER_SIZE)
        codes, positions = ends_of(tags)
        there = marked & (positions >= self._state.min_position) & ~((codes == halves.ENDED) & (positions == 0))
        for index in np.flatnonzero(there).tolist():
            offset, code, position = int(offsets[index]), int(codes[index]), int(positions[index])
            first, stop = np.searchsorted(said[0], [offset, offset + 1]).tolist()
            places = said[1:, first:stop]
            if not self._agrees(places, code, position) and not self._is_commit(offset, code, position):
                what = f"unit says the half message was {_NAMES[code]} at {position}, but no record there does"
                self._add(offset, what)

    @staticmethod
    def _agrees(places: Ints, code: int, position: int) -> bool:
        """Whether the record there says so; a broker's op record has no outcome."""
        codes = places[0][places[1] == position]
        return bool(np.isin(codes, (code, halves.ENDED)).any())

    def _is_commit(self, offset: int, code: int, position: int) -> bool:
        """Whether a broker's commit is there, or the message that it gave up: neither names the offset. An op record of
        a copy may represent the others."""
        found = self._message(position)
        if found is None:
            return False
        if code == halves.COMMITTED:
            return found.sys_flag & layout.SYS_TRANSACTION == layout.SYS_TRANSACTION_COMMIT
        return found.topic in (OP_TOPIC, GIVEN_UP_TOPIC)

    def _message(self, position: int) -> Record | None:
        size = layout.size_at(self._state.log.read(position, layout.PREFIX_BYTES))
        try:
            return record.decode(self._state.log.read(position, size), check_crc=False) if size else None
        except DamagedBytes:
            return None

    def _check_unmarked(self, said: _Rows) -> None:
        files = self._state.queues[HALF_TOPIC, 0].files
        said = said[:, (said[0] >= files.min_offset) & (said[0] < files.max_offset)]
        if not said.size:
            return
        units = units_at(files, said[0])
        open_still = ~are_ended(units["tags"].astype(np.int64)) & (units["position"] >= self._state.min_position)
        open_still &= (units["size"] != FILLER_SIZE) & (units["size"] > 0)
        for offset, code, position in said[:, open_still].T.tolist():
            self._add(offset, f"the record at {position} says it was {_NAMES[code]}, but its unit is not marked")

    def _check_table(self, point: Checkpoint | None) -> None:
        """Checks the file that belongs to the checkpoint: its transactions were open then."""
        path = self._state.root / tablefile.FILE
        if not path.exists():
            return
        try:
            saved = tablefile.decode(path.read_bytes())
        except DamagedBytes as error:
            self._report.add(tablefile.FILE, 0, f"{error.text}; a start finds the open transactions in the log")
            return
        offsets = saved.rows.offsets
        files = self._state.queues[HALF_TOPIC, 0].files
        offsets = offsets[(offsets >= files.min_offset) & (offsets < files.max_offset)]
        if point is None or point.position != saved.position or not len(offsets):
            return
        tags = units_at(files, offsets)["tags"].astype(np.int64)
        before = are_ended(tags) & (ends_of(tags).positions < saved.position)
        for offset in offsets[before].tolist():
            what = f"the transaction of half message {offset} is open, but its unit says it had ended"
            self._report.add(tablefile.FILE, 0, what, DamagedMessage(HALF_TOPIC, 0, offset))

    def _add(self, offset: int, what: str) -> None:
        files = self._state.queues[HALF_TOPIC, 0].files
        self._report.add(*unit_place(files, offset), what, DamagedMessage(HALF_TOPIC, 0, offset))

    def _report_at(self, position: int, what: str) -> None:
        base = position - position % self._state.log.segment_bytes
        self._report.add(f"commitlog/{base:020d}", position - base, what)
