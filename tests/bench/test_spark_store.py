"""Directories made for benchmarks equal those written by a store."""

from pathlib import Path

import pytest
from duetime_store.offline.verify import verify

from bench.spark_store import LEVELS, make
from tests.store.conftest import MIB, HandClock, Shard


@pytest.mark.parametrize("whole", [False, True])
def test_store_serves_a_generated_directory(tmp_path: Path, whole: bool) -> None:
    make(tmp_path / "made", 5_000, segment_bytes=MIB)
    assert verify(tmp_path / "made", LEVELS).damages == []
    if whole:
        (tmp_path / "made" / "checkpoint").unlink()
    shard = Shard(tmp_path / "made", HandClock(), delay_levels=str(LEVELS), queue_file_units=300_000)
    report = shard.opened.report
    assert (report.whole_log, report.damage.count) == (whole, 0)
    assert sum(lane.queue.max_offset - lane.watermark for lane in shard.store.lanes) == 5_000
    shard.restore(3, 0, 5)
    assert shard.store.lanes[3].watermark == 5
    shard.crash()
