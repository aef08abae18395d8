"""A copy that does not lead has the store that a start would open, at each commit (recovery/following.py)."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from duetime_core.errors import StartupError
from duetime_core.testing import FakeClock
from duetime_format.levels import DelayLevels
from duetime_format.units import due_of
from duetime_shard.shard import read
from duetime_shard.walk import item_end, scan_runs
from duetime_store.files.directory import StoreDirectory
from duetime_store.lanes.alarm import ShardClock
from duetime_store.recovery.recovery import OpenedStore, open_store
from duetime_store.settings import StoreSettings

from tests.seeds import seed
from tests.store.conftest import sent
from tests.store.deletion_life import DeletionLife
from tests.store.groups.lite_life import LiteLife
from tests.store.groups.state_life import StateLife
from tests.store.here import Here
from tests.store.life import Life
from tests.store.pending_life import PendingLife
from tests.store.running import MIB
from tests.store.schedule_life import ScheduleLife
from tests.store.shadow import Shadow, let_go, run_life

STEPS = 150


class ReadingLife(StateLife):
    """Groups commit offsets of messages that are there: a start takes all others back."""

    def commit_offset(self, group: str, offset: int) -> None:
        queue = self.store.queues.known(b"orders", 0)
        super().commit_offset(group, offset % (queue.max_offset + 1) if queue else 0)


async def test_levels_of_a_new_leader_apply_from_their_record_on(tmp_path: Path) -> None:
    """A leader with other levels records them: a start from the log alone dates all entries alike."""
    clock, root = FakeClock(), tmp_path / "copy"
    first = StoreSettings(data_dir=root, delay_levels="1s 1h", segment_bytes=MIB)
    await lead(Shadow(root, first, clock), "before")
    changed = first.model_copy(update={"delay_levels": "5s 1h"})
    with pytest.raises(StartupError, match="--accept-delay-levels"):
        await lead(Shadow(root, changed, clock), "refused")
    accepting = changed.model_copy(update={"accept_delay_levels": True})
    await lead(Shadow(root, accepting, clock), "after")
    expected = [clock.now_ms() + 1_000, clock.now_ms() + 5_000]
    for number, levels in enumerate(("1s 1h", "5s 1h", "7s")):
        root = tmp_path / str(number)
        shutil.copytree(tmp_path / "copy" / "commitlog", root / "commitlog")
        assert read(root, DelayLevels.parse(levels)).history.current == DelayLevels.parse("5s 1h")
        directory = StoreDirectory(root)
        settings = accepting.model_copy(update={"delay_levels": levels})
        opened = open_store(directory, settings, ShardClock(clock), Here())
        assert dues(opened) == expected
        let_go(opened)
        directory.close()


async def lead(shadow: Shadow, message_id: str) -> None:
    """Opens the store of a copy, sends a message of level 1, and stops without a checkpoint."""
    end = max((item_end(item) for item in scan_runs(shadow.log, 0)), default=0)
    try:
        opened = await shadow.follower.open(shadow.log, end)
        parts = shadow.parts(shadow.directory, opened)
        opened.store.put(sent(message_id, level=1))
        batch = opened.store.take()
        assert batch is not None
        await parts.flusher._flush(batch)
        let_go(opened)
    finally:
        shadow.close()


def dues(opened: OpenedStore) -> list[int]:
    return [due_of(tag) for tag in opened.store.lanes[1].queue.read(0, 10)["tags"].tolist()]


@pytest.mark.parametrize("life", [Life, PendingLife, ScheduleLife, DeletionLife, ReadingLife, LiteLife])
def test_followed_store_equals_a_start_from_its_log(tmp_path: Path, life: Any) -> None:
    print(f"DUETIME_TEST_SEED={seed()}")
    assert run_life(life, tmp_path, seed(), STEPS)
