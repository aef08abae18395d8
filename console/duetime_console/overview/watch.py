"""Reads the cluster once for all browsers, and sends the result to all watchers.

    ListLanes, groups ──▶ Sample ──▶ history ──▶ figures, alarms ──rendered once──▶ events to all readers

It reads as the console's own user if the console has a token, else as a watching user with access to all lanes.
"""

import asyncio
from collections import deque
from collections.abc import Callable

import structlog
from duetime.v1 import gateway_pb2
from duetime_core.clock import Clock

from duetime_console.gateway import Gateway, GatewayError
from duetime_console.overview.alarms import ClusterAlarm, alarms
from duetime_console.overview.events import Events
from duetime_console.overview.groups import GroupWatch
from duetime_console.overview.history import (
    DEAD_LETTERS,
    LATENESS,
    LEVELS,
    MINUTE_MS,
    PENDING,
    RETRYING,
    ClusterHistory,
    Levels,
)
from duetime_console.overview.samples import ACCEPTED, DEAD, RESTORED, Figures, GroupSums, LaneSample, changes, figures
from duetime_console.settings import Settings

log = structlog.get_logger()

# Interval of reads without watchers: the past continues.
IDLE_MS = 5_000
# Interval of reads of the groups.
GROUPS_MS = 10_000
RATE_MS = 10_000
# Time for which an answer about access to all lanes is cached, and number of cached answers.
ADMITTED_MS = 5_000
ADMITTED_MAX = 1_000
# Time for which a new dead letter raises an alarm.
DEAD_MS = 600_000
LOOK_TIMEOUT_S = 5.0
# Interval of checks of the rights of live pages.
RIGHTS_MS = 1_000
RIGHTS_TIMEOUT_S = 2.0
SHOW = "figures"


class Watch:
    """See the module."""

    def __init__(self, settings: Settings, gateway: Gateway, clock: Clock) -> None:
        self._settings = settings
        self._gateway = gateway
        self._clock = clock
        self.history = ClusterHistory(settings.history_hours)
        self.levels = Levels()
        self.events = Events()
        # The result of the last successful read.
        self.figures: Figures | None = None
        # The error of the last read.
        self.fault: GatewayError | None = None
        self._sample: LaneSample | None = None
        self._lent = ""
        self._admitted: dict[str, tuple[float, bool]] = {}
        self.groups = GroupWatch(gateway, LOOK_TIMEOUT_S)
        self._looked_at_ms = self._groups_at_ms = float("-inf")
        self._deaths: deque[tuple[int, int]] = deque(maxlen=int(DEAD_MS // GROUPS_MS))
        self.look_count = 0
        self.failed_count = 0

    async def run(self, rendered: Callable[[], str]) -> None:
        """Reads until cancelled. `rendered`: the event for readers after a read."""
        while True:
            began_ms = self._clock.monotonic_ms()
            await self.look()
            if self.events.reader_count:
                self.events.publish(SHOW, rendered())
            pause_ms = self._settings.refresh_ms if self.events.reader_count else IDLE_MS
            await self._clock.sleep(max(pause_ms - (self._clock.monotonic_ms() - began_ms), 50))

    async def guard(self, forget: Callable[[str], None]) -> None:
        """Ends the live pages of users with lost rights or revoked tokens. `forget`: called with these tokens."""
        while True:
            await self._clock.sleep(RIGHTS_MS)
            tokens = list(self.events.tokens())
            for token, may_stay in zip(tokens, await asyncio.gather(*map(self._may_stay, tokens)), strict=True):
                if not may_stay:
                    self._admitted.pop(token, None)
                    if self._lent == token:
                        self._lent = ""
                    self.events.end_of(token)
                    forget(token)

    async def _may_stay(self, token: str) -> bool:
        """Also True without an answer: nothing new is shown then."""
        try:
            found = await self._gateway.call("WhoAmI", gateway_pb2.WhoAmIRequest(), token, RIGHTS_TIMEOUT_S)
        except GatewayError as error:
            return error.code != "UNAUTHENTICATED"
        return not found.user or "ListLanes" in found.methods

    async def admits(self, token: str) -> bool:
        """Whether the user may see all lanes. Raises: GatewayError: unknown."""
        now_ms = self._clock.monotonic_ms()
        known = self._admitted.get(token)
        if known is None or now_ms - known[0] > ADMITTED_MS:
            try:
                await self._gateway.call("ListLanes", gateway_pb2.ListLanesRequest(), token)
                known = now_ms, True
            except GatewayError as error:
                if error.code != "PERMISSION_DENIED":
                    raise
                known = now_ms, False
            if len(self._admitted) >= ADMITTED_MAX:
                self._admitted.clear()
            self._admitted[token] = known
        if known[1]:
            if self.fault is not None and token != self._lent:
                # The last read may have failed because there was no token.
                self._looked_at_ms = float("-inf")
            self._lent = token
        return known[1]

    def alarms(self) -> list[ClusterAlarm]:
        """Current alarms, the worst first."""
        if self.fault is not None:
            return [
                ClusterAlarm(
                    _fault_text(self.fault), "callers-are-refused" if self.fault.status < 500 else "calls-fail"
                )
            ]
        if self._sample is None:
            return []
        from_ms = self._sample.at_ms - DEAD_MS
        return alarms(self._sample, sum(count for at_ms, count in self._deaths if at_ms >= from_ms))

    async def refresh(self) -> None:
        """Reads, unless the last read is fresh."""
        if self._clock.monotonic_ms() - self._looked_at_ms > self._settings.refresh_ms:
            await self.look()

    async def look(self) -> None:
        """One look."""
        self._looked_at_ms = self._clock.monotonic_ms()
        try:
            sample = await self._look(self._token())
        except GatewayError as error:
            self.failed_count += 1
            self.fault = error
            if error.code == "UNAUTHENTICATED":
                self._lent = ""
            return
        except OSError as error:
            self.fault = GatewayError("UNAUTHENTICATED", f"the console's token can't be read: {error}")
            return
        self.look_count += 1
        self.fault = None
        self._note(sample)

    def _token(self) -> str:
        """Raises: OSError."""
        return self._settings.own_token() or self._lent

    async def _look(self, token: str) -> LaneSample:
        listed = await self._gateway.call("ListLanes", gateway_pb2.ListLanesRequest(), token, LOOK_TIMEOUT_S)
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._groups_at_ms >= GROUPS_MS:
            self._groups_at_ms = now_ms
            counted = await self._count_groups(token)
            return LaneSample(self._clock.now_ms(), listed.lanes, listed.unreachable_shards, counted, is_counted=True)
        before = self._sample.groups if self._sample else None
        return LaneSample(self._clock.now_ms(), listed.lanes, listed.unreachable_shards, before)

    async def _count_groups(self, token: str) -> GroupSums | None:
        try:
            return await self.groups.look(token)
        except GatewayError as error:
            log.debug("groups not counted", why=error.text)
            return None

    def _note(self, sample: LaneSample) -> None:
        before = self._sample
        came = changes(before, sample) if before is not None else {}
        if came.get(DEAD):
            self._deaths.append((sample.at_ms, came[DEAD]))
        self.history.add(sample.at_ms, came, sample.overdue_count)
        self._sample = sample
        rates = (self.history.per_s(field, sample.at_ms, RATE_MS) for field in (ACCEPTED, RESTORED))
        self.figures = figures(sample, *rates)
        self._note_levels(self.figures)

    def _note_levels(self, shown: Figures) -> None:
        levels = {PENDING: shown.pending_count}
        if shown.late_p99_ms >= 0:
            levels[LATENESS] = round(shown.late_p99_ms * 1_000)
        if shown.groups is not None:
            levels |= {RETRYING: shown.groups.sums.retrying, DEAD_LETTERS: shown.groups.sums.dead_letters}
        self.levels.note(shown.at_ms, levels)

    def lines(self, at_ms: int) -> dict[str, list[int | None]]:
        """The last hour by minute: delivered messages, and the fields of Levels."""
        minutes = range(at_ms // MINUTE_MS - Levels.MINUTES + 1, at_ms // MINUTE_MS + 1)
        past = self.history.minutes.between(minutes[0] * MINUTE_MS, at_ms + 1)
        delivered = {one.start_ms // MINUTE_MS: one.counts[RESTORED] for one in past}
        levels = {field: self.levels.line(field, at_ms) for field in LEVELS}
        return {"delivered": [delivered.get(minute) for minute in minutes], **levels}


def _fault_text(fault: GatewayError) -> str:
    if fault.code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        return (
            "No live figures: the console has no token with access to all lanes (DUETIME_CONSOLE_TOKEN), "
            f"and no user with such access is signed in. Error of the gateway: {fault.text}"
        )
    return f"The cluster does not answer: {fault.text}"
