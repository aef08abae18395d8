"""Cancel: pending messages end without being delivered.

    find (in turns) ──▶ judge, and stage one record with the ends of all pending ones ──▶ durable ──▶ answer

Judging and staging are one step of the store's only writer, so only one of a cancel and a restore of the same entry can
win: the first to be staged. The answer waits until everything that it relies on is durable, including a staged restore.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from duetime.v1 import pending_pb2
from duetime_core.errors import DiskFull, DueTimeError, InvalidArgument, Violation
from duetime_core.rpc.calls import fault_of, faults_of
from duetime_format.limits import CANCEL_COUNT_MAX
from duetime_format.units import Ints, dues_of

from duetime_store.lanes.lane import ShardLane
from duetime_store.metrics import StoreMetrics
from duetime_store.pending.targets import ROUNDS_MAX, Fate, PendingTarget, PendingTargets, contended
from duetime_store.writing.ends import cancel
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.store import Store

_NAMES = pending_pb2.CancelStatus.keys()
CANCELLED = pending_pb2.CANCEL_STATUS_CANCELLED
_STATUSES = {
    Fate.CANCELLED: CANCELLED,
    Fate.FIRED: pending_pb2.CANCEL_STATUS_ALREADY_FIRED,
    Fate.NOT_FOUND: pending_pb2.CANCEL_STATUS_NOT_FOUND,
}


class MessageCanceller:
    """Serves Cancel."""

    def __init__(self, store: Store, targets: PendingTargets, flusher: Flusher, metrics: StoreMetrics) -> None:
        self._store = store
        self._targets = targets
        self._flusher = flusher
        self._metrics = metrics

    async def cancel(self, request: pending_pb2.CancelRequest) -> pending_pb2.CancelResponse:
        """Durable on return.

        Raises:
            InvalidArgument: no message, or too many.
            ReadOnly: a write or flush failed before.
            DiskFull: there is no room, not even the reserve's.
        """
        if not 1 <= len(request.messages) <= CANCEL_COUNT_MAX:
            text = f"{len(request.messages)} are not 1 to {CANCEL_COUNT_MAX}"
            raise InvalidArgument([Violation("messages", text)])
        targets = [PendingTarget.of(ref) for ref in request.messages]
        if request.locate:
            await self._targets.find(targets)
            return pending_pb2.CancelResponse(results=[pending_pb2.CancelResult(topics=one.topics) for one in targets])
        try:
            results = await self._cancel(targets)
        except DiskFull:
            # The reserve is free now.
            for target in targets:
                target.forget()
            results = await self._cancel(targets)
        for result, count in Counter(map(_label, results)).items():
            self._metrics.cancels.labels(result).inc(count)
        return pending_pb2.CancelResponse(results=results)

    async def _cancel(self, targets: Sequence[PendingTarget]) -> list[pending_pb2.CancelResult]:
        results: dict[int, pending_pb2.CancelResult] = {}
        left = list(range(len(targets)))
        for _ in range(ROUNDS_MAX):
            await self._targets.find([targets[index] for index in left])
            left = self._end(targets, results, left)
            await self._flusher.durable()
            if not left:
                break
            for index in left:
                targets[index].forget()
        for index in left:
            results[index] = pending_pb2.CancelResult(fault=fault_of(contended(targets[index])))
        return [results[index] for index in range(len(targets))]

    def _end(
        self, targets: Sequence[PendingTarget], results: dict[int, pending_pb2.CancelResult], indices: Sequence[int]
    ) -> list[int]:
        """Ends the pending ones, and fills in results. Returns the indices of those to be looked up again."""
        unclear: list[int] = []
        pending: dict[ShardLane, dict[int, list[int]]] = {}
        errors: dict[int, DueTimeError] = {}
        for index, verdict in zip(indices, self._targets.judge([targets[index] for index in indices]), strict=True):
            error = targets[index].error
            if error is not None:
                errors[index] = error
            elif verdict.lane is not None:
                pending.setdefault(verdict.lane, {}).setdefault(verdict.entry, []).append(index)
            elif verdict.fate is Fate.UNCLEAR:
                unclear.append(index)
            else:
                results[index] = pending_pb2.CancelResult(status=_STATUSES[verdict.fate])
        for index, fault in faults_of(errors).items():
            results[index] = pending_pb2.CancelResult(fault=fault)
        ended: list[tuple[ShardLane, Ints, Ints]] = []
        for lane, of_entry in pending.items():
            entries = np.array(list(of_entry), np.int64)
            known = [targets[own[0]].due_at_ms for own in of_entry.values()]
            dues = dues_of(lane.units(entries)["tags"]) if None in known else np.array(known, np.int64)
            order = np.argsort(entries)
            ended.append((lane, entries[order], dues[order]))
            for own, due_at_ms in zip(of_entry.values(), dues.tolist(), strict=True):
                for index in own:
                    results[index] = pending_pb2.CancelResult(status=CANCELLED, due_at_ms=due_at_ms)
        if ended:
            cancel(self._store, ended)
        return unclear


def _label(result: pending_pb2.CancelResult) -> str:
    if not result.status:
        return "FAULT"
    return _NAMES[result.status].removeprefix("CANCEL_STATUS_")
