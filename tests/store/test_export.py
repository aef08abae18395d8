"""Exports in a RocketMQ broker: nothing is lost, nothing comes twice, queues continue at their offsets."""

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from duetime_core.errors import DueTimeError
from duetime_format import record
from duetime_format.columns import RecordRun
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.names import SCHEDULE_TOPIC
from duetime_format.units import FILLER_SIZE, UNIT, UNIT_TYPE, joined
from duetime_shard import topics
from duetime_shard.disk import LocalFiles
from duetime_shard.files import LogFiles
from duetime_shard.shard import DirectoryState, load, read
from duetime_shard.walk import SegmentBlank, scan_runs
from duetime_store.files import configs
from duetime_store.files.disk import Disk
from duetime_store.offline import export
from duetime_store.offline.export import export_directory
from duetime_store.offline.logend import LogEnd
from duetime_store.offline.transfer import import_directory
from duetime_store.offline.verify import verify

from tests.format.golden import params, units, unpack
from tests.store.conftest import HandClock, sent
from tests.store.conftest import Shard as Opened
from tests.store.test_inspect import command
from tests.store.test_retention import HOUR_MS, MINUTE_MS, Shard
from tests.store.test_verify import flip

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
OURS = DelayLevels.parse("1s 1h")
LANE = (SCHEDULE_TOPIC, 1)


@pytest.fixture
async def shard(tmp_path: Path) -> AsyncIterator[Shard]:
    async with Shard(tmp_path / "data" / "store-0", queue_file_units=100) as shard:
        yield shard


async def move_first(shard: Shard, *, later: int) -> None:
    """Moves entry 0 of the lane after the `later` ones, to the end of the log."""
    await shard.put(sent("P0", level=2))
    shard.clock.move(1)
    await shard.fill(1_000)
    for number in range(later):
        await shard.put(sent(f"P{number + 1}", level=2))
    await shard.clean()
    shard.clock.move(2 * MINUTE_MS)
    await shard.clean()
    assert shard.segments[0] == 1


def units_of(state: DirectoryState) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    """Units of the files of each queue, including units of placeholders and deleted messages."""
    found = {}
    for key, queue in state.queues.items():
        files = queue.files
        at, parts = min(files.files, default=0) // UNIT.size, []
        while at < files.max_offset:
            parts.append(files.read(at, files.max_offset - at))
            at += len(parts[-1])
        found[key] = joined(parts).tolist()
    return found


def dispatched_again(root: Path, *, killed: bool) -> list[tuple[str, int, int]]:
    """Topic, queue and offset of the records that RocketMQ 4.9.7 dispatches again, to another offset, when it starts on
    the directory: it dispatches from the largest position in any queue's last unit or, after a kill, the whole log.

    Source: DefaultMessageStore.start, ConsumeQueue.putMessagePositionInfo.
    """
    state = load(root, OURS)
    ends = {key: found[-1][0] + found[-1][1] for key, found in units_of(state).items() if found}
    counts = {key: queue.files.max_offset for key, queue in state.queues.items()}
    start = state.min_position if killed else max(ends.values(), default=0)
    added = []
    for run in scan_runs(state.log, state.min_position):
        for index, key_of in enumerate(run.key_of.tolist() if isinstance(run, RecordRun) else ()):
            assert isinstance(run, RecordRun)
            topic, queue = run.keys[key_of]
            key, offset, position = (topic.decode(), queue), int(run.offsets[index]), int(run.positions[index])
            end = position + int(run.sizes[index])
            passed = offset and offset < counts.get(key, 0)
            if position >= start and end > ends.get(key, 0) and not passed:
                added.append((*key, offset))
                ends[key], counts[key] = end, counts.get(key, 0) + 1
    return added


def entries(root: Path) -> list[tuple[int, int]]:
    """Offset and position of the entries that wait in the lane."""
    return [
        (offset, unit[0])
        for offsets, found in read(root, OURS).queues[LANE].read()
        for offset, unit in zip(offsets.tolist(), found.tolist(), strict=True)
    ]


@pytest.mark.parametrize("gone", ["", "consumequeue"])
async def test_units_rebuilt_from_the_log_suit_brokers(shard: Shard, tmp_path: Path, gone: str) -> None:
    await shard.put(*(sent(f"m{number}") for number in range(3)), sent("P", level=2))
    root = shard.settings.data_dir
    if gone:
        shutil.copytree(root, tmp_path / "copy")
        root = tmp_path / "copy"
        shutil.rmtree(root / gone)
    exported = export_directory(root, tmp_path / "made", LEVELS, accept_damage=False)
    assert (exported.report.damages, exported.report.records, exported.report.units) == ([], 4, 4)
    path = tmp_path / "made" / "consumequeue" / "orders" / "0" / ("0" * 20)
    position, size, tags = UNIT.unpack(path.read_bytes()[: UNIT.size])
    assert (position, tags) == (0, record.tags_code(b"paid"))
    assert 100 < size < 1_000


async def test_export_is_refused_where_a_broker_takes_no_such_topic(shard: Shard, tmp_path: Path) -> None:
    await shard.put(sent("m"))
    for number, name in enumerate(["a/b", "x" * 128, ""]):
        root = tmp_path / f"copy-{number}"
        shutil.copytree(shard.settings.data_dir, root)
        (root / "config" / topics.FILE).write_bytes(topics.encode({name: 1}))
        with pytest.raises(DueTimeError, match="1 topics have names that brokers reject"):
            export_directory(root, tmp_path / "made", LEVELS, accept_damage=False)
    assert not (tmp_path / "made").exists()


async def test_topic_that_is_named_like_a_brokers_own_is_exported(shard: Shard, tmp_path: Path) -> None:
    await shard.put(*(sent("m", topic=name) for name in ("RMQ_SYS_mine", "SCHEDULE_TOPIC_XXXX2")))
    export_directory(shard.settings.data_dir, tmp_path / "made", LEVELS, accept_damage=False)
    made = json.loads((tmp_path / "made" / "config" / "topics.json").read_text())
    assert {"RMQ_SYS_mine", "SCHEDULE_TOPIC_XXXX2"} <= made["topicConfigTable"].keys()


async def test_a_broker_takes_topics_and_offsets_from_the_files(shard: Shard, tmp_path: Path) -> None:
    """A broker with `storeType=defaultRocksDB` reads only files with a version."""
    await shard.put(sent("m"))
    root, made = tmp_path / "copy", tmp_path / "made"
    shutil.copytree(shard.settings.data_dir, root)
    (root / "config" / configs.CONSUMER_OFFSETS).write_text('{"offsetTable":{"orders@billing":{0:1}}}')
    (root / "config" / configs.GROUPS).write_text('{"dataVersion":{"counter":0},"subscriptionGroupTable":{}}')
    exported = export_directory(root, made, LEVELS, accept_damage=False, now_ms=7)
    for name in (configs.TOPICS, configs.GROUPS, configs.CONSUMER_OFFSETS):
        version = (configs.read(made / "config", name) or {})["dataVersion"]
        assert (version["counter"], name) == (1, name)
    assert '"orders@billing":{0:1\n' in (made / "config" / configs.CONSUMER_OFFSETS).read_text()
    assert exported.settings["configManagerVersion"] == "v1"
    assert exported.settings["enableLmq"] == "false"


def test_joined_units_keep_their_bytes() -> None:
    one = np.array([(1, 2, 3)], UNIT_TYPE)
    assert joined([]).dtype == joined([one]).dtype == joined([one, one]).dtype == UNIT_TYPE
    assert joined([one, one]).tobytes() == UNIT.pack(1, 2, 3) * 2


def test_export_that_is_damaged_is_not_kept(tmp_path: Path) -> None:
    """The log is whole, a unit in the queues is not."""
    root = unpack("rmq-4.9.8-clean", tmp_path)
    flip(root / "consumequeue" / "DtRoll" / "0" / ("0" * 20), 15)
    assert command("import", root, "--data", tmp_path / "data", "--accept-damage").returncode == 0
    ended = command("export", tmp_path / "made", "--data", tmp_path / "data")
    assert ended.returncode == 1
    assert "the directory written is damaged in 1 places (consumequeue/DtRoll/0/" in ended.stderr
    assert not (tmp_path / "made").exists()
    ended = command("export", tmp_path / "made", "--data", tmp_path / "data", "--accept-damage", "--json")
    assert (ended.returncode, json.loads(ended.stdout)["damageCount"]) == (0, 1)
    assert (tmp_path / "made").exists()


async def test_export_ends_when_retention_deletes_its_file(
    shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shard.fill(1_500)
    shutil.copytree(shard.settings.data_dir, tmp_path / "copy")
    first = tmp_path / "copy" / "commitlog" / ("0" * 20)
    monkeypatch.setattr(export, "check_room", lambda target, files: first.unlink())
    with pytest.raises(DueTimeError, match="retention has removed commitlog/0"):
        export_directory(tmp_path / "copy", tmp_path / "made", LEVELS, accept_damage=False)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("later", [0, 1, 3])
async def test_moved_entries_are_sound(shard: Shard, later: int) -> None:
    await move_first(shard, later=later)
    report = verify(shard.settings.data_dir, OURS)
    assert (report.damages, report.notes) == ([], [])


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("later", [0, 1, 3])
async def test_broker_dispatches_no_moved_entry_again(shard: Shard, tmp_path: Path, later: int, killed: bool) -> None:
    await move_first(shard, later=later)
    made = tmp_path / "made"
    exported = export_directory(shard.settings.data_dir, made, LEVELS, accept_damage=False)
    assert dispatched_again(made, killed=killed) == []
    assert exported.end == read(made, OURS).end
    assert [offset for offset, _ in entries(made)] == list(range(later + 1))
    assert len({position for _, position in entries(made)}) == later + 1


async def test_moved_entries_come_back_from_an_export_once(shard: Shard, tmp_path: Path) -> None:
    await move_first(shard, later=3)
    export_directory(shard.settings.data_dir, tmp_path / "made", LEVELS, accept_damage=False)
    import_directory(tmp_path / "made", tmp_path / "back", OURS, accept_damage=False)
    async with Shard(tmp_path / "back") as back:
        assert back.node.store.lanes[2].pending_count == 4
        back.clock.move(3 * HOUR_MS)
        assert await back.drain() == ["P0", "P1", "P2", "P3"]
        assert await back.drain() == []


@pytest.mark.parametrize(("left", "blank"), [(2_000, 0), (208, 0), (207, 207), (8, 8), (0, 0)])
def test_record_behind_the_end_gets_a_file_of_its_own_where_there_is_no_room(
    tmp_path: Path, left: int, blank: int
) -> None:
    """`left`: in the file that holds the end. A record needs 8 bytes more than its size."""
    end = LogEnd(Disk(), tmp_path, 4_096, 4_096 - left)
    data = record.encode(record.Record("t", 0, b"x" * 88, record.with_crc_mark(b"")))
    assert len(data) == 200
    position = end.append(data, record.with_crc_mark(b""))
    assert position == (4_096 if left < 208 else 4_096 - left)
    assert end.end == position + 200
    log = LogFiles(LocalFiles(tmp_path.parent), tmp_path.name)
    found = list(scan_runs(log, 4_096 - left))
    assert [item.size for item in found if isinstance(item, SegmentBlank)] == ([blank] if blank else [])
    assert [run.positions.tolist() for run in found if isinstance(run, RecordRun)] == [[position]]
    assert {path.stat().st_size for path in tmp_path.iterdir()} == {4_096}


async def test_directory_with_an_entry_delivered_twice_is_imported(shard: Shard, tmp_path: Path) -> None:
    await move_first(shard, later=3)
    made = tmp_path / "made"
    export_directory(shard.settings.data_dir, made, LEVELS, accept_damage=False)
    # A broker without a repeated last entry: offset 0 becomes a fifth entry.
    path = made / "consumequeue" / SCHEDULE_TOPIC / "1" / ("0" * 20)
    content = bytearray(path.read_bytes())
    content[4 * UNIT.size : 5 * UNIT.size] = content[: UNIT.size]
    path.write_bytes(content)
    report = import_directory(made, tmp_path / "back", OURS, accept_damage=False)
    assert report.is_sound
    assert report.notes == ["1 queue units repeat entries whose copies a broker dispatched again"]
    async with Shard(tmp_path / "back") as back:
        back.clock.move(3 * HOUR_MS)
        assert await back.drain() == ["P0", "P1", "P2", "P3"]
        assert await back.drain() == []


async def test_queue_without_messages_continues_at_its_end(shard: Shard, tmp_path: Path) -> None:
    await shard.put(*(sent(f"m{number}") for number in range(124)))
    await shard.put(*(sent(f"d{number}", level=1) for number in range(7)))
    shard.clock.move(1_000)
    await shard.drain(1)
    await shard.fill(2_500)
    await shard.expire()
    root, made = shard.settings.data_dir, tmp_path / "made"
    ends = {key: queue.max_offset for key, queue in read(root, OURS).queues.items()}
    assert (ends["orders", 0], ends[SCHEDULE_TOPIC, 0]) == (131, 7)
    export_directory(root, made, LEVELS, accept_damage=False)
    for found in (read(made, OURS), load(made, OURS)):
        assert {key: found.queues[key].files.max_offset for key in ends} == ends
    # A filler as a queue's last unit would make a broker expect a log of 2 GiB.
    last = [found[-1] for found in units_of(load(made, OURS)).values()]
    assert [unit for unit in last if unit[1] == FILLER_SIZE or unit[0] < 0 or unit[1] <= 0] == []
    assert [path.name for path in (made / "consumequeue" / "orders" / "0").iterdir()] == [f"{2_000:020d}"]
    assert verify(made, OURS).damages == []
    import_directory(made, tmp_path / "back", OURS, accept_damage=False)
    async with Shard(tmp_path / "back") as back:
        queue = back.node.store.queues.find("orders", 0)
        assert (queue.min_offset, queue.max_offset) == (131, 131)
        assert list((await back.put(sent("next"))).queue_offsets) == [131]


def test_empty_bodies_are_counted_and_reported(clock: HandClock, tmp_path: Path) -> None:
    shard = Opened(tmp_path / "data" / "store-0", clock, delay_levels=DEFAULT_DELAY_LEVELS)
    shard.put(sent("a", body=b""), sent("b"), sent("c", body=b"", level=3), sent("d", level=3))
    shard.put(sent("e", body=b"", level=1))
    clock.wall_ms += 1_000
    shard.restore(1, 0, 1)
    shard.crash()
    ended = command("export", tmp_path / "made", "--data", tmp_path / "data")
    assert ended.returncode == 0
    assert ended.stderr.startswith("warning: 1 pending messages and ")
    ended = command("export", tmp_path / "again", "--data", tmp_path / "data", "--json")
    told = json.loads(ended.stdout)
    assert told["emptyBodies"]["pending"] == 1
    assert "have an empty body" in told["warnings"][0]


@pytest.mark.parametrize("name", params(count=1))
def test_empty_bodies_in_brokers_directories_are_reported(name: str, tmp_path: Path) -> None:
    exported = export_directory(unpack(name, tmp_path), tmp_path / "made", LEVELS, accept_damage=False)
    assert exported.report.is_sound
    lengths = [unit["bodyLength"] for unit in units(name)]
    assert (exported.empty_pending, exported.empty_others) == (0, lengths.count(0))


def test_missing_shard_of_an_export_is_a_fault_of_its_option(tmp_path: Path) -> None:
    ended = command("export", tmp_path / "made", "--data", tmp_path / "nowhere")
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"duetime: Invalid value for --data: {tmp_path}/nowhere/store-0 is not a store")
