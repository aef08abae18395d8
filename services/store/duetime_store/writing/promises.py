"""Places that entries get when they fall due, decided and durable some ms before (duetime_format.plans).

    held ──(2 ms before it is due)──▶ promised ──(due)──▶ staged ──▶ written ──▶ published ──▶ flushed, some time later

A restored record is published only when its place is durable. Its place is decided by the record itself, once that is
flushed; or by a plan that was flushed before. So at the due moment no flush lies between the record and its readers.
If a power cut takes the record, recovery gives the entry the same place again (recovery/promised.py).

A promise binds nobody: a message that is sent meanwhile gets the place if it comes first. Then the promise is void, and
the entry gets the next place and waits for its own flush. So nothing waits for what is not due yet.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from duetime_format.columns import Ints
from duetime_format.names import QUARANTINE_TOPIC
from duetime_format.plans import Plan, rows_of

from duetime_store.lanes.lane import Lane
from duetime_store.log.intake import Intake
from duetime_store.queues.consumequeue import ConsumeQueue

# An entry is promised once it is due within so many ms: a flush takes 0.5 to 1. Those that are due a little later are
# promised with it (PLAN_MS_MAX), so that a busy lane needs one plan for several due moments.
PROMISE_BY_MS = 2
# So many entries within a plan's time share the cost of their own flush.
PROMISE_COUNT_MAX = 512
# How long a queue gets no promises after one was void: what is sent to it mixes with what falls due.
SHUN_MS = 1_000
# No plan names so many queues.
NO_QUEUE = PROMISE_COUNT_MAX


@dataclass(slots=True, eq=False)
class Promise:
    """One plan. `numbers`: by which its rows name queues. Rows before `at` have got their places."""

    plan: Plan
    numbers: dict[ConsumeQueue, int]
    at: int = 0
    is_durable: bool = False

    @property
    def count(self) -> int:
        """Entries that have no place yet."""
        return len(self.plan.rows) - self.at

    def settle(self, is_durable: bool) -> None:
        """For FlushBatch.settles."""
        self.is_durable = is_durable


@dataclass(slots=True)
class Promises:
    """Those that are not carried out yet, by lane and in order. Belongs to the event loop's thread."""

    monotonic_ms: Callable[[], float]
    _open: dict[int, list[Promise]] = field(default_factory=dict)
    _shunned: dict[ConsumeQueue, float] = field(default_factory=dict)

    def make(self, lane: Lane, intake: Intake, entries: Ints, queues: Sequence[ConsumeQueue | None]) -> Promise | None:
        """Promises the next entries of a lane, whose records are `intake`, the places that follow what is staged and
        promised. None where there is nothing to gain. If the first was promised a place before, all that the lane was
        promised is void: of two plans for an entry the later counts.

        Args:
            queues: of each of the intake's keys; None: one that is not there yet.
        """
        count = self._count(intake, queues)
        if not 0 < count <= PROMISE_COUNT_MAX:
            return None
        if any(entries[0] in promise.plan.rows["entry"][promise.at :] for promise in self._open.get(lane.number, ())):
            self.forget(lane)
        keys, number_of, counts = np.unique(intake.key_of[:count], return_inverse=True, return_counts=True)
        named = [queue for key in keys.tolist() if (queue := queues[key]) is not None]
        promised = self._promised()
        firsts = np.array([queue.next_offset + promised.get(queue, 0) for queue in named])
        # One after the other in each queue, in the order of the entries.
        order = np.argsort(number_of, kind="stable")
        offsets = np.empty(count, np.int64)
        offsets[order] = np.repeat(firsts - (np.cumsum(counts) - counts), counts) + np.arange(count)
        names = [(queue.topic.encode(), queue.queue) for queue in named]
        plan = Plan(lane.number, names, rows_of(number_of, entries[:count], offsets))
        promise = Promise(plan, {queue: number for number, queue in enumerate(named)})
        self._open.setdefault(lane.number, []).append(promise)
        return promise

    def _count(self, intake: Intake, queues: Sequence[ConsumeQueue | None]) -> int:
        """How many records come before the first that goes to a queue without promises: a lane's order is kept."""
        now_ms = self.monotonic_ms()
        fit = [
            queue is not None and queue.topic != QUARANTINE_TOPIC and self._shunned.get(queue, now_ms) <= now_ms
            for queue in queues
        ]
        unfit = np.flatnonzero(~np.array(fit, np.bool_)[intake.key_of])
        return int(unfit[0]) if len(unfit) else intake.count

    def _promised(self) -> Counter[ConsumeQueue]:
        """How many places of each queue are promised."""
        found: Counter[ConsumeQueue] = Counter()
        for promise in chain.from_iterable(self._open.values()):
            counts = np.bincount(promise.plan.rows["queue"][promise.at :], minlength=len(promise.numbers))
            found.update(dict(zip(promise.numbers, counts.tolist(), strict=True)))
        return found

    def keep(
        self, lane: Lane, queues: Sequence[ConsumeQueue], key_of: Ints, entries: Ints, offsets: Sequence[int]
    ) -> list[Promise]:
        """Entries of a lane have got these places. Returns the promises that this keeps; none if an entry has another
        place than was promised, or was not promised one: then what is left of the lane's promises is void."""
        kept: list[Promise] = []
        given, done, left = np.array(offsets), 0, self._open.get(lane.number)
        while left and done < len(entries):
            promise = left[0]
            numbers = np.array([promise.numbers.get(queue, NO_QUEUE) for queue in queues])
            count = min(promise.count, len(entries) - done)
            rows, part = promise.plan.rows[promise.at : promise.at + count], slice(done, done + count)
            are_same = rows["entry"] == entries[part]
            fit = are_same & (rows["offset"] == given[part]) & (rows["queue"] == numbers[key_of[part]])
            if not fit.all():
                other = int(fit.argmin())
                if are_same[other]:
                    self._shun(queues[int(key_of[done + other])])
                break
            kept.append(promise)
            promise.at += count
            done += count
            if not promise.count:
                left.pop(0)
        if done == len(entries):
            return kept
        self.forget(lane)
        return []

    def _shun(self, queue: ConsumeQueue) -> None:
        now_ms = self.monotonic_ms()
        self._shunned = {one: until_ms for one, until_ms in self._shunned.items() if until_ms > now_ms}
        self._shunned[queue] = now_ms + SHUN_MS

    def forget(self, lane: Lane) -> None:
        """What the lane's entries were promised is void."""
        self._open.pop(lane.number, None)

    def clear(self) -> None:
        """All promises are void."""
        self._open.clear()
