"""Leases, acknowledgements and settled copies on a disk that loses power, in the middle of anything (group_life.py)."""

import random
import shutil
from pathlib import Path

import pytest

from tests.store.groups.group_life import GroupLife

STEPS = 80
LIVES = 25


# Among them are ends of the log between a settlement and its copy.
@pytest.mark.parametrize("first", [3_190, 3_260])
def test_no_message_is_skipped_and_none_that_is_done_comes_back(tmp_path: Path, first: int) -> None:
    done = settled = points = 0
    for seed in range(first, first + LIVES):
        life = GroupLife(tmp_path / "store", random.Random(seed))
        try:
            for _ in range(STEPS):
                life.random_step()
            life.step(life.cut_power)
        except Exception as error:
            error.add_note(f"seed {seed}; {'; '.join(life.told[-2:])}")
            raise
        finally:
            life.close()
        done, settled, points = done + len(life.done), settled + len(life.settled), points + life.points
        shutil.rmtree(tmp_path / "store")
        shutil.rmtree(tmp_path / "store.stash")
    assert min(done, settled, points) > LIVES
