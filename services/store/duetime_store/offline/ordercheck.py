"""Checks data on disk that is derived from lanes: the orders of timer lanes, and the counts of pending messages.

order    manifest and blocks against their CRCs, rows in order of due time and entry, each pending entry there once
counts   the file against its CRC; if nothing came after its checkpoint, its sums against the pending messages

A start rebuilds both if they are missing or do not match their CRC; wrong rows with a matching CRC would stay.
"""

from pathlib import Path

import numpy as np
from duetime_format.columns import Ints
from duetime_format.errors import DamagedBytes
from duetime_format.lanes import is_timer_lane
from duetime_format.units import dues_of
from duetime_shard.pending import PendingLane, lanes
from duetime_shard.shard import DirectoryState

from duetime_store.counting import countfile
from duetime_store.counting.cells import lanes_of
from duetime_store.files.disk import Disk
from duetime_store.lanes.order import manifest
from duetime_store.lanes.order.order import MANIFEST
from duetime_store.lanes.order.rows import OrderRows, merged
from duetime_store.lanes.order.runs import SortedRun
from duetime_store.offline.report import VerifyReport
from duetime_store.recovery.checkpoint import Checkpoint

_FOLDER = "timers"


class OrderCheck:
    """See the module. The queues of lanes have been brought in line with the log."""

    def __init__(self, state: DirectoryState, report: VerifyReport, point: Checkpoint | None) -> None:
        self._state = state
        self._report = report
        self._point = point
        self._lanes = lanes(state)
        self._is_serving = (state.root / "abort").exists()

    def run(self) -> None:
        for number, lane in self._lanes.items():
            if is_timer_lane(number):
                self._check_order(lane)
        self._check_counts()

    @property
    def _is_still(self) -> bool:
        """Whether the checkpoint covers the whole log."""
        return self._point is not None and self._point.position == self._state.end

    def _check_order(self, lane: PendingLane) -> None:
        folder = f"{_FOLDER}/{lane.queue.queue}"
        try:
            data = (self._state.root / folder / MANIFEST).read_bytes()
        except FileNotFoundError:
            return
        found = manifest.decode(data)
        if found is None:
            self._report.add(f"{folder}/{MANIFEST}", 0, "it does not match its CRC")
            return
        parts = [self._rows(f"{folder}/{serial:016d}", serial, count) for serial, count in found.runs]
        if any(part is None for part in parts) or self._point is None or found.position < self._point.position:
            return
        self._compare(folder, lane, found.end, merged([part for part in parts if part is not None]))

    def _rows(self, name: str, serial: int, count: int) -> OrderRows | None:
        """All rows of a run; None: they are damaged, or a running store has merged them in the meantime."""
        try:
            run = SortedRun(Disk(), self._state.root / name, serial)
        except FileNotFoundError:
            if not self._is_serving:
                self._report.add(name, 0, "the manifest names it, but it is missing")
            return None
        except DamagedBytes as error:
            self._report.add(name, 0, error.text)
            return None
        try:
            rows = run.read(0, run.count)
        except DamagedBytes as error:
            self._report.add(name, 0, error.text)
            return None
        finally:
            run.close()
        if rows.size != count:
            self._report.add(name, 0, f"it has {rows.size} rows, the manifest says {count}")
        falling = _falling(rows)
        if falling is not None:
            self._report.add(name, 0, f"row {falling} is not after the one before it")
            return None
        return rows

    def _compare(self, folder: str, lane: PendingLane, end: int, rows: OrderRows) -> None:
        entries, dues = _pending(lane)
        known = entries < end
        entries, dues = entries[known], dues[known]
        order = np.argsort(rows.entries, kind="stable")
        at = np.searchsorted(rows.entries, entries, sorter=order)
        there = at < rows.size
        there[there] = rows.entries[order[at[there]]] == entries[there]
        there[there] &= rows.dues[order[at[there]]] == dues[there]
        if not there.all():
            first = int(entries[~there][0])
            what = (
                f"{int((~there).sum())} pending entries are not in the order as their units say, the first is {first}"
            )
            self._report.add(f"{folder}/{MANIFEST}", 0, what)
        place = self._state.places.get(lane.number)
        if self._is_still and place is not None:
            left = rows.after(place)
            ended = np.setdiff1d(left.entries, entries)
            if len(ended):
                what = f"{len(ended)} entries of the order are not pending, the first is {int(ended[0])}"
                self._report.add(f"{folder}/{MANIFEST}", 0, what)

    def _check_counts(self) -> None:
        for name in (countfile.FILE, countfile.BACKUP):
            path: Path = self._state.root / name
            try:
                saved = countfile.decode(path.read_bytes())
            except FileNotFoundError:
                continue
            except DamagedBytes as error:
                self._report.add(name, 0, str(error))
                continue
            if self._is_still and self._point is not None and saved.position == self._point.position:
                self._compare_counts(name, saved)

    def _compare_counts(self, name: str, saved: countfile.SavedCounts) -> None:
        own = lanes_of(saved.cells.keys)
        for number in saved.grains:
            counted = int(saved.cells.counts[own == number].sum())
            pending = self._lanes[number].counts()[0] if number in self._lanes else 0
            if counted != pending:
                self._report.add(name, 0, f"it counts {counted} pending messages of lane {number}, there are {pending}")


def _falling(rows: OrderRows) -> int | None:
    """The first row that is not after its predecessor; a tombstone may follow its row."""
    same_due = rows.dues[1:] == rows.dues[:-1]
    wrong = (rows.dues[1:] < rows.dues[:-1]) | (same_due & (rows.entries[1:] < rows.entries[:-1]))
    found = np.flatnonzero(wrong)
    return int(found[0]) + 1 if len(found) else None


def _pending(lane: PendingLane) -> tuple[Ints, Ints]:
    parts = list(lane.pending())
    entries = np.concatenate([np.empty(0, np.int64), *(part for part, _ in parts)])
    dues = np.concatenate([np.empty(0, np.int64), *(dues_of(units["tags"].astype(np.int64)) for _, units in parts)])
    return entries, dues
