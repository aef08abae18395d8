"""Starts that are refused: a copy's directory, its settings and its group have to fit."""

import sys
from pathlib import Path
from typing import Any

import pytest
from duetime_core.errors import StartupError
from duetime_core.testing import FakeClock
from duetime_store.copies.roster import Roster
from duetime_store.copies.statefile import FILE, RaftState, StateFile
from duetime_store.files.directory import StoreDirectory
from duetime_store.files.disk import Disk
from duetime_store.node import StoreNode
from duetime_store.settings import StoreSettings
from pydantic import ValidationError

from tests.store.conftest import sent
from tests.store.running import MIB, Running
from tests.twins import native

native("duetime_raft")

from duetime_store.copies.copy import Copy  # noqa: E402  after the check for the wheel
from duetime_store.copies.membership import CopyFiles  # noqa: E402  after the check for the wheel

COPIES = "1=127.0.0.1:1001,2=127.0.0.1:1002,3=127.0.0.1:1003"
GROUP = 77


def settings_of(root: Path, **settings: Any) -> StoreSettings:
    own = {"data_dir": root, "copies": COPIES, "copy_number": 1, "copies_group": GROUP, "port": 1, "segment_bytes": MIB}
    return StoreSettings(**{**own, **settings})


def opened(root: Path, **settings: Any) -> None:
    directory = StoreDirectory(root)
    try:
        files = CopyFiles(directory, settings_of(root, **settings))
        if files.state is None:
            files.create()
        copy = files.open()
        assert isinstance(copy, Copy)
        assert copy.last.index == 0
        assert files.state is not None
        files.state.close()
    finally:
        directory.close()


FAULTS = {
    "one address twice": ({"copies": COPIES.replace("1003", "1002")}, "an address each"),
    "number 0": ({"copies": COPIES.replace("1=", "0="), "copy_number": 2}, "numbers from 1"),
    "another number": ({"copy_number": 4}, "copy_number 4 is none of copies"),
    "no group": ({"copies_group": 0}, "copies_group must be set"),
    "asynchronous flushes": ({"flush_mode": "async"}, "flush_mode must be sync"),
    "any port": ({"port": 0}, "port must be set"),
    "joining and rejoining": ({"copies_join": True, "copies_rejoin": True}, "copies_join cannot be set with it"),
    "malformed": ({"copies": "1=127.0.0.1"}, "are not 1=HOST:PORT"),
}


@pytest.mark.parametrize(("settings", "text"), FAULTS.values(), ids=FAULTS)
def test_settings_that_make_no_group_are_refused(tmp_path: Path, settings: dict[str, Any], text: str) -> None:
    with pytest.raises((ValidationError, ValueError), match=text):
        assert settings_of(tmp_path, **settings).members


def placed(ordinal: int, **settings: Any) -> StoreSettings:
    own = {"data_dir": "unused", "port": 1, "copies": "store-*:9831", "copies_group": GROUP, "ordinal": ordinal}
    return StoreSettings(**{**own, **settings})


def test_ordinal_gives_shard_number_group_and_members() -> None:
    found = placed(4)
    assert (found.shard, found.copy_number, found.copies_group) == (1, 2, GROUP + 1)
    assert found.members == {1: "store-3:9831", 2: "store-4:9831", 3: "store-5:9831"}
    assert placed(9, copies_count=5).members[5] == "store-9:9831"
    assert placed(-1, copies="").members == {}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"copies": COPIES}, r"must be HOST-\*:PORT with ordinal"),
        ({"copies_count": 4}, "three or five"),
        ({"copies_group": 0}, "copies_group must be set"),
        ({"shard": 1}, "shard cannot be set with ordinal"),
        ({"copies_count": "many"}, "copies_count"),
    ],
)
def test_ordinals_that_give_no_place_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        placed(0, **settings)


def test_two_copies_found_no_group(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="three or five copies found a group, not 2"):
        opened(tmp_path, copies=COPIES.rpartition(",")[0])
    opened(tmp_path)


async def test_copy_is_not_served_alone(tmp_path: Path) -> None:
    opened(tmp_path)
    node = StoreNode(StoreSettings(data_dir=tmp_path, segment_bytes=MIB, drain_ms=0), FakeClock())
    try:
        with pytest.raises(StartupError, match=f"is the copy of a shard.* delete {FILE}"):
            await node.start()
    finally:
        await node.stop()


async def test_log_of_one_copy_does_not_become_a_groups(tmp_path: Path) -> None:
    async with Running(tmp_path) as running:
        await running.put(sent("kept"))
    with pytest.raises(StartupError, match="duetime store replicate"):
        opened(tmp_path)
    async with Running(tmp_path) as running:
        assert len((await running.pull()).messages) == 1


def test_copy_of_another_group_or_number_is_refused(tmp_path: Path) -> None:
    opened(tmp_path)
    opened(tmp_path)
    with pytest.raises(StartupError, match="belongs to copy 1 of group 4d, not to copy 2 of group 4d"):
        opened(tmp_path, copy_number=2)
    with pytest.raises(StartupError, match="belongs to copy 1 of group 4d, not to copy 1 of group 4e"):
        opened(tmp_path, copies_group=GROUP + 1)


def test_number_of_the_directory_counts_and_its_place_is_that_of_the_settings(tmp_path: Path) -> None:
    directory = StoreDirectory(tmp_path)
    files = CopyFiles(directory, settings_of(tmp_path))
    files.create(4)
    directory.close()
    assert files.state is not None
    files.state.close()
    assert CopyFiles(directory, settings_of(tmp_path)).state.state.id == 4  # type: ignore[union-attr]
    for number in (2, 4):
        copies = f"{COPIES},4=127.0.0.1:1004"
        with pytest.raises(StartupError, match=f"belongs to copy 1 of group 4d, not to copy {number}"):
            opened(tmp_path, copies=copies, copy_number=number)


def test_log_without_its_beginning_is_refused(tmp_path: Path) -> None:
    StateFile(Disk(), tmp_path, RaftState(GROUP, 1, Roster((1, 2, 3)), position=MIB)).close()
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{2 * MIB:020d}").write_bytes(bytes(MIB))
    with pytest.raises(StartupError, match="has lost its beginning: replace this copy"):
        opened(tmp_path)


async def test_node_of_a_refused_copy_ends_in_order(tmp_path: Path) -> None:
    opened(tmp_path)
    node = StoreNode(settings_of(tmp_path, metrics_port=-1, copy_number=2), FakeClock())
    with pytest.raises(StartupError, match="belongs to copy 1"):
        await node.start()
    await node.stop()
    opened(tmp_path)


async def test_missing_wheel_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duetime_raft", None)
    node = StoreNode(settings_of(tmp_path, metrics_port=-1), FakeClock())
    try:
        with pytest.raises(StartupError, match="copies need the optional wheel duetime_raft"):
            await node.start()
    finally:
        await node.stop()
