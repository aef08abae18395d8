"""The file of recent ids: additions by each checkpoint, reading at a start, and starts without it."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from duetime_format.errors import DamagedBytes
from duetime_store.files.worker import FileWorker
from duetime_store.log import idfile
from duetime_store.log.idfile import Block
from duetime_store.log.recent import Ids
from duetime_store.recovery.recovery import OpenedStore
from duetime_store.recovery.saving import SpareKeeper, id_keeper
from duetime_store.writing.staging import DUPLICATE, OK
from structlog.testing import capture_logs

from tests.store.conftest import HandClock, Shard, flip, sent
from tests.store.here import Here

WARNING = "ids of recent messages are read from the log"


def keeper_of(shard: Shard) -> SpareKeeper:
    return id_keeper(shard.store, FileWorker(shard.directory, Here()))


def save(shard: Shard, keeper: SpareKeeper) -> int:
    """A checkpoint; how large the file is then."""
    write = keeper.capture()
    assert write is not None
    asyncio.run(write())
    shard.checkpoint()
    return (shard.root / idfile.FILE).stat().st_size


def reopened(shard: Shard) -> tuple[OpenedStore, list[str]]:
    """Ids that the start found, and its reason for reading ids from the log."""
    with capture_logs() as logs:
        opened = shard.reopen()
    return opened, [line["reason"] for line in logs if line["event"] == WARNING]


def fill(shard: Shard, first: int, count: int) -> None:
    for number in range(first, first + count):
        shard.put(sent(f"m{number}", level=number % 3))
        shard.clock.wall_ms += 300


def assert_known(shard: Shard, count: int) -> None:
    again = shard.put(*[sent(f"m{number}", level=number % 3) for number in range(count)])
    assert again.statuses == [DUPLICATE] * count


def test_blocks_of_several_checkpoints_are_read_without_the_log(shard: Shard) -> None:
    keeper = keeper_of(shard)
    sizes = []
    for first in range(0, 40, 10):
        fill(shard, first, 10)
        sizes.append(save(shard, keeper))
    # Each checkpoint writes only new ids.
    assert np.ptp(np.diff([0, *sizes])) == 0
    fill(shard, 40, 3)
    opened, reasons = reopened(shard)
    assert (opened.report.records, reasons) == (3, [])
    assert_known(shard, 43)
    assert opened.store.recent.reach_ms(shard.clock.wall_ms) == 600_000


def test_ids_keep_their_times(shard: Shard) -> None:
    fill(shard, 0, 100)
    save(shard, keeper_of(shard))
    shard.reopen()
    shard.clock.wall_ms += 600_000 - 15_000
    shard.store.recent.expire(shard.clock.wall_ms)
    assert 50 <= shard.store.recent.count <= 54


def test_file_is_rewritten_once_most_of_it_is_old(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "store", HandClock(), recent_ids_count=50)
    keeper = keeper_of(shard)
    sizes = []
    for first in range(0, 1_000, 20):
        fill(shard, first, 20)
        sizes.append(save(shard, keeper))
    assert max(sizes) < 4 * 50 * 12 + 20 * 100
    opened, reasons = reopened(shard)
    assert (opened.store.recent.count, reasons) == (50, [])
    assert shard.put(sent("m999"), sent("m950", level=2), sent("m949")).statuses == [DUPLICATE, DUPLICATE, OK]
    shard.crash()


def test_file_of_a_checkpoint_that_was_not_written_serves_the_one_before(shard: Shard) -> None:
    keeper = keeper_of(shard)
    fill(shard, 0, 10)
    save(shard, keeper)
    fill(shard, 10, 10)
    asyncio.run(keeper.capture()())  # type: ignore[misc]
    opened, reasons = reopened(shard)
    assert (opened.report.records, reasons) == (10, [])
    assert_known(shard, 20)


def test_ids_that_are_not_durable_are_not_saved(shard: Shard) -> None:
    fill(shard, 0, 2)
    shard.store.put(sent("staged"))
    save(shard, keeper_of(shard))
    blocks = list(idfile.decode((shard.root / idfile.FILE).read_bytes()))
    assert [len(block.ids.hashes) for block in blocks] == [2]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("missing", "there is no file of ids"),
        ("flip", "duetimeIds: the block at 0 does not match its CRC"),
        ("cut", "duetimeIds: the block at 0 does not match its CRC"),
        ("short", "duetimeIds: 5 bytes at 0 are not a block of ids"),
        ("version", "duetimeIds: its version is 9, 2 is known"),
        ("old", "duetimeIds has the ids of records before position"),
        ("gap", "duetimeIds: a block begins at position"),
        ("empty", "duetimeIds has the ids of records before position 0 only"),
    ],
)
def test_without_the_file_ids_are_read_from_the_log(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, damage: str, reason: str
) -> None:
    fill(shard, 0, 20)
    keeper, path = keeper_of(shard), shard.root / idfile.FILE
    if damage == "version":
        monkeypatch.setattr(idfile, "VERSION", 9)
    save(shard, keeper)
    monkeypatch.undo()
    data = path.read_bytes()
    fill(shard, 20, 2)
    if damage == "missing":
        path.unlink()
    elif damage == "flip":
        flip(path, 100)
    elif damage == "cut":
        path.write_bytes(data[:-1])
    elif damage == "short":
        path.write_bytes(data[:5])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "old":
        shard.checkpoint()
    elif damage == "gap":
        block = Block(Ids(np.empty(0, np.int64), np.empty(0, np.int64), []), 10**6, 10**7)
        path.write_bytes(data + idfile.encode(block))
        shard.checkpoint()
    opened, reasons = reopened(shard)
    assert [text.startswith(reason) for text in reasons] == [True]
    assert opened.report.records == 22
    assert_known(shard, 22)


def test_block_is_read_whole_or_not_at_all() -> None:
    block = Block(Ids(np.arange(3), np.arange(3), [(7, 3)]), 0, 9)
    data = idfile.encode(block)
    (found,) = idfile.decode(data)
    assert (found.start, found.stop, found.ids.grains) == (0, 9, [(7, 3)])
    assert (found.ids.hashes.tolist(), found.ids.positions.tolist()) == ([0, 1, 2], [0, 1, 2])
    for size in range(1, len(data)):
        with pytest.raises(DamagedBytes):
            list(idfile.decode(data[:size]))


def test_checkpoint_does_without_a_file_that_can_not_be_written(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = keeper_of(shard)
    fill(shard, 0, 5)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(shard.directory.disk, "write_file", full)
        asyncio.run(keeper.capture()())  # type: ignore[misc]
    assert [line["event"] for line in logs] == ["ids of recent messages not saved: a start reads them from the log"]
    save(shard, keeper)
    fill(shard, 5, 5)
    with monkeypatch.context() as patch:
        patch.setattr(shard.directory.disk, "write", full)
        asyncio.run(keeper.capture()())  # type: ignore[misc]
    save(shard, keeper)
    assert len(list(idfile.decode((shard.root / idfile.FILE).read_bytes()))) == 1
    _, reasons = reopened(shard)
    assert reasons == []
    assert_known(shard, 10)
