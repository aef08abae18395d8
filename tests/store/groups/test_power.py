"""Leases, acknowledgements and settled copies on a disk that loses power, in the middle of anything (group_life.py)."""

import random
import shutil
from pathlib import Path

import pytest

from tests.seeds import seed
from tests.store.groups.group_life import GroupLife
from tests.store.groups.lite_life import LiteLife
from tests.store.groups.state_life import StateLife

STEPS = 80
# Among the lives from 3,190 and 3,260 on are ends of the log between a settlement and its copy.
LIVES = [
    (seed(), 5),
    (3_190, 3),
    pytest.param(3_190, 25, marks=pytest.mark.proof),
    pytest.param(3_260, 25, marks=pytest.mark.proof),
]


DELAYED_LIVES = [(seed(), 1), pytest.param(seed(), 60, marks=pytest.mark.proof)]
# A life takes 0.4 s.
STATE_LIVES = [(seed(), 3), (4, 3), pytest.param(seed(), 60, marks=pytest.mark.proof)]
LITE_LIVES = [(seed(), 1), pytest.param(seed(), 60, marks=pytest.mark.proof)]


@pytest.mark.parametrize(("first", "count"), LIVES)
def test_no_message_is_skipped_and_no_done_one_redelivered(tmp_path: Path, first: int, count: int) -> None:
    live(GroupLife, tmp_path, first, count)


@pytest.mark.parametrize(("first", "count"), DELAYED_LIVES)
@pytest.mark.parametrize("kind", [GroupLife, LiteLife, StateLife])
def test_deposed_shard_forgets_only_unanswered_acks(
    tmp_path: Path, kind: type[GroupLife], first: int, count: int
) -> None:
    live(kind, tmp_path, first, count, "delayed")


@pytest.mark.parametrize(("first", "count"), LITE_LIVES)
def test_lite_topics_keep_their_order_and_lose_no_message(tmp_path: Path, first: int, count: int) -> None:
    live(LiteLife, tmp_path, first, count)


@pytest.mark.parametrize(("first", "count"), STATE_LIVES)
def test_answered_changes_of_state_stay(tmp_path: Path, first: int, count: int) -> None:
    live(StateLife, tmp_path, first, count)


def live(kind: type[GroupLife], tmp_path: Path, first: int, count: int, mode: str = "sync") -> None:
    """Lives of these seeds, each of STEPS steps and a last power cut."""
    done = settled = points = 0
    for number in range(first, first + count):
        life = kind(tmp_path / "store", random.Random(number), mode=mode)
        try:
            for _ in range(STEPS):
                life.random_step()
            life.step(life.cut_power)
        except Exception as error:
            error.add_note(f"seed {number}; {'; '.join(life.told[-2:])}")
            raise
        finally:
            life.close()
        done, settled, points = done + len(life.done), settled + len(life.settled), points + life.points
        shutil.rmtree(tmp_path / "store")
        shutil.rmtree(tmp_path / "store.stash")
    assert points > 0
    # A few lives of any seed may settle nothing.
    assert first == seed() or min(done, settled) > 0
