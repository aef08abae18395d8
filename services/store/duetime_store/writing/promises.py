"""Places of entries in their queues, decided and made durable some ms before they fall due (duetime_format.plans).

    held ──(2 ms before it is due)──▶ promised ──(due)──▶ staged ──▶ written ──▶ published ──▶ flushed, some time later

A restored record is published only when its place is durable. The record itself decides its place once it is flushed; a
plan that was flushed earlier decides it before. So at the due time no flush lies between the record and its readers. If
a power cut loses the record, recovery gives the entry the same place again (recovery/promised.py).

A promise is not binding: a message sent in the meantime gets the place if it comes first. Then the promise is void, and
the entry gets the next place and waits for its own flush. Nothing ever waits for an entry that is not yet due.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from duetime_format.columns import Ints
from duetime_format.names import QUARANTINE_TOPIC
from duetime_format.plans import Plan, rows_of

from duetime_store.lanes.lane import ShardLane
from duetime_store.log.intake import Intake
from duetime_store.queues.consumequeue import ConsumeQueue

# Entries are promised their places this long before they are due: a flush takes 0.5 to 1 ms. Entries due a little later
# are promised with them (PLAN_MS_MAX), so a busy lane needs one plan for several due times.
PROMISE_BY_MS = 2
# This many entries within a plan's time share the cost of their own flush.
PROMISE_COUNT_MAX = 512
# A queue gets no promises for this long after a void one: sent messages mix there with due ones.
SHUN_MS = 1_000
# Greater than the number of queues in any plan.
NO_QUEUE = PROMISE_COUNT_MAX


@dataclass(slots=True, eq=False)
class Promise:
    """One plan. `numbers`: the queue numbers of its rows. Rows before `at` have their places."""

    plan: Plan
    numbers: dict[ConsumeQueue, int]
    at: int = 0
    is_durable: bool = False

    @property
    def count(self) -> int:
        """Entries without a place."""
        return len(self.plan.rows) - self.at

    def settle(self, is_durable: bool) -> None:
        """A callback for FlushBatch.settles."""
        self.is_durable = is_durable


@dataclass(slots=True)
class Promises:
    """Open promises, by lane and in order. Belongs to the event loop's thread."""

    monotonic_ms: Callable[[], float]
    _open: dict[int, list[Promise]] = field(default_factory=dict)
    _shunned: dict[ConsumeQueue, float] = field(default_factory=dict)

    def make(
        self, lane: ShardLane, intake: Intake, entries: Ints, queues: Sequence[ConsumeQueue | None]
    ) -> Promise | None:
        """Promises the lane's next entries, whose records are `intake`, the places after the staged and promised ones.
        None: there is nothing to gain. If the first entry already had a promise, all of the lane's earlier promises
        become void: of two plans for an entry the later counts.

        Args:
            queues: for each of the intake's keys; None: the queue does not exist yet.
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
        # Places are consecutive in each queue, in the order of the entries.
        order = np.argsort(number_of, kind="stable")
        offsets = np.empty(count, np.int64)
        offsets[order] = np.repeat(firsts - (np.cumsum(counts) - counts), counts) + np.arange(count)
        names = [(queue.topic.encode(), queue.queue) for queue in named]
        plan = Plan(lane.number, names, rows_of(number_of, entries[:count], offsets))
        promise = Promise(plan, {queue: number for number, queue in enumerate(named)})
        self._open.setdefault(lane.number, []).append(promise)
        return promise

    def _count(self, intake: Intake, queues: Sequence[ConsumeQueue | None]) -> int:
        """The number of records before the first one for a queue without promises: a lane keeps its order."""
        now_ms = self.monotonic_ms()
        fit = [
            queue is not None and queue.topic != QUARANTINE_TOPIC and self._shunned.get(queue, now_ms) <= now_ms
            for queue in queues
        ]
        unfit = np.flatnonzero(~np.array(fit, np.bool_)[intake.key_of])
        return int(unfit[0]) if len(unfit) else intake.count

    def _promised(self) -> Counter[ConsumeQueue]:
        """The number of promised places of each queue."""
        found: Counter[ConsumeQueue] = Counter()
        for promise in chain.from_iterable(self._open.values()):
            counts = np.bincount(promise.plan.rows["queue"][promise.at :], minlength=len(promise.numbers))
            found.update(dict(zip(promise.numbers, counts.tolist(), strict=True)))
        return found

    def keep(
        self, lane: ShardLane, queues: Sequence[ConsumeQueue], key_of: Ints, entries: Ints, offsets: Sequence[int]
    ) -> list[Promise]:
        """Checks these entries' places against the lane's promises. Returns the promises kept. If an entry has another
        place than promised, or no promise, returns none and voids the rest of the lane's promises."""
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

    def forget(self, lane: ShardLane) -> None:
        """Voids the lane's promises."""
        self._open.pop(lane.number, None)

    def clear(self) -> None:
        """Voids all promises."""
        self._open.clear()
