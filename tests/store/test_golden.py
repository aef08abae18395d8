"""Store directories of real brokers, opened as shards: their contents, and further use."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from duetime_format import halves, record
from duetime_format.names import FOREIGN_TOPICS, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from duetime_format.properties import value_of
from duetime_format.units import UNIT_TYPE, are_ended
from duetime_store.files import configs
from duetime_store.recovery import checkpoint
from duetime_store.writing.metrics import ShardCollector

from tests.format import golden
from tests.store.conftest import HandClock, Shard, sent

LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


def files(root: Path) -> dict[str, bytes]:
    """Everything below a directory, by path."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.fixture(params=golden.params(count=1))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def root(name: str, tmp_path: Path) -> Path:
    return golden.unpack(name, tmp_path)


@pytest.fixture
def shard(root: Path, clock: HandClock) -> Iterator[Shard]:
    shard = Shard(root, clock, delay_levels=LEVELS, queue_file_units=300_000, segment_bytes=1 << 30)
    yield shard
    shard.crash()


def assert_as_the_manifest_says(shard: Shard, name: str) -> None:
    expected = golden.summary(name)
    queues: dict[str, dict[str, Any]] = {}
    for queue in shard.store.queues.all():
        if queue.max_offset:
            queues.setdefault(queue.topic, {})[str(queue.queue)] = {"min": queue.min_offset, "max": queue.max_offset}
    assert queues == {
        topic: {number: ends for number, ends in each.items() if ends["max"]}
        for topic, each in expected["queues"].items()
        if any(ends["max"] for ends in each.values())
    }
    rows: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for unit in golden.units(name):
        row = (unit["physicalOffset"], unit["size"], golden.code(unit))
        rows.setdefault((unit["topic"], unit["queueId"]), []).append(row)
    for (topic, number), units in rows.items():
        found = shard.store.queues.find(topic, number).last(1 << 20)
        assert found[0] == 0
        expected_units = np.array(units, UNIT_TYPE)
        if topic == TIMER_TOPIC:
            # Negative for those that have ended.
            expected_units["tags"] *= np.where(are_ended(found[1]["tags"].astype(np.int64)), -1, 1)
        if topic == HALF_TOPIC:
            # Marked where the half message has ended.
            marked = halves.are_ended(found[1]["tags"])
            expected_units["tags"][marked] = found[1]["tags"][marked]
        assert (found[1] == expected_units).all(), (topic, number)
    pending = {str(lane.number): lane.pending_count for lane in shard.store.lanes if lane.pending_count}
    # Receives by POP are leases, not messages.
    timers = len(golden.pending_timers(name))
    expected_pending = expected["pendingPerDelayLevel"] | {"1000": timers}
    assert pending == {lane: count for lane, count in expected_pending.items() if count}
    assert shard.store.log.end == expected["commitLog"]["maxPhysicalOffset"]


def test_brokers_directory_matches_its_manifest(shard: Shard, name: str) -> None:
    report, expected = shard.opened.report, golden.summary(name)
    assert_as_the_manifest_says(shard, name)
    assert (report.records, report.rebuilt_units) == (expected["commitLog"]["records"], expected["consumeQueueUnits"])
    assert (report.damage.count, report.cut_bytes, report.repeated, report.config_faults) == (0, 0, 0, [])
    assert report.clean == (not expected["abortFile"])
    topics = {topic: entry["readQueueNums"] for topic, entry in expected["topics"].items()}
    # 4.9.8 has a queue whose topic its topics.json does not name.
    assert shard.store.queues.counts == {
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": 1,
        "DT_QUARANTINE": 1,
        SCHEDULE_TOPIC: 18,
        **topics,
    }


@pytest.mark.parametrize("gone", ["consumequeue", "config", "checkpoint", "index"])
def test_files_derived_by_a_broker_are_rebuilt(root: Path, shard: Shard, name: str, gone: str) -> None:
    shard.crash()
    path = root / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    shard.open()
    if gone == "config":
        # Without its offsets, the deliveries of a broker are unknown.
        assert sum(lane.pending_count for lane in shard.store.lanes) >= golden.summary(name)["pendingTotal"]
    else:
        assert_as_the_manifest_says(shard, name)


@pytest.mark.parametrize("name", golden.params("killed"), indirect=True)
def test_messages_acknowledged_by_a_killed_broker_exist(shard: Shard, name: str) -> None:
    ids = set()
    for queue in shard.store.queues.all():
        for position, size, _ in queue.last(1 << 20)[1].tolist():
            properties = record.decode(shard.store.read_record(position, size)).properties
            ids.add(value_of(properties, b"UNIQ_KEY").decode())
    assert golden.acknowledged(name)
    assert golden.acknowledged(name) <= ids


def test_opening_changes_no_record_and_no_file_that_is_not_ours(shard: Shard, root: Path, name: str) -> None:
    shard.put(sent("NEW", topic="DtTiny"))
    shard.checkpoint()
    shard.crash()
    (root.parent / "before").mkdir()
    before, after = files(golden.unpack(name, root.parent / "before")), files(root)
    end = golden.summary(name)["commitLog"]["maxPhysicalOffset"]
    ours = {"checkpoint", "lock", f"config/{configs.STORE}"}
    for path, data in before.items():
        if path.startswith("commitlog/"):
            base = int(Path(path).name)
            if base >= end:
                continue  # prepared and empty
            assert after[path][: max(0, end - base)] == data[: max(0, end - base)]
            assert len(after[path]) == len(data) == 1 << 20
        elif path.startswith("consumequeue/"):
            units = np.frombuffer(data, UNIT_TYPE)
            written = units[: int(np.argmin(units["size"] > 0)) if not (units["size"] > 0).all() else len(units)]
            if f"/{TIMER_TOPIC}/" in path or f"/{HALF_TOPIC}/" in path:
                # The hash field has due times, or the ends of half messages.
                assert (np.frombuffer(after[path], UNIT_TYPE)["position"][: len(written)] == written["position"]).all()
            else:
                assert after[path].startswith(written.tobytes())
            assert len(after[path]) == len(data) == 20_000
        elif path == f"config/{configs.CONSUMER_OFFSETS}":
            # Messages that a group has received by POP are added.
            now = configs.parse(after[path].decode())
            now.pop(configs.POPS, None)
            assert now == configs.parse(data.decode())
        elif path not in ours:
            assert after[path] == data, path
    shard.open()
    assert shard.store.queues.find("DtTiny", 0).max_offset > 0


def test_half_messages_are_counted(shard: Shard, name: str) -> None:
    collected = {metric.name: metric for metric in ShardCollector(shard.store).collect()}
    counts = {sample.labels["topic"]: sample.value for sample in collected["duetime_store_kept_messages"].samples}
    queues = golden.summary(name)["queues"]
    assert counts == {topic: queues[topic]["0"]["max"] for topic in FOREIGN_TOPICS if topic in queues}
    assert len(counts) == 1


def test_second_start_reads_only_new_records(shard: Shard, name: str) -> None:
    shard.checkpoint()
    shard.put(sent("NEW", topic="Fresh"))
    report = shard.reopen().report
    assert (report.whole_log, report.rebuilt_units) == (False, 1)
    point = checkpoint.read(shard.directory.checkpoint)
    assert point is not None
    # RocketMQ begins its recovery with the last file whose first record is three seconds older than this.
    last = max(unit["storeTimestamp"] for unit in golden.units(name))
    assert point.stored_at_ms == last
