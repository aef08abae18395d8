"""The open transactions of a shard, as columns: their offsets, groups and check times. Pure.

    add ──▶ wheel ──(turn: its check is due)──▶ ready, by group ──(take)──▶ handed out ──▶ heard, or unheard
              ▲                                                                 │             │
              └──────────────────── its next check ─────────────────────────────┴─────────────┘

A row is one open half message, in order of half offsets. An ended one is a tombstone until enough of them are squeezed
out. A row that was handed out is due again at its next check, regardless of the caller. Once the maximum number of
checks was heard, the row becomes exhausted, not ready, at its next due time: it is to be given up.

A report counts once for each time that a row was handed out. That is unknown after a restart; then the first report of
each row counts.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from duetime_core.limits.seats import Seats
from duetime_format.units import Ints, Mask

from duetime_store.settings import CHECKS_COUNTED_MAX
from duetime_store.transactions.wheel import CODE, NEVER, Rows, Wheel, renumbered

# Parts of `_marks`: checks heard, consecutive unheard checks, and whether the last one was reported.
_CHECKS = CHECKS_COUNTED_MAX
_UNHEARD_SHIFT, _UNHEARD_MAX = 12, 7
_REPORTED = 1 << 15
# After the first unheard check the row is due again at once; then after this time, doubling each time.
UNHEARD_MS = 1_000
# Group number of a row that has ended.
_NOBODY = 0xFFFF_FFFF
# The line of exhausted rows, beside those of groups.
_EXHAUSTED = -1
# Number of the unknown caller, for rows from before a start.
_UNKNOWN = 0
_ROWS_MIN = 1_024
_GROWTH = 16
# Rows read at a time for a page.
_SCAN_ROWS = 65_536

Marks = npt.NDArray[np.uint16]


class OpenRows(NamedTuple):
    """Open transactions, as columns of equal length, in order of offsets unless said otherwise."""

    offsets: Ints
    # Group numbers; `group_name` has the names.
    groups: Rows
    # Checks that were heard.
    checks: Ints
    next_check_at_ms: Ints
    # Times of the prepares, to the second.
    stored_at_ms: Ints

    def part(self, first: int, stop: int) -> "OpenRows":
        rows = slice(first, stop)
        return OpenRows(
            self.offsets[rows],
            self.groups[rows],
            self.checks[rows],
            self.next_check_at_ms[rows],
            self.stored_at_ms[rows],
        )


@dataclass(frozen=True, slots=True)
class TransactionSnapshot:
    """The table at one moment; it does not change later."""

    # Names of groups, by number.
    names: Sequence[str]
    offsets: Ints
    groups: Rows
    marks: Marks
    dues: Ints
    stored_s: Rows

    def rows(self) -> OpenRows:
        kept = self.groups != _NOBODY
        checks = (self.marks[kept] & _CHECKS).astype(np.int64)
        stored_at_ms = self.stored_s[kept].astype(np.int64) * 1_000
        groups = self.groups[kept]
        return OpenRows(self.offsets[kept], groups, checks, self.dues[kept], stored_at_ms)


class OpenTransactions:
    """See the module."""

    def __init__(
        self, *, checks_max: int, transactions_max: int = 1 << 31, changed: Callable[[], None] = lambda: None
    ) -> None:
        """`changed`: called when a row falls due earlier than `next_due_ms` said."""
        # Each row has one, of its caller, until it ends.
        self.seats = Seats(transactions_max, "transactions are open", reason="TRANSACTIONS_EXHAUSTED")
        self.checks_max = min(checks_max, _CHECKS)
        self.changed = changed
        self._used = self._first = self._ended = 0
        self._offsets, self._dues = (np.empty(_ROWS_MIN, np.int64) for _ in range(2))
        self._groups, self._stored_s = (np.empty(_ROWS_MIN, np.uint32) for _ in range(2))
        self._marks: Marks = np.empty(_ROWS_MIN, np.uint16)
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._free: list[int] = []
        # Open transactions of each group, by number.
        self._counts: Ints = np.zeros(16, np.int64)
        # The number of each row's caller.
        self._callers = np.empty(_ROWS_MIN, np.uint32)
        self._caller_numbers: dict[str, int] = {"": _UNKNOWN}
        self._caller_names = [""]
        self._wheel = Wheel(self._dues_of)
        # Rows whose check is due, in order, by group number or _EXHAUSTED.
        self._ready: dict[int, array[int]] = {}
        self._turn = 0

    # --- reading ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._used - self._ended

    def counts(self) -> dict[str, int]:
        """Open transactions of each group that has any."""
        return {name: count for name, number in self._numbers.items() if (count := int(self._counts[number]))}

    def group_name(self, number: int) -> str:
        return self._names[number]

    def are_open(self, offsets: Ints) -> Mask:
        return self._find(offsets)[1]

    def find(self, offsets: Ints) -> OpenRows:
        """The open ones among `offsets`, in the order given."""
        rows, found = self._find(offsets)
        return self._open(rows[found])

    def page(self, after: int, group: str, count: int) -> OpenRows:
        """The next ones after an offset, of one group or, if that is empty, of all."""
        number = self._numbers.get(group, _NOBODY) if group else None
        if number == _NOBODY:
            return self._open(np.empty(0, np.int64))
        at = int(np.searchsorted(self._offsets[: self._used], after, "right"))
        parts, left = [], count
        while at < self._used and left > 0:
            groups = self._groups[at : min(at + _SCAN_ROWS, self._used)]
            found = np.flatnonzero(groups != _NOBODY if number is None else groups == number)[:left] + at
            parts.append(found)
            left -= len(found)
            at += len(groups)
        return self._open(np.concatenate(parts) if parts else np.empty(0, np.int64))

    def oldest(self) -> OpenRows:
        """The one prepared first, if there is any."""
        self._skip_ended()
        return self._open(np.arange(self._first, min(self._first + 1, self._used)))

    def expired(self, stored_before_ms: int, count: int) -> OpenRows:
        """The first ones prepared before a time: to the second, so up to one later."""
        self._skip_ended()
        # This many rows have `count` open ones.
        near = slice(self._first, min(self._first + count + self._ended, self._used))
        late = self._stored_s[near] < max(stored_before_ms, 0) // 1_000
        length = len(late) if late.all() else int(late.argmin())
        return self._open(np.flatnonzero(self._groups[near][:length] != _NOBODY)[:count] + self._first)

    def next_expiry_ms(self, keep_ms: int) -> int:
        """The time at which the oldest one expires if each is kept for `keep_ms`."""
        oldest = self.oldest().stored_at_ms
        return int(oldest[0]) + 1_000 + keep_ms if len(oldest) else NEVER

    def _find(self, offsets: Ints) -> tuple[Ints, Mask]:
        rows = np.searchsorted(self._offsets[: self._used], offsets)
        if not self._used:
            return rows, np.zeros(len(offsets), np.bool_)
        near = np.minimum(rows, self._used - 1)
        found: Mask = (self._offsets[near] == offsets) & (self._groups[near] != _NOBODY)
        return near, found

    def _open(self, rows: Ints | Rows) -> OpenRows:
        return OpenRows(
            self._offsets[rows],
            self._groups[rows],
            (self._marks[rows] & _CHECKS).astype(np.int64),
            self._dues[rows],
            self._stored_s[rows].astype(np.int64) * 1_000,
        )

    def _skip_ended(self) -> None:
        while self._first < self._used and self._groups[self._first] == _NOBODY:
            alive = self._groups[self._first : min(self._first + _SCAN_ROWS, self._used)] != _NOBODY
            self._first += int(alive.argmax()) if alive.any() else len(alive)

    # --- changing -----------------------------------------------------------------------------------------------------

    def add(
        self,
        offsets: Ints,
        groups: Sequence[str],
        check_at_ms: Ints,
        stored_at_ms: Ints,
        checks: Ints | None = None,
        callers: Sequence[str] | None = None,
    ) -> None:
        """Adds half messages, stored after all others. `checks`: a broker's counts. `callers`: they have their seats
        already; None: unknown, and the rows count for the nameless caller."""
        count = len(offsets)
        if not count:
            return
        assert (np.diff(offsets, prepend=self._offsets[self._used - 1] if self._used else -1) > 0).all()
        self._grow(count)
        rows = slice(self._used, self._used + count)
        self._offsets[rows], self._dues[rows] = offsets, check_at_ms
        self._stored_s[rows] = np.clip(stored_at_ms // 1_000, 0, 0xFFFF_FFFF)
        self._marks[rows] = 0 if checks is None else np.clip(checks, 0, _CHECKS)
        numbers = np.fromiter((self._number(group) for group in groups), np.int64, count)
        self._groups[rows] = numbers
        if callers is None:
            self._callers[rows] = _UNKNOWN
            self.seats.hold("", count)
        else:
            self._callers[rows] = np.fromiter((self._caller_number(caller) for caller in callers), np.int64, count)
        np.add.at(self._counts, numbers, 1)
        self._used += count
        self._push(np.arange(rows.start, rows.stop, dtype=np.uint32))

    def end(self, offsets: Ints) -> None:
        """Removes those that have ended; unknown ones are skipped."""
        rows, found = self._find(np.unique(offsets))
        rows = rows[found]
        np.subtract.at(self._counts, self._groups[rows], 1)
        for number, count in zip(*np.unique(self._callers[rows], return_counts=True), strict=True):
            self.seats.give(self._caller_names[number], int(count))
        self._groups[rows] = _NOBODY
        self._dues[rows] = NEVER
        self._ended += len(rows)
        if self._ended > max(_ROWS_MIN, self._used // 2):
            self._squeeze()

    def _number(self, group: str) -> int:
        number = self._numbers.get(group)
        if number is None:
            if self._free:
                number = self._free.pop()
                self._names[number] = group
            else:
                number = len(self._names)
                self._names.append(group)
                if number == len(self._counts):
                    self._counts = np.concatenate([self._counts, np.zeros(number, np.int64)])
            self._numbers[group] = number
        return number

    def _caller_number(self, caller: str) -> int:
        number = self._caller_numbers.setdefault(caller, len(self._caller_names))
        if number == len(self._caller_names):
            self._caller_names.append(caller)
        return number

    def _columns(self) -> Iterator[npt.NDArray[np.generic]]:
        columns = self._offsets, self._dues, self._groups, self._stored_s, self._marks, self._callers
        yield from columns

    def _grow(self, count: int) -> None:
        wanted = self._used + count
        if wanted > len(self._offsets):
            for column in self._columns():
                # No view of a column exists.
                column.resize(wanted + max(_ROWS_MIN, wanted // _GROWTH), refcheck=False)

    def _squeeze(self) -> None:
        """Drops the rows that have ended, and the groups without others."""
        alive = self._groups[: self._used] != _NOBODY
        numbers = (np.cumsum(alive) - 1).astype(np.uint32)
        self._wheel.renumber(numbers)
        ready = {line: renumbered(rows, self._dues_of, numbers) for line, rows in self._ready.items()}
        self._ready = {line: rows for line, rows in ready.items() if rows}
        kept = int(np.count_nonzero(alive))
        for column in self._columns():
            column[:kept] = column[: self._used][alive]
            column.resize(kept + max(_ROWS_MIN, kept // _GROWTH), refcheck=False)
        self._used, self._first, self._ended = kept, 0, 0
        for name in [name for name, number in self._numbers.items() if not self._counts[number]]:
            self._free.append(self._numbers.pop(name))
        self._squeeze_callers(kept)

    def _squeeze_callers(self, kept: int) -> None:
        """Renumbers the callers that have rows, after the nameless one."""
        used, numbers = np.unique(self._callers[:kept], return_inverse=True)
        names = ["", *(self._caller_names[number] for number in used.tolist() if number != _UNKNOWN)]
        self._callers[:kept] = numbers if _UNKNOWN in used else numbers + 1
        self._caller_names, self._caller_numbers = names, {name: number for number, name in enumerate(names)}

    # --- checks -------------------------------------------------------------------------------------------------------

    @property
    def next_due_ms(self) -> int:
        """The earliest due time of a check that is not ready: call `turn` then."""
        return self._wheel.next_ms

    def turn(self, now_ms: int) -> list[str]:
        """Makes all due checks ready. Returns the groups that got some."""
        due, firsts = np.unique(self._wheel.turn(now_ms), return_index=True)
        due = due[np.argsort(firsts)]
        lines = self._groups[due].astype(np.int64)
        lines[self._are_used_up(due)] = _EXHAUSTED
        order = np.argsort(lines, kind="stable")
        due, lines = due[order], lines[order]
        cuts = np.flatnonzero(np.diff(lines, prepend=lines[:1] - 1)).tolist()
        for start, stop in pairwise([*cuts, len(due)]):
            self._ready.setdefault(int(lines[start]), array(CODE)).frombytes(due[start:stop].tobytes())
        return [self._names[line] for line in lines[cuts].tolist() if line != _EXHAUSTED]

    def _are_used_up(self, rows: Rows) -> Mask:
        used: Mask = self._marks[rows] & _CHECKS >= self.checks_max
        return used

    @property
    def has_exhausted(self) -> bool:
        """Whether some may have to be given up (`take_exhausted`)."""
        return _EXHAUSTED in self._ready

    def has_ready(self, group: str) -> bool:
        """Whether checks may be ready; ended ones count too until they are taken."""
        return self._numbers.get(group, _NOBODY) in self._ready

    def take(self, groups: Sequence[str], count: int, now_ms: int, again_at_ms: int) -> OpenRows:
        """Hands out ready checks, `count` at most, evenly over the groups; each is due again at a later time. In no
        order."""
        lines = [number for group in groups if (number := self._numbers.get(group, _NOBODY)) in self._ready]
        self._turn += 1
        at = self._turn % max(1, len(lines))
        rows = self._pop([*lines[at:], *lines[:at]], count, now_ms)
        # A report came after the row had become ready.
        is_late = self._are_used_up(rows)
        if is_late.any():
            self._ready.setdefault(_EXHAUSTED, array(CODE)).frombytes(rows[is_late].tobytes())
            rows = rows[~is_late]
        taken = self._open(rows)
        self._marks[rows] &= ~np.uint16(_REPORTED)
        self._dues[rows] = again_at_ms
        self._push(rows)
        return taken

    def take_exhausted(self, count: int, now_ms: int, again_at_ms: int) -> OpenRows:
        """Hands out those to be given up; each returns later if it is still open. In no order."""
        rows = self._pop([_EXHAUSTED] if _EXHAUSTED in self._ready else [], count, now_ms)
        taken = self._open(rows)
        self._dues[rows] = again_at_ms
        self._push(rows)
        return taken

    def _pop(self, lines: list[int], count: int, now_ms: int) -> Rows:
        """Due rows of these lines, the same number from each as far as possible."""
        found = np.empty(0, np.uint32)
        while lines and (left := count - len(found)) > 0:
            served, later = lines[:left], lines[left:]
            share = left // len(served)
            rows = np.frombuffer(b"".join([self._ready[line][:share].tobytes() for line in served]), np.uint32)
            for line in served:
                del self._ready[line][:share]
                if not self._ready[line]:
                    del self._ready[line]
            found = np.unique(np.concatenate([found, rows[self._dues[rows] <= now_ms]]))
            lines = later + [line for line in served if line in self._ready]
        return found

    def heard(self, offsets: Ints) -> OpenRows:
        """Notes that living producers have heard these checks. Returns those that count, with their new number of
        checks; `count` sets it when the record is published."""
        rows = self._unreported(offsets)
        self._marks[rows] = self._marks[rows] & _CHECKS | _REPORTED
        found = self._open(rows)
        return found._replace(checks=np.minimum(found.checks + 1, _CHECKS))

    def count(self, offsets: Ints, checks: Ints, *, are_stored: bool) -> None:
        """Sets the numbers of checks that `heard` returned. Those not stored can be reported again."""
        rows, found = self._find(offsets)
        rows = rows[found]
        if are_stored:
            self._marks[rows] = self._marks[rows] & ~np.uint16(_CHECKS) | checks[found].astype(np.uint16)
        else:
            self._marks[rows] &= ~np.uint16(_REPORTED)

    def unheard(self, offsets: Ints, now_ms: int) -> OpenRows:
        """Notes that nobody has heard these checks: they do not count, and are due at once, or soon after repeated
        failures."""
        rows = self._unreported(offsets)
        times = (self._marks[rows] >> _UNHEARD_SHIFT & _UNHEARD_MAX).astype(np.int64)
        more = np.minimum(times + 1, _UNHEARD_MAX).astype(np.uint16)
        self._marks[rows] = self._marks[rows] & _CHECKS | more << _UNHEARD_SHIFT | _REPORTED
        pauses = np.where(times > 0, UNHEARD_MS << np.maximum(times - 1, 0), 0)
        self._dues[rows] = np.minimum(self._dues[rows], now_ms + pauses)
        self._push(rows.astype(np.uint32))
        return self._open(rows)

    def give_back(self, offsets: Ints, now_ms: int) -> None:
        """Makes taken rows that are handed out to nobody due again."""
        rows, found = self._find(offsets)
        rows = rows[found]
        self._dues[rows] = now_ms
        self._push(rows.astype(np.uint32))

    def replay_heard(self, offsets: Ints, checks: Ints, next_check_at_ms: Ints) -> None:
        """Recovery: sets the number of heard checks and the next check from the log."""
        rows, found = self._find(offsets)
        checks = np.minimum(checks, _CHECKS)
        found[found] = checks[found] > self._marks[rows[found]] & _CHECKS
        rows = rows[found]
        self._marks[rows] = checks[found].astype(np.uint16) | _REPORTED
        self._dues[rows] = np.maximum(self._dues[rows], next_check_at_ms[found])
        self._push(rows.astype(np.uint32))

    def _unreported(self, offsets: Ints) -> Ints:
        rows, found = self._find(np.unique(offsets))
        rows = rows[found]
        fresh: Ints = rows[self._marks[rows] & _REPORTED == 0]
        return fresh

    def _dues_of(self, rows: Rows) -> Ints:
        return self._dues[rows]

    def _push(self, rows: Rows) -> None:
        before = self._wheel.next_ms
        self._wheel.push(rows, self._dues[rows])
        if self._wheel.next_ms < before:
            self.changed()

    # --- saving -------------------------------------------------------------------------------------------------------

    def snapshot(self) -> TransactionSnapshot:
        """A plain copy of all columns; call `rows` when there is time."""
        used = slice(self._used)
        return TransactionSnapshot(
            list(self._names),
            self._offsets[used].copy(),
            self._groups[used].copy(),
            self._marks[used].copy(),
            self._dues[used].copy(),
            self._stored_s[used].copy(),
        )

    def load(self, rows: OpenRows, names: Sequence[str]) -> None:
        """Loads saved rows into the table, which must be empty. `names`: of the groups, by number."""
        names = [names[number] for number in rows.groups.tolist()]
        self.add(rows.offsets, names, rows.next_check_at_ms, rows.stored_at_ms, rows.checks)

    @property
    def nbytes(self) -> int:
        """Memory of rows, without the objects of buckets and groups."""
        ready = sum(len(rows) * rows.itemsize for rows in self._ready.values())
        return sum(column.nbytes for column in self._columns()) + sum(self._wheel.sizes()) + ready
