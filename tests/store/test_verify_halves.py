"""`duetime store verify` of transactions: marks of ended half messages, the file of open ones."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from duetime_format.halves import COMMITTED, ENDED, GIVEN_UP, ROLLED_BACK, end_tag
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.names import HALF_TOPIC
from duetime_format.units import UNIT
from duetime_store.files.disk import Disk
from duetime_store.offline.export import export_directory
from duetime_store.offline.verify import verify
from duetime_store.recovery import checkpoint
from duetime_store.recovery.checkpoint import Checkpoint
from duetime_store.transactions import tablefile
from duetime_store.transactions.table import OpenTransactions

from tests.store.half_log import START_MS, HalfLog

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
OPEN = 8


class Scene:
    """Half message 0 is committed, 1 rolled back, 2 given up, 3 given up and rolled back later, 4 committed without an
    op record, 5 ended by a broker, 6 committed by a broker, 7 and 8 open."""

    def __init__(self, folder: Path) -> None:
        log = self.log = HalfLog(folder / "shard")
        for number in range(OPEN + 1):
            log.half(f"id{number}")
        self.end: dict[int, tuple[int, int]] = {}
        self.end[0] = COMMITTED, log.committed(0, ours=True)
        self.op = log.ended("commit", 0)
        self.end[1] = ROLLED_BACK, log.ended("rollback", 1)
        self.end[2] = GIVEN_UP, log.given_up(2, ours=True)
        log.given_up(3, ours=True)
        log.ended("give_up", 2, 3)
        self.end[3] = ROLLED_BACK, log.ended("rollback", 3)
        self.end[4] = COMMITTED, log.committed(4, ours=True)
        self.end[5] = ENDED, log.op("5")
        self.end[6] = COMMITTED, log.committed(6)
        self.write()
        self.end_position = len(log.data)
        self.root = folder / "made"
        export_directory(log.write(), self.root, LEVELS, accept_damage=False, now_ms=START_MS)
        for offset, (code, position) in self.end.items():
            self.mark(offset, end_tag(code, position))

    def write(self) -> None:
        """Adds to the log."""

    def mark(self, offset: int, tag: int) -> None:
        path = self.root / "consumequeue" / HALF_TOPIC / "0" / ("0" * 20)
        data = bytearray(path.read_bytes())
        position, size, _ = UNIT.unpack_from(data, offset * UNIT.size)
        UNIT.pack_into(data, offset * UNIT.size, position, size, tag)
        path.write_bytes(data)

    def check_point(self, *opened: int) -> None:
        """With a file of open transactions."""
        point = Checkpoint(self.end_position, 0, 0, (), START_MS, START_MS)
        checkpoint.write(Disk(), self.root / "checkpoint", point)
        table = OpenTransactions(checks_max=15)
        offsets = np.array(opened, np.int64)
        moments = np.full(len(opened), START_MS)
        table.add(offsets, ["g"] * len(opened), moments, moments)
        (self.root / tablefile.FILE).write_bytes(tablefile.encode(table.snapshot(), self.end_position))

    def damages(self) -> list[str]:
        return [str(damage) for damage in verify(self.root, LEVELS).damages]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_marks_that_the_log_explains_are_sound(scene: Scene) -> None:
    scene.check_point(7, 8)
    assert scene.damages() == []
    scene.mark(0, end_tag(COMMITTED, scene.op))
    scene.mark(5, end_tag(ENDED, 0))
    assert scene.damages() == []


@pytest.mark.parametrize(
    ("offset", "wrong"),
    [
        (OPEN, lambda scene: end_tag(COMMITTED, scene.end[0][1] + 1)),
        (OPEN, lambda scene: end_tag(ROLLED_BACK, 0)),
        (1, lambda scene: end_tag(COMMITTED, scene.end[1][1])),
        (0, lambda scene: end_tag(ROLLED_BACK, scene.end[0][1])),
        (OPEN, lambda scene: end_tag(ROLLED_BACK, scene.end_position + 100)),
    ],
)
def test_marks_that_nothing_explains_are_named(scene: Scene, offset: int, wrong: Callable[[Scene], int]) -> None:
    scene.mark(offset, wrong(scene))
    (damage,) = scene.damages()
    assert "unit says the half message was" in damage
    assert f"{HALF_TOPIC} queue 0 offset {offset}" in damage


@pytest.mark.parametrize("offset", [0, 1, 2, 4])
def test_ended_ones_before_the_checkpoint_have_marks(scene: Scene, offset: int) -> None:
    scene.mark(offset, 116)
    assert scene.damages() == []
    scene.check_point(7, 8)
    assert "but its unit is not marked" in scene.damages()[0]


def test_a_wrong_tag_is_no_mark(scene: Scene) -> None:
    scene.mark(7, -5)
    assert "tagsCode -5" in scene.damages()[0]


def test_file_of_open_transactions_is_checked(scene: Scene) -> None:
    scene.check_point(3, 7, 8)
    (damage,) = scene.damages()
    assert damage.startswith(f"{tablefile.FILE} at 0: the transaction of half message 3 is open")
    path = scene.root / tablefile.FILE
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert "its CRC does not match; a start finds the open transactions in the log" in scene.damages()[0]
