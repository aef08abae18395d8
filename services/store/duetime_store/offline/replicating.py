"""Makes a store directory the first member of a group of copies: all that its log has so far counts as one entry.

| records of one copy | mark 1 |                  the mark is the point after which entries follow
| entries of a former group | mark n + 1 |        of a new group, if the majority of the former one is lost
"""

from dataclasses import dataclass, replace
from pathlib import Path

from duetime_core.errors import DueTimeError, FailedPrecondition
from duetime_format.columns import RecordRun
from duetime_format.errors import DamagedBytes
from duetime_format.marks import MARK_BYTES, OWN, mark_of
from duetime_format.names import RAFT_TOPIC
from duetime_shard.batches import scan_whole
from duetime_shard.walk import SegmentBlank, item_end

from duetime_store.copies.entries import Entry, made
from duetime_store.copies.roster import Roster, check_address
from duetime_store.copies.scanning import View, scan
from duetime_store.copies.statefile import FILE, RaftState, StateFile, has_state
from duetime_store.copies.writes import Writer
from duetime_store.files.directory import StoreDirectory
from duetime_store.files.disk import Buffer
from duetime_store.log.commitlog import CommitLog


@dataclass(frozen=True, slots=True)
class Replicated:
    """The first member of a group. `end`: of its log; `index`: of the entry that stands for it.

    Of a former group, entries after `committed` may not have been answered, and entries after `kept` may be lost; -1:
    there was none.
    """

    index: int
    end: int
    committed: int = -1
    kept: int = -1


def replicate(root: Path, group: int, number: int, address: str, *, is_new_group: bool = False) -> Replicated:
    """Makes a stopped directory the only member of a group, durably; repeated, it does nothing.

    `is_new_group`: the directory is a copy of another group.

    Raises:
        DueTimeError: it is absent, in use, was not stopped in good order, is damaged or empty, or a copy already; the
            address is none.
    """
    check_address(address)
    if not root.is_dir():
        raise FailedPrecondition(f"{root} is not a directory")
    directory = StoreDirectory(root)
    try:
        member = RaftState(group, number, Roster.founding({number: address}), term=1)
        if not has_state(root):
            if is_new_group:
                raise FailedPrecondition(f"{root} is no copy of a group: leave out --new-group")
            return _found(directory, member)
        file = StateFile(directory.disk, root)
        try:
            state = file.state
            if (state.group, state.id, state.roster.voters) == (group, number, (number,)):
                return Replicated(state.index, state.position)
            if not is_new_group:
                raise FailedPrecondition(f"{root} is copy {state.id} of group {state.group} already")
            if state.group == group:
                raise FailedPrecondition(f"{root} belongs to group {group}: a new group needs a new number")
            return _found_anew(directory, file, member)
        finally:
            file.close()
    finally:
        directory.close()


def _found(directory: StoreDirectory, member: RaftState) -> Replicated:
    root = directory.root
    if directory.was_aborted:
        raise FailedPrecondition(f"{root} was not stopped in good order: start its store once, and stop it")
    if (directory.queues / RAFT_TOPIC).exists():
        raise FailedPrecondition(f"{root} has entries of a former group, and no {FILE}")
    log = _log(directory)
    try:
        last = _last_of(log, member.group)
        point = last if last.index else _close(log, last, member)
    finally:
        log.close()
    StateFile(directory.disk, root, _state_at(member, point)).close()
    return Replicated(point.index, point.end)


def _found_anew(directory: StoreDirectory, file: StateFile, member: RaftState) -> Replicated:
    state = file.state
    if state.is_taking:
        raise FailedPrecondition(f"{directory.root} is incomplete: it was being taken from another copy")
    log = _log(directory)
    try:
        writer = Writer(log, file)
        if state.is_cutting:
            writer.finish_cut()
        found = scan(View(log), state.group, state.base)
        if found.damage is not None:
            raise DueTimeError(f"positions {found.damage.position} to {found.damage.end} of the log are damaged")
        last = found.entries[-1] if found.entries else state.base
        log.take_back(last.end)
        point = _close(log, last, replace(member, term=max(state.term, last.term) + 1))
    finally:
        log.close()
    file.write_both(_state_at(member, point))
    return Replicated(point.index, point.end, state.commit, last.index)


def _log(directory: StoreDirectory) -> CommitLog:
    files = sorted(path for path in directory.commit_log.glob("*") if path.name.isdigit())
    if not files:
        raise FailedPrecondition(f"{directory.root} has no log: found a group with empty directories")
    return CommitLog(directory.disk, directory.commit_log, files[0].stat().st_size)


def _last_of(log: CommitLog, group: int) -> Entry:
    """The end of a log without entries, as entry 0; or the group's mark there, which an interrupted run has left.

    Raises:
        DueTimeError: its last two files are damaged.
    """
    end, last = log.min_position, b""
    stored_at_ms = 0
    for item in scan_whole(log, max(log.min_position, log.max_position - 2 * log.segment_bytes)):
        if isinstance(item, RecordRun):
            last, stored_at_ms = item.data[int(item.starts[-1]) : item.end], int(item.stored_at_ms[-1])
        elif not isinstance(item, SegmentBlank):
            raise DueTimeError(f"the log in {log.directory} is damaged at {item.position}: verify it")
        end = item_end(item)
    try:
        _, mark = mark_of(last)
    except DamagedBytes:
        return Entry(0, 0, OWN, end, end, stored_at_ms)
    if mark.group != group:
        raise FailedPrecondition(f"the log in {log.directory} has entries of group {mark.group}, and no {FILE}")
    return Entry(mark.index, mark.term, OWN, mark.position, end, stored_at_ms)


def _close(log: CommitLog, last: Entry, member: RaftState) -> Entry:
    """Appends the mark of the point after `last`, durably."""
    log.end = last.end
    after = replace(last, term=0)
    entry, data = made(log, member.group, after, member.term, (), last.stored_at_ms, kind=OWN)
    # The log itself writes a BLANK in front of a new segment.
    runs: list[tuple[int, list[Buffer]]] = [(entry.end - MARK_BYTES, [data[-MARK_BYTES:]])]
    for segment in log.write(runs):
        segment.flush()
    return entry


def _state_at(member: RaftState, point: Entry) -> RaftState:
    return replace(member.after(point), term=point.term)
