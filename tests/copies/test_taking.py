"""A directory taken from another one, question by question."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from duetime_core.errors import NotFound
from duetime_format.marks import OWN
from duetime_store.copies.entries import Entry
from duetime_store.copies.roster import Roster
from duetime_store.copies.statefile import RaftState, StateFile
from duetime_store.copies.taking import (
    Ask,
    Check,
    Giver,
    List,
    Listing,
    Point,
    Read,
    SourceBehind,
    TakenOtherwise,
    begin,
    take,
)
from duetime_store.files.disk import Disk
from duetime_store.log.segment import file_name

SEGMENT_BYTES = 4096 * 8
END = 2 * SEGMENT_BYTES + 5_000
POINT = Point(Entry(9, 3, OWN, END, END, 1_234), Roster((1, 2, 3), learners=(4,), highest=4), 0, SEGMENT_BYTES)


class Source:
    """A member's directory; `asked` has the questions."""

    def __init__(self, root: Path) -> None:
        self.root, self.giver, self.asked = root, Giver(root), list[Ask]()
        # Those before POINT.
        self.points: list[Point] = []
        files = {"config/topics.json": b"{}", "checkpoint": b"point" * 99, "consumequeue/a/0/0": bytes(5_000) + b"unit"}
        for number in range(3):
            files[f"commitlog/{file_name(number * SEGMENT_BYTES)}"] = bytes([65 + number]) * SEGMENT_BYTES
        for own in ("lock", "abort", "duetimeRaft"):
            files[own] = b"own"
        for name, data in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)

    def answer(self, ask: Ask) -> Any:
        self.asked.append(ask)
        if isinstance(ask, Read):
            return self.giver.read(ask)
        if isinstance(ask, Check):
            return self.giver.check(ask)
        return Listing(self.giver.files(), self.points.pop(0) if self.points else POINT)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "source")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[StateFile]:
    root = tmp_path / "target"
    root.mkdir()
    file = StateFile(Disk(), root, RaftState(7, 4, Roster(()), is_taking=True))
    yield file
    file.close()


def run(source: Source, file: StateFile, root: Path, last: Ask | None = None) -> None:
    """Takes the directory; is interrupted after the answer to `last`."""
    source.asked.clear()
    steps, answer = take(Disk(), root, file), None
    while last is None or last not in source.asked:
        try:
            answer = source.answer(steps.send(answer))
        except StopIteration:
            return
    steps.close()


def test_directory_is_taken_up_to_the_point(source: Source, file: StateFile, tmp_path: Path) -> None:
    root = tmp_path / "target"
    (root / "config").mkdir()
    (root / "config" / "old.json").write_bytes(b"of an earlier member")
    run(source, file, root)
    for name in ("config/topics.json", "checkpoint", "consumequeue/a/0/0"):
        assert (root / name).read_bytes() == (source.root / name).read_bytes()
    log = b"".join((root / "commitlog" / file_name(number * SEGMENT_BYTES)).read_bytes() for number in range(3))
    assert log == b"A" * SEGMENT_BYTES + b"B" * SEGMENT_BYTES + b"C" * 5_000 + bytes(SEGMENT_BYTES - 5_000)
    assert {path.name for path in root.rglob("*") if path.is_file()} & {"old.json", "lock", "abort"} == set()
    state = file.state
    assert (state.base, state.roster, state.term, state.is_taking) == (POINT.entry, POINT.roster, 3, False)


def test_equal_files_are_skipped_after_an_interruption(source: Source, file: StateFile, tmp_path: Path) -> None:
    root, second = tmp_path / "target", f"commitlog/{file_name(SEGMENT_BYTES)}"
    run(source, file, root, Read(second, 0, SEGMENT_BYTES))
    assert file.state.is_taking
    run(source, file, root)
    read = [ask.path for ask in source.asked if isinstance(ask, Read)]
    assert read == [*[second] * 2, *[f"commitlog/{file_name(2 * SEGMENT_BYTES)}"] * 2]
    assert not file.state.is_taking


def test_segment_with_other_bytes_is_refused(source: Source, file: StateFile, tmp_path: Path) -> None:
    source.giver.check = lambda ask: 1  # type: ignore[method-assign]
    with pytest.raises(TakenOtherwise, match="arrived with other bytes"):
        run(source, file, tmp_path / "target")
    assert file.state.is_taking


def test_copy_that_fell_behind_keeps_its_vote(source: Source, file: StateFile, tmp_path: Path) -> None:
    file.write(replace(file.state, roster=Roster((1, 2, 4)), term=5, vote=2, is_taking=False, cut=100))
    begin(file, 8)
    run(source, file, tmp_path / "target")
    assert (file.state.term, file.state.vote, file.state.commit, file.state.is_cutting) == (5, 2, 9, False)


def test_member_without_entries_that_were_acknowledged_is_no_source(
    source: Source, file: StateFile, tmp_path: Path
) -> None:
    begin(file, 10)
    with pytest.raises(SourceBehind, match="its last entry is 9, and 10 is committed"):
        run(source, file, tmp_path / "target")
    assert source.asked == [List()]


def test_log_that_grows_while_it_is_taken_is_taken_up_to_its_last_segment(
    source: Source, file: StateFile, tmp_path: Path
) -> None:
    """Without that, entries after an early point may be compacted before a long log has been taken."""
    early = replace(POINT, entry=Entry(2, 3, OWN, SEGMENT_BYTES - 9, SEGMENT_BYTES - 9, 1_000))
    middle = replace(POINT, entry=Entry(5, 3, OWN, SEGMENT_BYTES + 9, SEGMENT_BYTES + 9, 1_100))
    source.points = [early, early, middle]
    run(source, file, tmp_path / "target")
    assert file.state.base == POINT.entry
    assert (tmp_path / "target" / "commitlog" / file_name(2 * SEGMENT_BYTES)).read_bytes()[4_999:5_001] == b"C\0"
    checked = [ask.path for ask in source.asked if isinstance(ask, Check) and ask.path.startswith("commitlog")]
    assert checked == [f"commitlog/{file_name(number * SEGMENT_BYTES)}" for number in range(3)]


@pytest.mark.parametrize("is_there", [True, False])
def test_log_whose_beginning_is_deleted_while_it_is_taken_begins_later(
    source: Source, file: StateFile, tmp_path: Path, is_there: bool
) -> None:
    """Retention of the member deletes two segments: before the second one is checked, or while it is read."""
    first, second = (f"commitlog/{file_name(number * SEGMENT_BYTES)}" for number in range(2))
    steps, answer, deletes = take(Disk(), tmp_path / "target", file), None, Check(second, SEGMENT_BYTES)
    while file.state.is_taking:
        try:
            ask = steps.send(answer)
        except StopIteration:
            break
        answer = source.answer(ask) if is_there or ask != deletes else None
        if ask == deletes and (source.root / second).exists():
            source.points = [replace(POINT, begin=2 * SEGMENT_BYTES)] * 3
            for path in (first, second):
                (source.root / path).unlink()
    assert [path.name for path in (tmp_path / "target" / "commitlog").iterdir()] == [file_name(2 * SEGMENT_BYTES)]
    assert file.state.base == POINT.entry


def test_missing_segment_is_no_deleted_one(source: Source, file: StateFile, tmp_path: Path) -> None:
    (source.root / "commitlog" / file_name(SEGMENT_BYTES)).unlink()
    with pytest.raises(TakenOtherwise, match="is missing"):
        run(source, file, tmp_path / "target")


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "lock", "duetimeRaft", "config/../../secret", ""])
def test_other_files_are_not_given(source: Source, path: str) -> None:
    with pytest.raises(NotFound):
        source.giver.check(Check(path, 1))
    with pytest.raises(NotFound):
        source.giver.read(Read(path, 0, 1))
