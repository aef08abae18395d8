"""The table of open transactions against a plain dict, through additions, ends, checks, moves and saves."""

import bisect
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from duetime_format.errors import DamagedBytes
from duetime_store.files.disk import Disk
from duetime_store.transactions import tablefile
from duetime_store.transactions.table import UNHEARD_MS, OpenTransactions
from duetime_store.transactions.wheel import FAR_MS, NEAR_MS, NEVER
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

NOW_MS = 1_700_000_000_000
CHECKS_MAX = 3
INTERVAL_MS = 30_000
GROUPS = ("a", "b", "c")
DELAYS = st.sampled_from([0, 1, NEAR_MS - 1, 6_000, FAR_MS, 3 * FAR_MS + 5, 72 * 3_600_000])


@dataclass(frozen=True)
class Row:
    group: str
    due: int
    stored: int
    caller: str
    checks: int = 0
    unheard: int = 0
    is_reported: bool = False


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


class Tables(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = OpenTransactions(checks_max=CHECKS_MAX)
        self.model: dict[int, Row] = {}
        self.now, self.next_offset = NOW_MS, 5

    def some(self, share: float) -> list[int]:
        known = sorted(self.model)
        return known[int(len(known) * share) :][:3]

    @rule(delays=st.lists(st.tuples(DELAYS, st.sampled_from(GROUPS), st.integers(1, 3)), max_size=6))
    def add(self, delays: list[tuple[int, str, int]]) -> None:
        offsets = []
        for delay, group, step in delays:
            self.next_offset += step
            offsets.append(self.next_offset)
            self.model[self.next_offset] = Row(group, self.now + delay, self.now, f"caller of {step}")
        for offset in offsets:
            self.table.seats.hold(self.model[offset].caller)
        self.table.add(
            ints(offsets),
            [group for _, group, _ in delays],
            ints([self.now + delay for delay, _, _ in delays]),
            np.full(len(offsets), self.now),
            callers=[self.model[offset].caller for offset in offsets],
        )

    @rule(share=st.floats(0, 1), strange=st.integers(0, 50))
    def end(self, share: float, strange: int) -> None:
        offsets = [*self.some(share), strange]
        self.table.end(ints(offsets))
        for offset in offsets:
            self.model.pop(offset, None)

    @rule()
    def end_many(self) -> None:
        """Enough to be squeezed out."""
        first = self.next_offset + 1
        offsets = np.arange(first, first + 2_100)
        self.next_offset = int(offsets[-1])
        self.table.add(offsets, ["gone"] * len(offsets), offsets + self.now, np.full(len(offsets), self.now))
        self.table.end(offsets)

    @rule(by=DELAYS)
    def pass_time(self, by: int) -> None:
        self.now += by

    def ready(self, groups: set[str], *, exhausted: bool) -> set[int]:
        return {
            offset
            for offset, row in self.model.items()
            if row.due <= self.now and row.group in groups and (row.checks >= CHECKS_MAX) == exhausted
        }

    @rule(groups=st.lists(st.sampled_from([*GROUPS, "unknown"]), unique=True), count=st.integers(1, 5))
    def take(self, groups: list[str], count: int) -> None:
        self.table.turn(self.now)
        wanted = self.ready(set(groups), exhausted=False)
        assert all(self.table.has_ready(self.model[offset].group) for offset in wanted)
        taken = self.table.take(groups, count, self.now, self.now + INTERVAL_MS)
        offsets = taken.offsets.tolist()
        assert len(offsets) == len(set(offsets)) == min(count, len(wanted))
        assert set(offsets) <= wanted
        assert taken.checks.tolist() == [self.model[offset].checks for offset in offsets]
        self.check_fairness(offsets, wanted)
        for offset in offsets:
            self.model[offset] = replace(self.model[offset], due=self.now + INTERVAL_MS, is_reported=False)

    def check_fairness(self, offsets: list[int], wanted: set[int]) -> None:
        """No group is two checks ahead of a group with more waiting."""
        given = {group: sum(self.model[one].group == group for one in offsets) for group in GROUPS}
        left = {group: sum(self.model[one].group == group for one in wanted - set(offsets)) for group in GROUPS}
        starved = [given[group] for group in GROUPS if left[group]]
        assert not starved or max(given.values()) <= min(starved) + 2

    @rule(count=st.integers(1, 3))
    def give_up(self, count: int) -> None:
        self.table.turn(self.now)
        wanted = self.ready(set(GROUPS), exhausted=True)
        taken = self.table.take_exhausted(count, self.now, self.now + 1_000).offsets.tolist()
        assert set(taken) <= wanted
        assert len(taken) == min(count, len(wanted))
        for offset in taken:
            self.model[offset] = replace(self.model[offset], due=self.now + 1_000)

    def unreported(self, offsets: list[int]) -> list[int]:
        return [offset for offset in offsets if not self.model[offset].is_reported]

    @rule(share=st.floats(0, 1))
    def hear(self, share: float) -> None:
        offsets = self.some(share)
        counted = self.table.heard(ints([*offsets, 1_000_000_000]))
        assert counted.offsets.tolist() == self.unreported(offsets)
        self.table.count(counted.offsets, counted.checks, are_stored=True)
        for offset in counted.offsets.tolist():
            row = self.model[offset]
            self.model[offset] = replace(row, checks=row.checks + 1, unheard=0, is_reported=True)
        assert counted.checks.tolist() == [self.model[offset].checks for offset in counted.offsets.tolist()]

    @rule(share=st.floats(0, 1))
    def hear_not(self, share: float) -> None:
        for offset in self.unreported(self.some(share)):
            row = self.model[offset]
            pause = UNHEARD_MS * 2 ** (row.unheard - 1) if row.unheard else 0
            due = min(row.due, self.now + pause)
            self.model[offset] = replace(row, unheard=min(row.unheard + 1, 7), due=due, is_reported=True)
        self.table.unheard(ints(self.some(share)), self.now)

    @rule(share=st.floats(0, 1), checks=st.integers(0, 4))
    def replay(self, share: float, checks: int) -> None:
        offsets = self.some(share)
        nexts = np.full(len(offsets), self.now + 500)
        self.table.replay_heard(ints(offsets), np.full(len(offsets), checks), nexts)
        for offset in offsets:
            row = self.model[offset]
            if checks > row.checks:
                due = max(row.due, self.now + 500)
                self.model[offset] = replace(row, checks=checks, due=due, unheard=0, is_reported=True)

    @rule()
    def save_and_load(self) -> None:
        saved = tablefile.decode(tablefile.encode(self.table.snapshot(), 17))
        assert saved.position == 17
        self.table = OpenTransactions(checks_max=CHECKS_MAX)
        self.table.load(saved.rows, saved.names)
        self.model = {
            offset: replace(row, unheard=0, is_reported=False, caller="") for offset, row in self.model.items()
        }

    @rule(after=st.integers(0, 100), group=st.sampled_from(["", *GROUPS, "unknown"]), count=st.integers(1, 4))
    def list_some(self, after: int, group: str, count: int) -> None:
        wanted = [one for one in sorted(self.model) if one > after and group in ("", self.model[one].group)]
        assert self.table.page(after, group, count).offsets.tolist() == wanted[:count]

    @rule(age=DELAYS, count=st.integers(1, 4))
    def list_expired(self, age: int, count: int) -> None:
        before_s = (self.now - age) // 1_000
        wanted = [one for one in sorted(self.model) if self.model[one].stored // 1_000 < before_s]
        assert self.table.expired(self.now - age, count).offsets.tolist() == wanted[:count]

    @invariant()
    def table_equals_the_model(self) -> None:
        known = sorted(self.model)
        rows = self.table.find(ints([*known, 0, self.next_offset + 1]))
        assert len(self.table) == len(known)
        assert rows.offsets.tolist() == known
        assert [self.table.group_name(number) for number in rows.groups.tolist()] == [
            self.model[one].group for one in known
        ]
        assert rows.checks.tolist() == [self.model[one].checks for one in known]
        assert rows.next_check_at_ms.tolist() == [self.model[one].due for one in known]
        assert rows.stored_at_ms.tolist() == [self.model[one].stored // 1_000 * 1_000 for one in known]
        assert self.table.oldest().offsets.tolist() == known[:1]
        callers = Counter(row.caller for row in self.model.values())
        assert {name: self.table.seats.held(name) for name in callers} == callers
        assert self.table.seats.used == len(known)
        counts = {group: sum(row.group == group for row in self.model.values()) for group in GROUPS}
        assert self.table.counts() == {group: count for group, count in counts.items() if count}
        assert self.table.are_open(ints(list(range(40)))).tolist() == [one in self.model for one in range(40)]

    @invariant()
    def wakes_no_later_than_a_check_is_due(self) -> None:
        waiting = sorted(row.due for row in self.model.values())
        first = bisect.bisect_right(waiting, self.now)
        assert self.table.next_due_ms <= min(waiting[first:], default=NEVER)


Tables.TestCase.settings = settings(stateful_step_count=40)
TestTables = Tables.TestCase


def filled(count: int, groups: int) -> OpenTransactions:
    table = OpenTransactions(checks_max=15)
    names = [f"group-{number}" for number in range(groups)]
    for first in range(0, count, 500):
        offsets = np.arange(first, min(first + 500, count))
        stored = NOW_MS + offsets // 10
        table.add(offsets, [names[one % groups] for one in offsets.tolist()], stored + 6_000, stored)
    return table


def test_a_transaction_takes_36_bytes() -> None:
    assert filled(200_000, 50).nbytes <= 36.5 * 200_000


def test_turning_ends_where_nothing_is_due() -> None:
    table = OpenTransactions(checks_max=15)
    far = NOW_MS + 72 * 3_600_000
    table.add(ints([1]), ["a"], ints([far]), ints([NOW_MS]))
    moments = []
    while (moment := table.next_due_ms) != NEVER:
        moments.append(moment)
        table.turn(moment)
        assert table.next_due_ms > moment
    assert moments[-1] == far
    assert len(moments) <= 3


def test_checks_are_ready_when_they_are_due() -> None:
    table = OpenTransactions(checks_max=15)
    edges = [0, NEAR_MS, 2 * NEAR_MS, FAR_MS, 3 * FAR_MS, 4 * FAR_MS, 9 * FAR_MS]
    start = NOW_MS - NOW_MS % FAR_MS + FAR_MS
    dues = sorted({start + edge + by for edge in edges for by in (-1, 0, 1)})
    count = len(dues)
    table.add(ints([*range(count)]), ["a"] * count, ints(dues), ints([NOW_MS] * count))
    taken = []
    while (now := table.next_due_ms) != NEVER:
        table.turn(now)
        rows = table.take(["a"], count, now, dues[-1] + INTERVAL_MS)
        taken += [(now, due) for due in rows.next_check_at_ms.tolist()]
        table.end(rows.offsets)
    assert taken == [(due, due) for due in dues]


def test_an_unheard_check_is_reported_once() -> None:
    table = OpenTransactions(checks_max=15)
    table.add(ints([7]), ["a"], ints([NOW_MS]), ints([NOW_MS]))
    table.turn(NOW_MS)
    table.take(["a"], 1, NOW_MS, NOW_MS + INTERVAL_MS)
    assert table.unheard(ints([7]), NOW_MS).offsets.tolist() == [7]
    assert table.unheard(ints([7]), NOW_MS).offsets.tolist() == []
    assert table.heard(ints([7])).offsets.tolist() == []


def test_waiting_producer_wakes_for_an_earlier_check() -> None:
    told = []
    table = OpenTransactions(checks_max=15, changed=lambda: told.append(table.next_due_ms))
    table.turn(NOW_MS)
    for offset, due in ((1, 9_000), (2, 20_000), (3, 5_000)):
        table.add(ints([offset]), ["a"], ints([NOW_MS + due]), ints([NOW_MS]))
    first, second = told
    assert NOW_MS + 9_000 - NEAR_MS < first <= NOW_MS + 9_000
    assert NOW_MS + 5_000 - NEAR_MS < second <= NOW_MS + 5_000


def test_files_that_do_not_belong_to_the_checkpoint_are_no_table(tmp_path) -> None:
    table = filled(10, 2)
    assert tablefile.read(tmp_path, 5) == (None, "there is none")
    for position in (5, 9):
        tablefile.write(Disk(), tmp_path, tablefile.encode(table.snapshot(), position))
    for position in (5, 9):
        saved, reason = tablefile.read(tmp_path, position)
        assert not reason
        assert saved is not None
        assert saved.rows.offsets.tolist() == list(range(10))
    assert (
        tablefile.read(tmp_path, 6)[1] == "duetimeTransactions has position 9; duetimeTransactions.bak has position 5"
    )


@pytest.mark.parametrize("at", [0, 5, 9, 30, -1])
def test_a_damaged_file_is_no_table(at: int) -> None:
    data = bytearray(tablefile.encode(filled(10, 2).snapshot(), 5))
    data[at] ^= 1
    with pytest.raises(DamagedBytes):
        tablefile.decode(bytes(data))
    with pytest.raises(DamagedBytes):
        tablefile.decode(bytes(data[:7]))
