"""A start finds the chain of marks: torn ends, stale tails, damage before intact marks, and its repair."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from duetime_core.errors import StartupError
from duetime_format.marks import GROUP, OWN
from duetime_format.record import Record, encode
from duetime_store.copies.entries import Entry, made
from duetime_store.copies.roster import Roster
from duetime_store.copies.scanning import Damage
from duetime_store.copies.statefile import RaftState, StateFile
from duetime_store.copies.writes import Writer
from duetime_store.files.disk import Disk
from duetime_store.log.commitlog import CommitLog

from tests.twins import native

native("duetime_raft")
from duetime_store.copies.copy import DamagedLog, opened, repaired  # noqa: E402 - needs the wheel

SEGMENT_BYTES = 16 * 1024
ID = 7


class Files:
    """A log with its state file, and a writer of entries."""

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        self.log = CommitLog(Disk(), root / "commitlog", SEGMENT_BYTES)
        self.file = StateFile(Disk(), root, RaftState(ID, 1, Roster((1, 2, 3))))
        self.last = Entry(0, 0, OWN, 0, 0, 0)
        self.entries: list[Entry] = []

    def make(self, term: int, body: bytes | None) -> tuple[Entry, bytes]:
        """The next entry: Raft's own without a body."""
        if body is None:
            return made(self.log, ID, self.last, term, (), self.last.stored_at_ms, kind=OWN)
        size = len(encode(Record("orders", 0, body, b"")))
        position = self.log.place(self.last.end, size)
        data = encode(Record("orders", 0, body, b"", position=position))
        return made(self.log, ID, self.last, term, [(position, [data])], 9, kind=GROUP)

    def add(self, term: int, body: bytes | None = None) -> bytes:
        entry, data = self.make(term, body)
        Writer(self.log, self.file).append(entry, data)
        self.last = entry
        self.entries.append(entry)
        return data

    def change(self, position: int, data: bytes) -> None:
        """Writes behind the copy's back."""
        with (self.root / "commitlog" / f"{position - position % SEGMENT_BYTES:020d}").open("r+b") as file:
            file.seek(position % SEGMENT_BYTES)
            file.write(data)

    def found(self) -> list[Entry]:
        return opened(self.log, self.file)[1]

    def close(self) -> None:
        self.log.close()
        self.file.close()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    files = Files(tmp_path / "one")
    yield files
    files.close()


def test_all_entries_are_found_over_segments_and_blanks(files: Files) -> None:
    for number in range(40):
        files.add(1 + number // 10, b"%d" % number * 900 if number % 3 else None)
    assert files.last.end > 2 * SEGMENT_BYTES
    assert files.found() == files.entries
    assert files.log.end == files.last.end


@pytest.mark.parametrize("kept", [1, 90, 600, 2_000])
def test_torn_end_is_cut(files: Files, kept: int) -> None:
    files.add(1)
    files.add(1, b"a" * 500)
    torn, data = files.make(1, b"b" * 2_000)
    files.change(torn.position, data[:kept])
    assert files.found() == files.entries
    assert files.log.read(torn.position, 4_000).strip(b"\0") == b""


def test_mark_without_its_bytes_is_a_torn_end_too(files: Files) -> None:
    """A power cut keeps the sectors of a write in any order."""
    files.add(1)
    torn, data = files.make(1, b"b" * 2_000)
    files.change(torn.position, bytes(1_000) + data[1_000:])
    assert files.found() == files.entries


def test_flipped_byte_under_an_intact_mark_is_noticed(files: Files) -> None:
    files.add(1)
    torn, data = files.make(1, b"b" * 2_000)
    files.change(torn.position, data[:500] + b"c" + data[501:])
    assert files.found() == files.entries


def test_stale_entry_behind_an_overruling_one_is_not_accepted(files: Files) -> None:
    """10/term 1 and 11/term 3, then 10/term 2 of the same length: the old 11 looks valid but for the previous term."""
    files.add(1)
    first = files.last
    files.add(1, b"old 10")
    files.add(3, b"old 11")
    files.last, files.entries = first, files.entries[:1]
    entry, data = files.make(2, b"new 10")
    files.change(entry.position, data)
    assert files.found() == [*files.entries, entry]
    assert files.log.end == entry.end


def test_marks_of_another_group_are_not_accepted(files: Files) -> None:
    files.add(1)
    entry, data = made(files.log, ID + 1, files.last, 1, (), 9, kind=OWN)
    files.change(entry.position, data)
    assert files.found() == files.entries


def test_message_that_holds_a_mark_is_a_message(files: Files) -> None:
    _, stolen = files.make(1, None)
    files.add(1, b"<" + stolen + b">")
    files.add(1, b"next")
    assert [entry.index for entry in files.found()] == [1, 2]


def test_damage_before_an_intact_mark_waits_for_a_peer(files: Files, tmp_path: Path) -> None:
    peer = Files(tmp_path / "two")
    for number in range(12):
        body = None if number % 4 == 0 else b"%d" % number * 400
        assert files.add(1 + number // 6, body) == peer.add(1 + number // 6, body)
    lost = files.entries[5]
    files.change(lost.position + 40, b"\xff" * 2_000)
    with pytest.raises(DamagedLog, match="a peer has them") as raised:
        files.found()
    damage = raised.value.damage
    assert damage.position == lost.position
    assert not repaired(files.log, files.file, damage, bytes(damage.end - damage.position))
    assert not repaired(files.log, files.file, damage, b"short")
    other = Files(tmp_path / "three")
    for number in range(12):
        other.add(1 + number // 6, None if number % 4 == 0 else b"%d" % (number + (number == 5) * 70) * 400)
    assert not repaired(files.log, files.file, damage, span(other, damage))
    with pytest.raises(DamagedLog):
        files.found()
    assert repaired(files.log, files.file, damage, span(peer, damage))
    assert files.found() == files.entries == peer.found()
    for each in (peer, other):
        each.close()


def test_overruled_bytes_of_a_peer_repair_nothing(files: Files, tmp_path: Path) -> None:
    """They have the length of the lost ones, and a valid mark where this copy has an intact one of a later term."""
    peer = Files(tmp_path / "two")
    for term, of_peer in ((1, 1), (3, 2), (3, 2)):
        files.add(term)
        peer.add(of_peer)
    files.change(10, b"\xff")
    with pytest.raises(DamagedLog) as raised:
        files.found()
    damage = raised.value.damage
    assert (damage.position, damage.end) == (0, files.entries[1].end)
    assert not repaired(files.log, files.file, damage, span(peer, damage))
    files.change(10, peer.log.read(10, 1))
    assert files.found() == files.entries
    peer.close()


def span(files: Files, damage: Damage) -> bytes:
    data = b""
    while len(data) < damage.end - damage.position:
        data += files.log.read(damage.position + len(data), damage.end - damage.position - len(data))
    return data


def test_lost_end_that_was_committed_is_refused(files: Files) -> None:
    files.add(1)
    files.add(1, b"a" * 500)
    Writer(files.log, files.file).vote(1, 2, 2)
    files.change(files.last.position, bytes(700))
    with pytest.raises(StartupError, match="ends with entry 1, and entry 2 was on this disk: replace this copy"):
        files.found()


def test_interrupted_cut_is_finished(files: Files) -> None:
    """Half of an overruled tail is zeroed: without the intention it would look like damage."""
    files.add(1)
    end = files.last.end
    for _ in range(3):
        files.add(1, b"overruled" * 50)
    files.change(end, bytes(700))
    with pytest.raises(DamagedLog):
        files.found()
    files.file.write(RaftState(ID, 1, Roster((1, 2, 3)), term=2, cut=end))
    assert files.found() == files.entries[:1]
    assert not files.file.state.is_cutting
    assert files.log.read(end, 3_000).strip(b"\0") == b""
