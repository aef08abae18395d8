"""Moves pending occurrences to the times of newer time zone rules. config/duetimeZones.json has the present ones.

    {"version": "2026a", "zones": {"Europe/Berlin": "5f3c9a01", ...}}

    start ──▶ the zones that differ ──▶ their pending occurrences, in turns ──▶ records at other times ──▶ the file

Such a record ends the occurrence that it replaces, as a reschedule does. The file is written when all records are
durable. A start after a crash repeats the work: the rest is moved, and a moved occurrence has its time already. If the
file is missing or damaged, all zones differ.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import structlog
from duetime_core.audit.audit import Audit
from duetime_core.audit.events import AuditedCall, plain
from duetime_core.cron import zone_digests, zones_version
from duetime_core.errors import DueTimeError, Overloaded, Unavailable
from duetime_core.telemetry.logs import sparing
from duetime_format import record
from duetime_format.lanes import LanePlace
from duetime_format.properties import as_text
from duetime_format.record import Record
from duetime_format.replacing import LATEST_MAX, RequestedDueTime
from duetime_format.schedules import StoredSchedule, pending_schedule
from duetime_format.units import FILLER_SIZE, spans

from duetime_store.files import configs
from duetime_store.files.worker import FileWorker
from duetime_store.lanes.lane import PENDING, ShardLane
from duetime_store.pending.replacing import MessageReplacer
from duetime_store.reading.reader import Reader
from duetime_store.reading.turns import ScanTurns, YieldingScan
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.occurrences import (
    MOVED,
    SKIPPED,
    as_occurrence,
    is_missed,
    next_of,
    replanned,
    topic_of,
)
from duetime_store.writing.store import Store

log, rare = structlog.get_logger(), sparing()

# Entries read at once, and the bytes of their records; occurrences moved by one flush.
LOOK_ENTRIES, LOOK_BYTES = 32, 256 * 1024
MOVED_AT_ONCE = 64
# Pause after a full or hanging disk.
RETRY_MS = 5_000
# Zones named in the log.
_NAMED_MAX = 20
_TIME_END = (1 << 62) - 1
_UNTOUCHED = LanePlace(0, -1)
_SCHEDULE, _ZONE = record.SCHEDULE.encode() + b"\x01", b'"zone":"'


class _ZoneRules(NamedTuple):
    """The release of the rules, and the digest of each zone's."""

    version: str
    zones: Mapping[str, str]


class OccurrenceMover:
    """Runs once after each start: the rules of a process do not change."""

    def __init__(
        self,
        store: Store,
        replacing: MessageReplacer,
        reader: Reader,
        flusher: Flusher,
        worker: FileWorker,
        turns: ScanTurns,
    ) -> None:
        self._store = store
        self._replacing = replacing
        self._reader = reader
        self._flusher = flusher
        self._worker = worker
        self._turns = turns
        # All pending occurrences have the times of the present rules.
        self.done = asyncio.Event()
        self._seen_count = self._staged_count = 0

    async def run(self) -> None:
        """Returns when all pending occurrences have the times of the present rules."""
        while not self.done.is_set():
            try:
                await self.move()
            except (Overloaded, Unavailable, OSError) as error:
                rare.warning("occurrences not moved to new time zone rules yet", error=str(error))
                await self._store.clock.sleep(RETRY_MS)

    async def move(self) -> None:
        """Moves all whose time has changed; durable on return.

        Raises:
            DiskFull, Stalled, ReadOnly, OSError: some may have been moved.
        """
        known = self._known()
        if known.version == zones_version():
            self.done.set()
            return
        # Occurrences that become pending from now on have their time by the present rules.
        lanes = [lane for lane in self._store.lanes.timers() if lane.pending_count]
        rules = await self._worker.run(_present)
        changed = {name for name, digest in rules.zones.items() if known.zones.get(name) != digest}
        moved_before = self._store.occurrences.counts[MOVED]
        self._seen_count = self._staged_count = 0
        if changed:
            for lane in lanes:
                await self._move_lane(lane, changed)
        await self._worker.run(self._save, rules)
        self.done.set()
        moved_count = self._store.occurrences.counts[MOVED] - moved_before
        if moved_count or known.version:
            (log.warning if moved_count else log.info)(
                "time zone rules changed",
                before=known.version or "unknown",
                now=rules.version,
                zones=sorted(changed)[:_NAMED_MAX] if known.version else [],
                occurrences=self._seen_count,
                moved=moved_count,
            )
        if moved_count:
            self._audit(moved_count, known.version or "unknown", rules.version)

    def _audit(self, moved_count: int, before: str, now: str) -> None:
        """An event of the audit log: due times have changed, and no caller asked for it."""
        resource = f"{moved_count} pending occurrences: time zone rules {before} to {now}"
        host, now_ms = plain(socket.gethostname()), self._store.clock.now_ms()
        event = AuditedCall(now_ms, "", host, "", "store/MoveOccurrences", resource, "OK", "")
        Audit(self._store.clock).note(event)

    def _known(self) -> _ZoneRules:
        loaded = configs.load(self._worker.directory.config, configs.ZONES)
        if loaded.fault:
            log.warning("file of time zones is damaged: all occurrences are planned again", why=loaded.fault)
        # The backup may be of an earlier release than the occurrences.
        found = {} if loaded.fault else loaded.value or {}
        version, zones = found.get("version"), found.get("zones")
        if isinstance(version, str) and isinstance(zones, dict):
            return _ZoneRules(version, zones)
        return _ZoneRules("", {})

    def _save(self, rules: _ZoneRules) -> None:
        """On the worker's thread."""
        directory = self._worker.directory
        configs.write(directory.disk, directory.config, configs.ZONES, rules._asdict())

    async def _move_lane(self, lane: ShardLane, changed: Collection[str]) -> None:
        place: LanePlace | None = _UNTOUCHED
        while place is not None:
            self._store.gate.check_send()
            with self._turns.walk() as walk:
                await walk.begin()
                place = self._step(lane, place, changed, walk)
            if place is None or self._staged_count >= MOVED_AT_ONCE:
                await self._flusher.durable()
                self._staged_count = 0

    def _step(
        self, lane: ShardLane, place: LanePlace, changed: Collection[str], walk: YieldingScan
    ) -> LanePlace | None:
        """Stages the moves of a turn. Returns the place of its last entry; None: there are no more."""
        while not walk.is_over and self._staged_count < MOVED_AT_ONCE:
            rows = lane.scan(place, _TIME_END, LOOK_ENTRIES)
            if not len(rows.entries):
                return None
            units = lane.units(rows.entries)
            units = units[: next(spans(units, LOOK_BYTES, LOOK_ENTRIES))[1]]
            is_named = units["size"] != FILLER_SIZE
            if rows.keys is not None:
                # A schedule's name is a key.
                is_named &= rows.keys[: len(units)] != 0
            named = np.flatnonzero(is_named)
            entries = rows.entries[named]
            records, sizes, _, _ = self._reader.read(lane.queue, entries, units[named])
            place, end = LanePlace(int(rows.dues[len(units) - 1]), int(rows.entries[len(units) - 1])), 0
            for row, size in zip(named.tolist(), sizes, strict=True):
                data, end = records[end : end + size], end + size
                due_at_ms, entry = int(rows.dues[row]), int(rows.entries[row])
                if _zone_of(data) in changed:
                    self._move(lane, entry, due_at_ms, data)
                if walk.is_over or self._staged_count >= MOVED_AT_ONCE:
                    place = LanePlace(due_at_ms, entry)
                    break
        return place

    def _move(self, lane: ShardLane, entry: int, due_at_ms: int, data: bytes) -> None:
        """Stages the record of an occurrence at its present time, if that is another one."""
        found = record.decode(data, check_crc=False)
        known = pending_schedule(found.properties)
        if known is None:
            return
        self._seen_count += 1
        planned = replanned(known, found.born_at_ms)
        is_pending = lane.states(np.array([entry]))[0] == PENDING
        if planned == known or not is_pending or self._replacing.is_staged((lane.number, entry)):
            return
        results, now_ms = [MOVED], self._store.clock.now_ms()
        if is_missed(planned, planned.planned, now_ms) and (following := next_of(planned, now_ms)):
            planned = replace(following, moved_from=planned.moved_from)
            results.append(SKIPPED)
        try:
            self._stage((lane.number, entry), due_at_ms, found, known, planned)
        except (Overloaded, Unavailable):
            raise
        except DueTimeError as error:
            # Its topic is being deleted.
            rare.warning("occurrence not moved", schedule=known.name, lane=lane.number, entry=entry, error=error.text)
            return
        self._staged_count += 1
        self._store.staged.settles.append(self._store.occurrences.settling(Counter(results)))

    def _stage(
        self, place: tuple[int, int], due_at_ms: int, found: Record, known: StoredSchedule, planned: StoredSchedule
    ) -> None:
        own, asked = as_occurrence(found, planned, self._store.clock.now_ms())
        if due_at_ms != known.planned:
            # A reschedule has set its time.
            asked = RequestedDueTime(due_at_ms, is_delay=False)
        name = topic_of(found), known.name
        self._replacing.put(own, asked, place, LATEST_MAX, name)
        rare.info(
            "occurrence moved by new time zone rules",
            topic=name[0],
            schedule=known.name,
            zone=known.zone,
            before_ms=known.planned,
            now_ms=planned.planned,
        )


def _zone_of(data: bytes) -> str:
    """The zone of the schedule in a record, without decoding it; empty: it has none."""
    at = data.rfind(_SCHEDULE)
    begin = data.find(_ZONE, at) + len(_ZONE)
    return "" if at < 0 or begin < len(_ZONE) else as_text(data[begin : data.find(b'"', begin)])


def _present() -> _ZoneRules:
    return _ZoneRules(zones_version(), zone_digests())
