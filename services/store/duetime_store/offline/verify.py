"""Checks every byte of a store directory that the format can verify.

log          structure, position, CRC of each record; BLANK marks; missing files and files of another size
queues       each unit against its record, each record for its unit, in files or a broker's RocksDB
engines      each RocksDB of a broker is read; state that no import can take is listed as a loss
index        each entry against its record; chains, slots, headers
config       JSON files, our checkpoint
lanes        marks of ended entries against the records that ended them; orders and counts, as far as they are kept
half messages    marks of ends against the records that ended them; the file of open transactions against the marks
schedules    one pending occurrence of each; a delivered one has its next one

Traces of a kill are noted, and are not damage: a torn record at the end of the log, units of missing records, records
that are not in their queues yet.
"""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from duetime_format import layout
from duetime_format.columns import RecordRun
from duetime_format.lanes import LANE_TOPICS
from duetime_format.levels import DelayLevels
from duetime_shard import topics
from duetime_shard.facts import MOVED_TOPICS, facts_of
from duetime_shard.files import QueueFiles, numbered
from duetime_shard.history import LevelHistory
from duetime_shard.records import message
from duetime_shard.shard import (
    DirectoryState,
    Progress,
    load,
    no_progress,
    walk_whole,
)
from duetime_shard.walk import DamagedRecord, Item, SegmentBlank, SkippedBytes, item_end

from duetime_store.files import configs
from duetime_store.log.segment import file_name
from duetime_store.offline import litecheck
from duetime_store.offline.enginecheck import EngineCheck
from duetime_store.offline.halfcheck import HalfCheck
from duetime_store.offline.indexcheck import IndexCheck, message_of
from duetime_store.offline.lanecheck import LaneCheck
from duetime_store.offline.ordercheck import OrderCheck
from duetime_store.offline.report import DamagedMessage, VerifyReport
from duetime_store.offline.schedulecheck import ScheduleCheck
from duetime_store.offline.unitcheck import UnitCheck, unit_place
from duetime_store.recovery import checkpoint
from duetime_store.recovery.checkpoint import Checkpoint

_CHECKPOINT_BYTES = 4096
_CHUNK_BYTES = 1 << 20


@dataclass(slots=True)
class _DamagedPart:
    """A damaged part of the log."""

    position: int
    size: int
    what: str
    message: DamagedMessage
    reported: bool = False


def verify(root: Path, levels: DelayLevels | LevelHistory, progress: Progress = no_progress) -> VerifyReport:
    """Reads the whole directory; `levels` as in `state.load`. Raises: InvalidArgument: it is not a store directory."""
    state = load(root, levels)
    report = VerifyReport()
    engines = EngineCheck(state, report)
    engines.run()
    with engines.queues() as queues:
        verifier = _Verifier(state, report, queues)
        verifier.run(progress)
        litecheck.check(state, report, [*litecheck.in_files(state), *engines.lite_queues])
    _check_sizes(state, report)
    _check_config(state, report)
    point = _check_checkpoint(state, report)
    LaneCheck(state, report, point).run()
    verifier.halves.run(point)
    for queue in state.queues.values():
        if queue.topic in LANE_TOPICS:
            queue.settle(state.min_position, state.end)
    OrderCheck(state, report, point).run()
    state.log.close()
    return report


class _Verifier:
    """Walks the log and compares queues and index with it."""

    def __init__(self, state: DirectoryState, report: VerifyReport, queues: list[DirectoryState]) -> None:
        """`queues`: the state with the queues of each engine that keeps them."""
        self._state = state
        self._report = report
        self._units = [UnitCheck(one, report, self._report_damage) for one in queues]
        self._index = IndexCheck(state, report, lambda position: self._bad_at(position) is not None)
        self.halves = HalfCheck(state, report)
        self._schedules = ScheduleCheck(state, report)
        # Positions of plans that can't be read.
        self._unread_plans: list[int] = []
        self._bad: list[_DamagedPart] = []
        self._killed = (state.root / "abort").exists()
        state.end = state.min_position

    def run(self, progress: Progress) -> None:
        for item in walk_whole(self._state):
            self._see(item)
            progress(item_end(item))
        self._index.finish()
        self._schedules.finish()
        self._state.log.forget_vanished()
        self._bad = [bad for bad in self._bad if bad.position >= self._state.min_position]
        self._report_left_over()
        self._report_missing()
        for bad in self._bad:
            if not bad.reported:
                self._report_damage(bad.position, bad.what, bad.message)
        self._note_plans()
        self._note_tail()

    def _see(self, item: Item) -> None:
        state, report = self._state, self._report
        self.halves.see(item)
        if isinstance(item, RecordRun):
            report.records += item.count
            report.record_bytes += int(item.sizes.sum())
            facts = facts_of(item)
            state.ends.see(facts)
            self._unread_plans += [position for position, _ in facts.unread_plans]
            for position, what in facts.damage:
                self._report_damage(position, what, DamagedMessage())
            for units in self._units:
                units.see_run(item, facts)
            self._index.see_run(item)
            self._schedules.see(item, facts)
        elif isinstance(item, SkippedBytes):
            self._bad.append(_DamagedPart(item.position, item.size, item.damage, DamagedMessage()))
        elif isinstance(item, SegmentBlank):
            self._check_blank(item)
        else:
            self._see_damaged(item)
        if not isinstance(item, SegmentBlank):
            state.end = item_end(item)

    def _see_damaged(self, item: DamagedRecord) -> None:
        self._report.records += 1
        self._report.record_bytes += item.record.size
        self._bad.append(_DamagedPart(item.position, item.record.size, item.damage, message_of(item.record)))

    def _check_blank(self, blank: SegmentBlank) -> None:
        said = layout.blank_at(self._state.log.read(blank.position, layout.BLANK_BYTES))
        if said != blank.size:
            self._report_damage(
                blank.position, f"BLANK mark says {said} bytes, {blank.size} are left in its file", DamagedMessage()
            )

    def _bad_at(self, position: int) -> _DamagedPart | None:
        index = bisect_right(self._bad, position, key=lambda bad: bad.position) - 1
        bad = self._bad[index] if index >= 0 else None
        return bad if bad is not None and position < bad.position + bad.size else None

    def _report_left_over(self) -> None:
        """Reports units without a record, by the cause."""
        unwritten = repeated = 0
        for files, offsets, units in chain.from_iterable(one.left_over() for one in self._units):
            rows = zip(offsets.tolist(), units.tolist(), strict=True)
            for offset, (position, size, _) in rows:
                bad = self._bad_at(position)
                message = DamagedMessage(files.topic, files.queue, offset)
                if bad is not None:
                    bad.reported = True
                    named = bad.message.topic == files.topic and bad.message.queueOffset == offset
                    self._report_damage(position, bad.what, bad.message if named else message)
                elif position < self._state.min_position and position >= 0 and size > 0:
                    continue  # its record left with the front of the log
                elif position >= self._state.end and self._killed:
                    unwritten += 1
                elif self._is_repeated(files, offset, position, size):
                    repeated += 1
                else:
                    what = f"unit names position {position}, {size} bytes: no record is there"
                    self._report.add(*unit_place(files, offset), what, message)
        if unwritten:
            self._report.notes.append(f"{unwritten} queue units of records that did not reach the disk before the kill")
        if repeated:
            self._report.notes.append(f"{repeated} queue units repeat entries whose copies a broker dispatched again")

    def _is_repeated(self, files: QueueFiles, offset: int, position: int, size: int) -> bool:
        """Whether the unit repeats an entry that has a place before it. A broker makes it on meeting a copy, made by
        retention, of a queue's offset 0: it does not check that one for repeats."""
        if files.topic not in MOVED_TOPICS:
            return False
        found = message(self._state, position)
        return (
            found is not None
            and (found.topic, found.queue, found.size, found.position) == (files.topic, files.queue, size, position)
            and found.queue_offset < offset
        )

    def _report_missing(self) -> None:
        absent, outdated = sum(one.unfilled for one in self._units), 0
        missing = [list(one.missing()) for one in self._units]
        lacking = [{(files.topic, files.queue) for files, *_ in rows} for rows in missing]
        for files, count, offset, position in chain.from_iterable(missing):
            if self._killed and offset >= files.max_offset:
                absent += count
                continue
            # A broker whose storeType was changed leaves its former queues as they were.
            if offset >= files.max_offset and any((files.topic, files.queue) not in keys for keys in lacking):
                outdated += count
                continue
            what = f"{count} records have no unit, the first is at {position}"
            self._report.add(*unit_place(files, offset), what, DamagedMessage(files.topic, files.queue, offset))
        if absent:
            self._report.notes.append(f"{absent} records are not in their queues yet; recovery puts them there")
        if outdated:
            self._report.notes.append(f"{outdated} records are in the queues of one engine only, written last")

    def _report_damage(self, position: int, what: str, message: DamagedMessage) -> None:
        log = self._state.log
        base = position - position % log.segment_bytes
        self._report.add(f"commitlog/{file_name(base)}", position - base, what, message)

    def _note_plans(self) -> None:
        if count := len(self._unread_plans):
            where = f"the first is at {self._unread_plans[0]}"
            self._report.notes.append(
                f"{count} plans can't be read, {where}: after a power cut their messages may get other places"
            )

    def _note_tail(self) -> None:
        """Notes bytes after the last record, in its file and in later ones."""
        end, last = self._state.end, -1
        for base, file in sorted(self._state.log.files.items()):
            at: int | None = max(end, base)
            while at is not None and at < file.end and (at := file.next_data(at)) is not None:
                data = file.read_file(at, _CHUNK_BYTES)
                stripped = len(data.rstrip(b"\0"))
                last = max(last, at + stripped if stripped else -1)
                if not data:
                    break
                at += len(data)
        if last > end and not self._ends_with_blank(end):
            self._report.notes.append(f"torn tail: {last - end} bytes after the last record, which ends at {end}")

    def _ends_with_blank(self, end: int) -> bool:
        return layout.blank_at(self._state.log.read(end, layout.BLANK_BYTES)) is not None


def _check_sizes(state: DirectoryState, report: VerifyReport) -> None:
    log = state.log
    last = max(log.files, default=0)
    for base, file in log.files.items():
        if file.size != log.segment_bytes:
            what = f"the file has {file.size} bytes, its neighbours {log.segment_bytes}"
            if base == last and file.size < log.segment_bytes and (state.root / "abort").exists():
                report.notes.append(f"commitlog/{file_name(base)}: {what}")
            else:
                report.add(f"commitlog/{file_name(base)}", file.size, what)
    for queue in state.queues.values():
        for base, size in queue.files.sizes.items():
            if size != queue.files.file_bytes:
                what = f"the file has {size} bytes, its neighbours {queue.files.file_bytes}"
                report.add(unit_place(queue.files, base // 20)[0], size, what)


def _check_config(state: DirectoryState, report: VerifyReport) -> None:
    for path in [state.config / name for name, _ in state.files.listed("config")]:
        if path.suffix != ".json":
            continue
        fault = configs.fault_of(path)
        if fault and path.exists():
            backup = configs.fault_of(path.with_name(f"{path.name}.bak"))
            words = "its .bak can't be read either" if backup else "its .bak can be read"
            report.add(f"config/{path.name}", 0, f"{fault}; {words}")
    if damaged := topics.read(state.config)[1]:
        report.notes.append(f"config/{topics.FILE}: {damaged} lines were written in part, or are damaged")
    history = configs.read(state.config, configs.STORE)
    if history is not None and LevelHistory.load(history, state.history.current, accept=True) is None:
        report.add(f"config/{configs.STORE}", 0, "it does not state the delay levels")


def _check_checkpoint(state: DirectoryState, report: VerifyReport) -> Checkpoint | None:
    """Returns the one that a start would use, if it can be read."""
    try:
        data = (state.root / "checkpoint").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        report.notes.append("there is no checkpoint: a start reads the whole log")
        return None
    if len(data) != _CHECKPOINT_BYTES:
        report.add("checkpoint", 0, f"the file has {len(data)} bytes, not {_CHECKPOINT_BYTES}")
        return None
    ours = checkpoint.decode(data)
    for at in checkpoint.damaged_slots(data):
        report.add("checkpoint", at, "what DueTime wrote there does not match its CRC")
    if ours is None:
        return None
    if ours.position > state.end and numbered(state.files, "commitlog"):
        report.add(
            "checkpoint", 72, f"it says that the log reaches {ours.position}; the last record ends at {state.end}"
        )
    return ours
