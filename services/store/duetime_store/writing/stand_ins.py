"""Gives due lanes without a scheduler to the first scheduler that asks without a lease."""

from collections.abc import Collection

import structlog
from duetime.v1 import store_pb2
from duetime_core.errors import Violation, refuse
from duetime_format.errors import within
from duetime_format.limits import MEMBER_CHARS_MAX

from duetime_store.lanes.alarm import ShardClock
from duetime_store.lanes.lane import ShardLane
from duetime_store.lanes.lanes import ShardLanes
from duetime_store.metrics import StoreMetrics

log = structlog.get_logger()

UNASKED_MS_MIN = 100
SPAN_MS_MAX = 600_000


class StandInAssigner:
    """Answers StandIn calls. Knows only events since the store started."""

    def __init__(self, lanes: ShardLanes, clock: ShardClock, metrics: StoreMetrics) -> None:
        self._lanes = lanes
        self._clock = clock
        self._metrics = metrics
        self._since_ms = clock.monotonic_ms()
        self._pauses_known = False

    def answer(self, request: store_pb2.StandInRequest) -> store_pb2.StandInResponse:
        """Raises: InvalidArgument."""
        _check(request)
        self._pause(request.paused, is_new=request.pauses_are_new)
        now_ms, lanes = self._clock.monotonic_ms(), self._lanes
        leave = [
            level
            for level in request.serving
            if level not in lanes or self._is_to_leave(lanes[level], request.scheduler, now_ms, request.unasked_ms)
        ]
        take = [
            lane.number
            for lane in lanes
            if lane.number not in request.serving and self._is_orphaned(lane, now_ms, request)
        ]
        for level in take:
            lanes[level].attendance.give(request.scheduler, now_ms)
        if take:
            self._metrics.orphaned.inc(len(take))
            log.warning("unowned lanes given to a stand-in", lanes=take, scheduler=request.scheduler)
        return store_pb2.StandInResponse(take=take, leave=leave)

    def _pause(self, paused: Collection[int], *, is_new: bool) -> None:
        if not is_new and (self._pauses_known or not paused):
            return
        self._pauses_known = True
        for lane in self._lanes:
            lane.attendance.paused = lane.number in paused

    def _is_to_leave(self, lane: ShardLane, scheduler: str, now_ms: float, within_ms: float) -> bool:
        return lane.attendance.paused or lane.attendance.is_to_leave(scheduler, now_ms, within_ms)

    def _is_orphaned(self, lane: ShardLane, now_ms: float, request: store_pb2.StandInRequest) -> bool:
        if lane.attendance.paused:
            return False
        if lane.attendance.unasked_ms(lane.cursor, now_ms, self._since_ms) < request.unasked_ms:
            return False
        due_at_ms = lane.next_due_at_ms()
        return due_at_ms is not None and due_at_ms <= self._clock.now_ms() + request.ahead_ms


def _check(request: store_pb2.StandInRequest) -> None:
    found = []
    if not 1 <= len(request.scheduler) <= MEMBER_CHARS_MAX:
        found.append(Violation("scheduler", f"is not 1 to {MEMBER_CHARS_MAX} characters long"))
    found += within("unasked_ms", request.unasked_ms, UNASKED_MS_MIN, SPAN_MS_MAX)
    refuse(found + within("ahead_ms", request.ahead_ms, 0, SPAN_MS_MAX))
