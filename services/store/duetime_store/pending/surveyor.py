"""Tends the table of counts: merges, folds and refines it as time passes, and recounts lanes that do not add up.

All of it runs in turns (reading/turns.py), so no other call waits for it.
"""

import structlog

from duetime_store.counting.ledger import LOOK_ENTRIES, Ledger
from duetime_store.counting.survey import LaneSurvey
from duetime_store.lanes.alarm import ShardClock
from duetime_store.lanes.lane import ShardLane
from duetime_store.lanes.lanes import ShardLanes
from duetime_store.reading.turns import ScanTurns, YieldingScan

log = structlog.get_logger()

# Interval between two runs.
PERIOD_MS = 1_000


class Surveyor:
    """The loop."""

    def __init__(self, lanes: ShardLanes, ledger: Ledger, clock: ShardClock, turns: ScanTurns) -> None:
        self._lanes = lanes
        self._ledger = ledger
        self._counts = ledger.counts
        self._turns = turns
        self._clock = clock

    async def run(self) -> None:
        while True:
            await self.tend()
            await self._clock.sleep(PERIOD_MS)

    async def tend(self) -> None:
        """Does all that is due now."""
        counts = self._counts
        with self._turns.walk() as walk:
            if counts.is_full or counts.is_crowded:
                await walk.begin()
                for _ in counts.fold() if counts.is_full else counts.merge():
                    await walk.turn_if_over()
        for number in sorted(counts.suspects):
            await self._recount(self._lanes[number])
        while (span := counts.to_refine(self._clock.now_ms())) is not None:
            survey = LaneSurvey(*span)
            await self.survey(self._lanes[span.lane], survey)
            counts.refine(span, survey)
            if span.lane in counts.suspects:
                log.error("counts of a span do not add up", lane=span.lane, start_ms=span.start_ms)
                break

    async def _recount(self, lane: ShardLane) -> None:
        survey = self._counts.whole(lane.number)
        await self.survey(lane, survey)
        self._counts.replace(survey)
        log.info("pending messages counted", lane=lane.number, count=self._counts.totals[lane.number])

    async def survey(self, lane: ShardLane, survey: LaneSurvey) -> None:
        """Scans the lane. On return the survey is of this very moment, and stays so until Counts.end."""
        self._counts.begin(survey)
        try:
            with self._turns.walk() as walk:
                await walk.begin()
                while not self._step(lane, survey, walk):
                    await walk.turn()
        except BaseException:
            self._counts.end(survey)
            raise

    def _step(self, lane: ShardLane, survey: LaneSurvey, walk: YieldingScan) -> bool:
        """Reads entries until the step is over. Returns whether there are no more."""
        while True:
            rows = lane.scan(survey.place, survey.stop_ms, LOOK_ENTRIES)
            survey.look(rows.entries, rows.dues, self._ledger.topics_of(lane, rows.entries, rows.topics))
            if len(rows.entries) < LOOK_ENTRIES:
                survey.end()
                return True
            if walk.is_over:
                return False
