"""EndRetries: failed messages that wait for their next attempt are made due now, or discarded.

A record that is due now replaces a copy, as in a reschedule; a discarded copy is cancelled.
"""

from collections.abc import Sequence

from duetime.v1 import store_pb2
from duetime_core.errors import InvalidArgument, Violation
from duetime_format import limits

from duetime_store.files.gate import WriteGate
from duetime_store.groups.offsets import check_group
from duetime_store.groups.retries import WaitingCopies, WaitingRetries
from duetime_store.lanes.alarm import ShardClock
from duetime_store.lanes.lane import PENDING
from duetime_store.lanes.lanes import ShardLanes
from duetime_store.pending.replacing import MessageReplacer
from duetime_store.reading.turns import ScanTurns
from duetime_store.writing.ends import state_of
from duetime_store.writing.flusher import Flusher


class RetryResolver:
    """Serves EndRetries."""

    def __init__(
        self,
        lanes: ShardLanes,
        gate: WriteGate,
        clock: ShardClock,
        retries: WaitingRetries,
        replacing: MessageReplacer,
        flusher: Flusher,
        turns: ScanTurns,
    ) -> None:
        self._lanes = lanes
        self._gate = gate
        self._clock = clock
        self._retries = retries
        self._replacing = replacing
        self._flusher = flusher
        self._turns = turns

    async def end(self, request: store_pb2.EndStoredRetriesRequest) -> store_pb2.EndStoredRetriesResponse:
        """See proto/duetime/v1/store.proto. Raises: DueTimeError."""
        check_group(request.group)
        count = len(request.entries)
        if not 1 <= count <= limits.PENDING_COUNT_MAX or len(request.lanes) != count:
            text = f"{count} entries of {len(request.lanes)} lanes are not 1 to {limits.PENDING_COUNT_MAX} of as many"
            raise InvalidArgument([Violation("entries", text)])
        by_lane: dict[int, set[int]] = {}
        for number, entry in zip(request.lanes, request.entries, strict=True):
            by_lane.setdefault(number, set()).add(entry)
        found = self._retries.named(request.group, by_lane)
        response, failed = store_pb2.EndStoredRetriesResponse(), 0
        if request.discard:
            response.ended_count = self._retries.cancel(found)
        else:
            failed = await self._hasten(found, response)
        await self._flusher.durable()
        response.gone_count = count - response.ended_count - failed
        return response

    async def _hasten(self, found: Sequence[WaitingCopies], response: store_pb2.EndStoredRetriesResponse) -> int:
        """Stages records that replace them and are due now. Returns the number of failures."""
        self._gate.check_send()
        failed = 0
        with self._turns.walk() as walk:
            walk.start()
            for lane, entries, dues in found:
                for entry, due_at_ms in zip(entries.tolist(), dues.tolist(), strict=True):
                    still = state_of(self._lanes, lane.number, entry) == PENDING
                    if still and due_at_ms > self._clock.now_ms():
                        error = self._replacing.hasten(lane, entry)
                        if error is None:
                            response.ended_count += 1
                        elif not failed:
                            response.fault.CopyFrom(error)
                        failed += error is not None
                    await walk.turn_if_over()
        return failed
