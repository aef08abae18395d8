"""A log that is read while its store writes it."""

import pytest
from duetime_format import record
from duetime_format.columns import RecordRun
from duetime_shard.walk import SegmentBlank, scan_runs

from tests.store.conftest import MIB


class Written:
    """A segment whose writer was in the middle of a record when it was read for the first time."""

    base, end = 0, MIB

    def __init__(self, whole: bytes, torn: bytes) -> None:
        self._whole, self._torn = whole, torn
        self.reads = 0

    def segment_from(self, position: int) -> "Written | None":
        return self if position < self.end else None

    def read_file(self, position: int, length: int) -> bytes:
        self.reads += 1
        data = self._torn if self.reads == 1 else self._whole
        return data[position : position + length]

    def next_data(self, position: int) -> int | None:
        return position if position < len(self._whole.rstrip(b"\0")) else None


def log(count: int) -> tuple[bytearray, list[int]]:
    """A segment with records back to back, and where each begins."""
    data, starts = bytearray(), []
    for number in range(count):
        starts.append(len(data))
        one = record.Record("orders", 0, b"x" * 500, b"UNIQ_KEY\x01A\x02", queue_offset=number, position=len(data))
        data += record.encode(one)
    return data + bytes(MIB - len(data)), starts


@pytest.mark.parametrize("missing", [(0, 560), (0, 8), (300, 400)], ids=["all of it", "its head", "some of its body"])
@pytest.mark.parametrize("which", [0, 4, 8])
def test_record_that_was_being_written_is_whole_when_others_are_behind_it(missing: tuple[int, int], which: int) -> None:
    whole, starts = log(10)
    torn, (first, behind) = bytearray(whole), (starts[which] + at for at in missing)
    torn[first:behind] = bytes(behind - first)
    positions: list[int] = []
    for item in scan_runs(Written(bytes(whole), bytes(torn)), 0):
        assert isinstance(item, RecordRun), item
        positions += [item.position + start for start in item.starts]
    assert positions == starts


@pytest.mark.parametrize("missing", [(0, 560), (300, 400)], ids=["all of it", "some of its body"])
def test_record_that_stays_torn_is_damage(missing: tuple[int, int]) -> None:
    whole, starts = log(10)
    first, behind = (starts[4] + at for at in missing)
    whole[first:behind] = bytes(behind - first)
    items = [
        item
        for item in scan_runs(Written(bytes(whole), bytes(whole)), 0)
        if not isinstance(item, RecordRun | SegmentBlank)
    ]
    assert [item.position for item in items] == [starts[4]]
