"""Takes checks from shards for the groups watched here, and reports to the shards which were heard.

A taker waits at its shard with all ready groups. If more become ready, it starts another call for them: a running call
is not cancelled, since its checks would be lost until their next time. All calls of a round end at the same time, so
that the next round starts with one call.
"""

import asyncio
from collections.abc import Mapping, Sequence

from duetime.v1 import store_pb2
from duetime_core.clock import Clock
from duetime_core.telemetry.defects import outcome
from duetime_core.telemetry.logs import sparing
from duetime_format import record
from duetime_format.errors import DamagedBytes
from duetime_format.halves import message_id_of

from duetime_gateway.shards.shard import Shard
from duetime_gateway.transactions.checks import Desk, TransactionQuestion
from duetime_gateway.transactions.names import TransactionName

log = sparing()

TAKEN_COUNT_MAX = 256
ROUND_MS = 10_000
# Time before the end of a round in which no call starts.
ROUND_REST_MS = 100
# Calls per round: groups that become ready later wait for one of them to end.
CALLS_MAX = 8
# Pause after a shard did not answer.
PAUSE_MS = 1_000
# Offsets in one report.
REPORTED_MAX = 4_096
# Longest wait of a shutdown for the last reports.
LAST_REPORTS_MS = 1_000


class CheckTaker:
    """Takes checks from one shard."""

    def __init__(self, shard: Shard, desk: Desk, clock: Clock, *, gateway: str, timeout_ms: int) -> None:
        """`gateway`: this gateway's name in the stores' logs."""
        self._shard = shard
        self._desk = desk
        self._clock = clock
        self._gateway = gateway
        self._timeout_ms = timeout_ms

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Runs until the desk ends."""
        calls: dict[asyncio.Task[None], frozenset[str]] = {}
        ends_ms = 0.0
        while True:
            now_ms = self._clock.monotonic_ms()
            if not calls:
                ends_ms = now_ms + ROUND_MS
            changed = self._desk.changed()
            covered = frozenset[str]().union(*calls.values())
            groups = [name for name in self._desk.ready() if name not in covered]
            wait_ms = int(ends_ms - now_ms)
            if groups and len(calls) < CALLS_MAX and wait_ms > ROUND_REST_MS:
                calls[tasks.create_task(self._take(groups, wait_ms))] = frozenset(groups)
            elif self._desk.ending and not calls:
                return
            done, _ = await asyncio.wait({changed, *calls}, return_when=asyncio.FIRST_COMPLETED)
            calls = {call: names for call, names in calls.items() if call not in done}

    async def _take(self, groups: Sequence[str], wait_ms: int) -> None:
        """Waits for checks of these groups, and passes them to the desk."""
        store, began_ms = self._shard.store, self._clock.monotonic_ms()
        request = store_pb2.TakeChecksRequest(
            gateway=self._gateway, groups=groups, max_count=TAKEN_COUNT_MAX, wait_ms=wait_ms
        )
        answer, error = await outcome(
            lambda: store.take_checks(request, wait_ms + self._timeout_ms), "TakeChecks", shard=self._shard.number
        )
        checks = [] if answer is None else _checks_of(self._shard.number, answer)
        if checks:
            self._desk.hold(checks)
        elif not self._desk.ending and self._clock.monotonic_ms() - began_ms < wait_ms / 2:
            if error is not None:
                log.warning("cannot take checks", shard=self._shard.number, why=error.text)
            await self._clock.sleep(PAUSE_MS)


def _checks_of(shard: int, answer: store_pb2.TakeChecksResponse) -> list[TransactionQuestion]:
    """Decodes checks. An unreadable record is left to its next check."""
    checks = []
    for one in answer.checks:
        try:
            found = record.decode(one.record)
        except DamagedBytes as error:
            log.warning("cannot read a half message", shard=shard, offset=one.half.offset, why=error.text)
            continue
        name = TransactionName(shard, one.half.offset, one.half.position, message_id_of(found.properties))
        checks.append(TransactionQuestion(name, one.group, one.checks + 1, found))
    return checks


class CheckReporter:
    """Reports on checks, on their way to the shards. A failed report is not retried: its check comes due again, and is
    not counted."""

    def __init__(self, shards: Sequence[Shard], clock: Clock, tasks: asyncio.TaskGroup) -> None:
        self._shards = {shard.number: shard for shard in shards}
        self._clock = clock
        self._tasks = tasks
        # Half offsets by shard, then by whether they were heard.
        self._waiting: dict[int, dict[bool, list[int]]] = {}
        self._running: dict[int, asyncio.Task[None]] = {}

    def add(self, shard: int, offsets: Sequence[int], heard: bool) -> None:
        """Adds checks to the next report."""
        self._waiting.setdefault(shard, {True: [], False: []})[heard].extend(offsets)
        if shard not in self._running:
            self._running[shard] = self._tasks.create_task(self._run(shard))

    async def _run(self, shard: int) -> None:
        try:
            while waiting := self._waiting.pop(shard, None):
                for heard, offsets in waiting.items():
                    for first in range(0, len(offsets), REPORTED_MAX):
                        part = offsets[first : first + REPORTED_MAX]
                        await self._report(shard, {"heard" if heard else "unheard": part})
        finally:
            del self._running[shard]

    async def _report(self, shard: int, part: Mapping[str, Sequence[int]]) -> None:
        request = store_pb2.ReportChecksRequest(**part)
        _, error = await outcome(lambda: self._shards[shard].store.ask("ReportChecks", request), "ReportChecks")
        if error is not None:
            log.warning("cannot report on checks", shard=shard, why=error.text)

    async def finish(self) -> None:
        """Returns when all reports are sent, or after LAST_REPORTS_MS."""
        running = list(self._running.values())
        if running:
            await self._clock.wait_for(asyncio.gather(*running, return_exceptions=True), LAST_REPORTS_MS)
