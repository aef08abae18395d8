"""New files of a store are for its own user under any umask; existing files keep their mode."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from duetime_core.testing import FakeClock
from duetime_store.files.disk import Disk
from duetime_store.node import StoreNode
from duetime_store.offline.transfer import copy_file
from duetime_store.settings import StoreSettings

from tests.store.conftest import MIB, sent


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(root: Path) -> set[str]:
    """Of all that is below a directory, and of itself: `d 700`."""
    return {f"{'d' if path.is_dir() else 'f'} {path.stat().st_mode & 0o777:o}" for path in (root, *root.rglob("*"))}


async def test_files_of_a_store_are_its_user_s(tmp_path: Path) -> None:
    root = tmp_path / "above" / "store"
    node = StoreNode(StoreSettings(data_dir=root, segment_bytes=MIB, metrics_port=-1, drain_ms=0), FakeClock())
    await node.start()
    node.store.put(sent("A"))
    node.parts.flusher.wake()
    durable = node.store.when_durable()
    assert durable is not None
    await durable
    await node.stop()
    assert {path.name for path in root.iterdir()} >= {"commitlog", "consumequeue", "config", "lock", "checkpoint"}
    assert modes(tmp_path / "above") == {"d 700", "f 600"}


def test_a_directory_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(0o750)
    Disk().make_directory(shared)
    Disk().make_directory(shared / "a" / "b")
    assert modes(shared) == {"d 750", "d 700"}


def test_copies_are_their_maker_s(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"broker's")
    copy_file(Disk(), source, target)
    assert (target.read_bytes(), target.stat().st_mode & 0o777) == (b"broker's", 0o600)
