"""`duetimeRaft`: two slots, and each kind of damage."""

import os
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from duetime_core.errors import StartupError
from duetime_store.copies.roster import Roster
from duetime_store.copies.statefile import FILE, RaftState, StateFile
from duetime_store.files.disk import Disk

from tests.power_disk import PowerCut, PowerDisk, Unlucky

NEW = RaftState(group=7, id=2, roster=Roster((1, 2, 3)))


def read(folder: Path) -> RaftState:
    file = StateFile(Disk(), folder)
    file.close()
    return replace(file.state, serial=0)


def damage(folder: Path, *slots: int) -> None:
    with (folder / FILE).open("r+b") as file:
        for slot in slots:
            os.pwrite(file.fileno(), b"\xff", slot * 4_096 + 20)


def test_last_state_is_read(tmp_path: Path) -> None:
    file = StateFile(Disk(), tmp_path, NEW)
    assert read(tmp_path) == NEW
    for term in range(1, 6):
        file.write(replace(NEW, term=term, vote=3, cut=4_096))
        assert read(tmp_path) == replace(NEW, term=term, vote=3, cut=4_096)
    file.close()


def test_torn_slot_leaves_the_state_before(tmp_path: Path) -> None:
    file = StateFile(Disk(), tmp_path, NEW)
    file.write(replace(NEW, term=1))
    file.write(replace(NEW, term=2))
    file.close()
    damage(tmp_path, 0)
    assert read(tmp_path).term == 1


def test_damaged_file_is_refused_and_never_made_again(tmp_path: Path) -> None:
    file = StateFile(Disk(), tmp_path, NEW)
    file.write(replace(NEW, term=1))
    file.close()
    damage(tmp_path, 0, 1)
    for new in (None, NEW):
        with pytest.raises(StartupError, match="no slot is valid"):
            StateFile(Disk(), tmp_path, new)


def test_directory_of_another_copy_is_refused(tmp_path: Path) -> None:
    StateFile(Disk(), tmp_path, NEW).close()
    for other in (replace(NEW, group=8), replace(NEW, id=1)):
        with pytest.raises(StartupError, match="belongs to copy 2 of group 7, not to copy"):
            StateFile(Disk(), tmp_path, other)


def test_directory_without_the_file_is_no_copy(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="is missing: the directory is no copy"):
        StateFile(Disk(), tmp_path)


def test_vote_survives_a_power_cut_after_any_operation(tmp_path: Path) -> None:
    """Each returned write is kept; a first write that never returned may leave an empty file."""
    for operations in range(1, 30):
        folder = tmp_path / str(operations)
        folder.mkdir()
        disk, returned = PowerDisk(folder, Unlucky()), 0
        disk.cut_power_in(operations)
        with suppress(PowerCut):
            file = StateFile(disk, folder, NEW)
            for term in range(1, 5):
                file.write(replace(NEW, term=term))
                returned = term
        disk.close_all()
        disk.lose()
        file = StateFile(Disk(), folder, NEW)
        assert file.state.term == returned
        file.close()


def test_killed_process_leaves_nothing_that_a_later_power_cut_takes(tmp_path: Path) -> None:
    """The next process reads the page cache, acts on it, and must have made it durable before."""
    disk = PowerDisk(tmp_path, random.Random(1))
    file = StateFile(disk, tmp_path, NEW)
    disk.cut_power_in(2)
    with pytest.raises(PowerCut):
        file.write(replace(NEW, term=5))
    disk.close_all()
    second = PowerDisk(tmp_path, Unlucky())
    second.go_on_from(disk)
    seen = StateFile(second, tmp_path).state.term
    second.close_all()
    second.lose()
    assert read(tmp_path).term == seen
