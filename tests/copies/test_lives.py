"""Groups in one process, by seeds: faults, then peace. All logs are equal, and nothing answered is lost."""

from pathlib import Path

import pytest

from tests.copies.lives import live
from tests.seeds import seed

LIVES = 50


@pytest.mark.parametrize("part", range(4))
def test_groups_keep_all_that_they_answered(part: int, tmp_path: Path) -> None:
    first = seed() + part * LIVES
    groups = [live(first + number, tmp_path) for number in range(LIVES)]
    assert sum(len(group.truth.answered) for group in groups) > 50 * LIVES
    assert sum(group.faults for group in groups) > 5 * LIVES
    assert sum(group.repaired for group in groups) > 0
    assert sum(group.behind for group in groups) > 0
    assert sum(group.reads for group in groups) > 5 * LIVES
    assert sum(group.deleted for group in groups) > 0


def test_seed_repeats_a_life(tmp_path: Path) -> None:
    one, two = live(7, tmp_path), live(7, tmp_path)
    assert one.truth == two.truth
    assert one.now == two.now
