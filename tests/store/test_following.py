"""A copy that does not lead has the store that a start would open, at each commit (recovery/following.py)."""

from pathlib import Path
from typing import Any

import pytest

from tests.seeds import seed
from tests.store.deletion_life import DeletionLife
from tests.store.groups.lite_life import LiteLife
from tests.store.groups.state_life import StateLife
from tests.store.life import Life
from tests.store.pending_life import PendingLife
from tests.store.schedule_life import ScheduleLife
from tests.store.shadow import run_life

STEPS = 150


class ReadingLife(StateLife):
    """Groups commit offsets of messages that are there: a start takes all others back."""

    def commit_offset(self, group: str, offset: int) -> None:
        queue = self.store.queues.known(b"orders", 0)
        super().commit_offset(group, offset % (queue.max_offset + 1) if queue else 0)


@pytest.mark.parametrize("life", [Life, PendingLife, ScheduleLife, DeletionLife, ReadingLife, LiteLife])
def test_followed_store_equals_a_start_from_its_log(tmp_path: Path, life: Any) -> None:
    print(f"DUETIME_TEST_SEED={seed()}")
    assert run_life(life, tmp_path, seed(), STEPS)
