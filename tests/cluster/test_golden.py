"""A cluster that starts on a broker's directory: pending messages fall due, once, and new messages follow."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from duetime import AsyncProducer
from duetime_core.testing import Cluster
from duetime_core.testing.clock import FakeClock
from duetime_format import record
from duetime_format.lanes import LANE_TOPICS, is_timer_lane, lane_of
from duetime_format.names import QUARANTINE_TOPIC, SCHEDULE_TOPIC
from duetime_format.properties import decode_properties
from duetime_store.files import configs

from tests.format import golden

# A half message that was delayed: RocketMQ discards it when it is due.
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
# Longest delay of levels and timers: a broker takes no timer later than three days ahead.
LONGEST_LEVEL_MS = 7_200_000
LONGEST_MS = 3 * 86_400_000
Entry = tuple[int, int]
# The last one has levels and timers, and was killed; the others are proofs.
NAMES = [*(pytest.param(name, marks=pytest.mark.proof) for name in golden.NAMES[:-1]), golden.NAMES[-1]]


def unpacked(name: str, directory: Path) -> Path:
    """As the directory of the cluster's first shard."""
    return golden.unpack(name, directory).rename(directory / "store-0")


def pending_units(name: str) -> dict[Entry, dict[str, Any]]:
    """Undelivered units of levels and timers, by lane and entry."""
    offsets = golden.summary(name)["delayOffsetAfterLoad"]
    levels = (unit for unit in golden.units(name) if unit["topic"] == SCHEDULE_TOPIC)
    left = [unit for unit in levels if unit["queueOffset"] >= offsets.get(str(unit["queueId"] + 1), 0)]
    return {entry_of(unit): unit for unit in (*left, *golden.pending_timers(name))}


def entry_of(unit: dict[str, Any]) -> Entry:
    lane = lane_of(unit["topic"], unit["queueId"])
    assert lane is not None
    return lane, unit["queueOffset"]


def restored_records(store: Any) -> dict[Entry, list[record.Record]]:
    """Restored and quarantined records by lane and entry."""
    found: dict[Entry, list[record.Record]] = {}
    for queue in store.queues.all():
        for position, size, _ in queue.last(1 << 20)[1].tolist():
            restored = record.decode(store.read_record(position, size))
            entry = record.find_lane_entry(restored.properties)
            if entry is not None and queue.topic not in LANE_TOPICS:
                found.setdefault(entry[:2], []).append(restored)
    return found


def assert_restored(unit: dict[str, Any], found: record.Record) -> None:
    """Compares with RocketMQ's own delivery of the entry."""
    properties = unit["properties"]
    assert (found.topic, found.queue) == (properties["REAL_TOPIC"], int(properties["REAL_QID"]))
    assert hashlib.sha256(found.body).hexdigest() == unit["bodySha256"]
    told = (found.flag, found.sys_flag, found.born_at_ms, found.reconsume_times, found.prepared_transaction_offset)
    assert told == (unit["flag"], unit["sysFlag"], unit["bornTimestamp"], unit["reconsumeTimes"], 0)
    kept = decode_properties(found.properties)
    assert kept.pop(record.LANE_ENTRY) == "{}:{}:{}".format(*entry_of(unit), golden.code(unit))
    kept.pop("__CRC32#", None)
    assert kept == {name: value for name, value in properties.items() if name != "__CRC32#"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(120)
async def test_cluster_continues_a_brokers_directory(name: str, tmp_path: Path) -> None:
    root = unpacked(name, tmp_path)
    broker = shutil.copytree(root / "config", tmp_path / "broker")
    before = {path.name: path.read_bytes() for path in broker.iterdir()}
    pending = pending_units(name)
    summary = golden.summary(name)
    assert len(pending) == summary["pendingTotal"] + len(golden.pending_timers(name))
    killed_at_ms = max(unit["storeTimestamp"] for unit in golden.units(name))
    ahead = [unit for unit in pending.values() if golden.code(unit) > killed_at_ms]
    kept = {"retention_ms": 2 * LONGEST_MS}
    async with (
        Cluster(tmp_path, clock=FakeClock(killed_at_ms), store_settings=kept) as cluster,
        AsyncProducer(cluster.address) as producer,
    ):
        store = cluster.stores[0].store
        await cluster.settle()
        assert sum(lane.pending_count for lane in store.lanes) <= len(ahead)
        lane_end = store.lanes[1].queue.max_offset
        await producer.send("Fresh", b"new", delay="1s")
        await cluster.advance(f"{LONGEST_MS}ms")
        assert sum(lane.pending_count for lane in store.lanes) == 0
        restored = restored_records(store)
        assert [found.body for found in restored.pop((1, lane_end))] == [b"new"]
        assert {entry: len(found) for entry, found in restored.items()} == dict.fromkeys(pending, 1)
        quarantined = 0
        for entry, unit in pending.items():
            (found,) = restored[entry]
            # The kit moves its clock on by some seconds where a service pauses on it.
            assert 0 <= found.stored_at_ms - max(golden.code(unit), killed_at_ms) <= 600_000
            if unit["properties"]["REAL_TOPIC"] == HALF_TOPIC:
                assert found.topic == QUARANTINE_TOPIC
                quarantined += 1
            else:
                assert_restored(unit, found)
        assert store.quarantined_count == quarantined
        ends = {lane.number: lane.queue.max_offset for lane in store.lanes}
    offsets = configs.delay_offsets(configs.read(root / "config", configs.DELAY_OFFSETS))
    assert {level: offset for level, offset in offsets.items() if offset} == {
        lane: end for lane, end in ends.items() if end and not is_timer_lane(lane)
    }
    assert not (root / "abort").exists()
    written = (configs.DELAY_OFFSETS, configs.TOPICS, configs.CONSUMER_OFFSETS)
    ours = {file for name in written for file in (name, f"{name}.bak")}
    for file, data in before.items():
        assert file in ours or (root / "config" / file).read_bytes() == data
    # The mark is set once, so that an old backup of the broker's offsets does not override later ones.
    places = [configs.load(directory, configs.CONSUMER_OFFSETS).value for directory in (broker, root / "config")]
    assert places[0]
    known = places[0]["offsetTable"]
    received = {key: offsets for key, offsets in golden.POP_OFFSETS.items() if key in known}
    assert (places[1] or {})["offsetTable"] == {**known, **received}
    known = configs.parse(before[configs.TOPICS].decode())["topicConfigTable"]
    table = (configs.read(root / "config", configs.TOPICS) or {})["topicConfigTable"]
    assert {topic: table[topic] for topic in known} == known
    assert (root / "commitlog" / ("0" * 20)).stat().st_size == 1 << 20
    assert {
        path.stat().st_size for path in (root / "consumequeue").rglob("0*") if path.name.isdigit() and path.is_file()
    } == {20_000}


@pytest.mark.proof
@pytest.mark.parametrize("name", golden.NAMES[-1:])
async def test_cluster_that_is_killed_restores_nothing_of_a_broker_twice(name: str, tmp_path: Path) -> None:
    root = unpacked(name, tmp_path)
    at_ms = max(unit["storeTimestamp"] for unit in golden.units(name))
    for _ in range(3):
        async with Cluster(tmp_path, clock=FakeClock(at_ms)) as cluster:
            await cluster.advance(f"{LONGEST_MS // 3 + 1}ms")
            at_ms = cluster.clock.now_ms()
            restored = restored_records(cluster.stores[0].store)
            saved = (root / "config" / configs.DELAY_OFFSETS).read_bytes()
        # As if the last checkpoint had never been written.
        (root / "checkpoint").unlink()
        (root / "config" / configs.DELAY_OFFSETS).write_bytes(saved)
    assert {len(found) for found in restored.values()} == {1}
    assert len(restored) == len(pending_units(name))
