"""`duetime store import` and `export`: directories taken into a cluster's data, and given back to a broker."""

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from duetime_core.errors import DueTimeError
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_shard.disk import LocalFiles
from duetime_shard.files import QueueFiles
from duetime_shard.shard import read
from duetime_store.files import configs
from duetime_store.offline import transfer
from duetime_store.offline.export import export_directory
from duetime_store.offline.summary import summary
from duetime_store.offline.transfer import import_directory, shard_directory
from duetime_store.offline.units import lines
from duetime_store.offline.verify import verify

from tests.format import golden55
from tests.format.golden import params, pending_timers, unpack
from tests.store.conftest import HandClock, Shard, ids, sent
from tests.store.test_inspect import all_bytes, command
from tests.store.test_retention import Shard as Running
from tests.store.test_verify import flip

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)


def contents(root: Path) -> dict[str, tuple[bytes, int]]:
    """By name from the root on; the lock is its holder's."""
    found = {str(Path(name).relative_to(root)): content for name, content in all_bytes(root).items()}
    found.pop("lock", None)
    return found


def messages(root: Path) -> list[str]:
    return list(lines(read(root, LEVELS)))


def told(root: Path) -> dict[str, Any]:
    return json.loads(json.dumps(summary(read(root, LEVELS))))


def without_timers(lines: list[str]) -> list[str]:
    """Of timers, those that have ended are rewritten for a broker (test_export_timers.py)."""
    return [line for line in lines if not line.startswith('{"topic":"rmq_sys_wheel_timer"')]


@pytest.mark.parametrize("name", params(count=1))
def test_imported_directory_is_the_brokers(name: str, tmp_path: Path) -> None:
    root, data = unpack(name, tmp_path), tmp_path / "data"
    before = all_bytes(root)
    ended = command("import", root, "--data", data, "--shard", 3, "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout)["imported"] == str(data / "store-3")
    made, known = contents(data / "store-3"), contents(root)
    if "5.3.3-killed" in name:
        # The messages that a group had received by POP are added.
        file = f"config/{configs.CONSUMER_OFFSETS}"
        offsets, before_it = (configs.parse(found.pop(file)[0].decode()) for found in (made, known))
        assert len(offsets.pop(configs.POPS)) == 5
        assert offsets == before_it
    assert made == known
    assert [path.name for path in data.iterdir()] == ["store-3"]
    assert all_bytes(root) == before


def test_copy_is_as_sparse_as_the_original(tmp_path: Path) -> None:
    root = unpack("rmq-5.3.3-clean", tmp_path)
    import_directory(root, tmp_path / "copy", LEVELS, accept_damage=False)
    blocks = [(path / "timerwheel").stat().st_blocks for path in (root, tmp_path / "copy")]
    assert blocks[1] <= blocks[0] + 8


def test_damaged_directory_is_refused_with_its_list(tmp_path: Path) -> None:
    root = unpack("rmq-4.9.8-clean", tmp_path)
    flip(root / "commitlog" / ("0" * 20), 90)
    ended = command("import", root, "--data", tmp_path / "data")
    assert ended.returncode == 1
    assert "body CRC" in ended.stdout
    assert "nothing is imported" in ended.stdout
    assert not (tmp_path / "data" / "store-0").exists()
    assert command("import", root, "--data", tmp_path / "data", "--accept-damage").returncode == 0
    assert contents(tmp_path / "data" / "store-0") == contents(root)


def test_shard_that_exists_is_not_written_over(shard: Shard, tmp_path: Path) -> None:
    shard.put(sent("a"))
    target = shard_directory(tmp_path / "data", 0)
    target.mkdir(parents=True)
    import_directory(shard.root, target, LEVELS, accept_damage=False)
    before = contents(target)
    with pytest.raises(DueTimeError, match="is not empty"):
        import_directory(shard.root, target, LEVELS, accept_damage=False)
    with pytest.raises(DueTimeError, match="is not empty"):
        export_directory(shard.root, target, LEVELS, accept_damage=False)
    assert contents(target) == before


def test_copy_that_was_cut_short_is_made_again(shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard.put(sent("a"))
    target = tmp_path / "data" / "store-0"
    left = target.with_name(".store-0.new")
    (left / "commitlog").mkdir(parents=True)
    (left / "commitlog" / "junk").write_text("of a process that was killed")
    copy = transfer.copy_file

    def fail(*arguments: Any, **options: Any) -> None:
        if "commitlog" in str(arguments[1]):
            raise OSError(28, "No space left on device")
        copy(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(transfer, "copy_file", fail)
        with pytest.raises(OSError, match="No space"):
            import_directory(shard.root, target, LEVELS, accept_damage=False)
    assert list(target.parent.iterdir()) == []
    import_directory(shard.root, target, LEVELS, accept_damage=False)
    assert contents(target) == contents(shard.root)


def test_two_do_not_make_one_directory(shard: Shard, tmp_path: Path) -> None:
    target = tmp_path / "data" / "store-0"
    with transfer.made_whole(target), pytest.raises(DueTimeError, match="another process"):
        import_directory(shard.root, target, LEVELS, accept_damage=False)
    assert list(target.iterdir()) == []


def test_imported_shard_works(shard: Shard, clock: HandClock, tmp_path: Path) -> None:
    for number in range(10):
        shard.put(sent(f"now{number}"), sent(f"soon{number}", level=1))
    clock.wall_ms += 1_000
    shard.restore(1, 0, 4)
    import_directory(shard.root, tmp_path / "copy", LEVELS, accept_damage=False)
    copy = Shard(tmp_path / "copy", clock)
    assert copy.store.lanes[1].watermark == 4
    copy.put(sent("new"))
    assert ids(copy.pulled()) == [*ids(shard.pulled()), "new"]
    copy.crash()


@pytest.mark.parametrize("name", params(count=1))
def test_brokers_directory_works_as_a_shard_and_back(name: str, tmp_path: Path, clock: HandClock) -> None:
    """Imports it, opens it, sends, checkpoints and exports again: the old records are kept, followed by the
    new ones.
    """
    root = unpack(name, tmp_path)
    before, was = messages(root), told(root)
    clock.wall_ms = 1_900_000_000_000
    import_directory(root, tmp_path / "shard", LEVELS, accept_damage=False)
    shard = Shard(tmp_path / "shard", clock, delay_levels=DEFAULT_DELAY_LEVELS)
    # Receives by POP are leases, not messages.
    timers = len(pending_timers(name))
    pending = {str(lane.number): lane.pending_count for lane in shard.store.lanes}
    assert pending == was["pendingPerDelayLevel"] | {"1000": timers}
    shard.put(sent("new"), sent("later", level=5))
    shard.checkpoint()
    assert verify(shard.root, LEVELS).damages == []
    export_directory(shard.root, tmp_path / "made", LEVELS, accept_damage=False)
    shard.crash()
    after, now = messages(tmp_path / "made"), told(tmp_path / "made")
    assert verify(tmp_path / "made", LEVELS).damages == []
    assert set(without_timers(before)) < set(without_timers(after))
    assert len(without_timers(after)) == len(without_timers(before)) + 2
    assert now["pendingTotal"] == was["pendingTotal"] + 1
    assert now["consumerOffset"] == was["consumerOffset"]
    assert now["topics"] == was["topics"] | {"orders": now["topics"]["orders"]}
    assert now["subscriptionGroups"] == was["subscriptionGroups"]


@pytest.mark.parametrize("name", params(count=1))
def test_exported_directory_agrees_with_the_brokers(name: str, tmp_path: Path) -> None:
    root, made = unpack(name, tmp_path), tmp_path / "made"
    export_directory(root, made, LEVELS, accept_damage=False)
    assert verify(made, LEVELS).damages == []
    assert without_timers(messages(made)) == without_timers(messages(root))
    same = (
        "sizes", "queues", "recordsInNoQueue", "delayOffsetFile", "pendingPerDelayLevel", "consumerOffset", "topics",
        "subscriptionGroups", "halfMessages",
    )  # fmt: skip
    before, after = told(root), told(made)
    assert {key: after.get(key) for key in same} == {key: before.get(key) for key in same}
    assert not after["abortFile"]
    assert {path.stat().st_size for path in (made / "commitlog").iterdir()} == {1 << 20}
    assert {path.stat().st_size for path in (made / "consumequeue").rglob("0*0")} == {20_000}


def test_exported_index_is_the_brokers_byte_for_byte(tmp_path: Path) -> None:
    """Brokers before 5.4 have no entries of tags."""
    root, made = golden55.unpack("a-default", tmp_path), tmp_path / "made"
    export_directory(root, made, LEVELS, accept_damage=False)
    files = [list((path / "index").iterdir()) for path in (root, made)]
    assert [len(found) for found in files] == [1, 1]
    assert files[0][0].read_bytes() == files[1][0].read_bytes()


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    """With lanes whose first segments have left."""
    async with Running(tmp_path / "running") as shard:
        await shard.put(*(sent(f"P{number}", level=2) for number in range(40)))
        await shard.fill(2_500)
        await shard.expire()
        await shard.put(sent("last", topic="orders"))
        yield shard


async def test_store_in_use_is_exported_as_it_is(running: Running, tmp_path: Path) -> None:
    root, made = running.settings.data_dir, tmp_path / "made"
    exported = export_directory(root, made, LEVELS, accept_damage=False)
    # A broker's directory does not have them.
    report = verify(made, running.settings.levels)
    assert (report.damages, report.notes) == ([], [])
    assert messages(made) == messages(root)
    assert told(made)["pendingPerDelayLevel"]["2"] == 40
    assert exported.settings["messageDelayLevel"] == str(running.settings.levels)
    names = {path.name for path in (made / "config").iterdir()}
    assert configs.STORE not in names
    (root / "reserve").touch()
    assert not {"reserve", "lock", "abort"} & {path.name for path in made.iterdir()}
    assert {configs.TOPICS, configs.DELAY_OFFSETS} <= names
    assert "orders" in told(made)["topics"]


async def test_store_in_use_is_imported_as_one_that_was_killed(running: Running, tmp_path: Path) -> None:
    root, copy = running.settings.data_dir, tmp_path / "copy"
    import_directory(root, copy, LEVELS, accept_damage=False)
    assert (copy / "abort").exists()
    assert not {"reserve", "lock"} & {path.name for path in copy.iterdir()}
    assert messages(copy) == messages(root)


def test_export_ends_at_the_snapshot(shard: Shard, tmp_path: Path) -> None:
    for number in range(3):
        shard.put(sent(f"m{number}"))
    with (shard.root / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(shard.store.log.end)
        file.write(b"the beginning of a record that is being written")
    made = tmp_path / "made"
    exported = export_directory(shard.root, made, LEVELS, accept_damage=False)
    assert (exported.records, exported.end) == (3, shard.store.log.end)
    assert verify(made, LEVELS).notes == []


def test_damaged_log_is_not_exported(shard: Shard, tmp_path: Path) -> None:
    for number in range(3):
        shard.put(sent(f"m{number}"))
    flip(shard.root / "commitlog" / ("0" * 20), 90)
    with pytest.raises(DueTimeError, match="damaged in 1 places"):
        export_directory(shard.root, tmp_path / "made", LEVELS, accept_damage=False)
    assert not (tmp_path / "made").exists()
    export_directory(shard.root, tmp_path / "made", LEVELS, accept_damage=True)
    assert len(messages(tmp_path / "made")) == 3


def test_queue_that_begins_late_has_its_first_file_held_free(shard: Shard, clock: HandClock, tmp_path: Path) -> None:
    for number in range(130):
        shard.put(sent(f"m{number}"))
    shutil.copytree(shard.root, tmp_path / "late")
    late = tmp_path / "late" / "consumequeue" / "orders" / "0"
    (late / ("0" * 20)).unlink()
    export_directory(tmp_path / "late", tmp_path / "made", LEVELS, accept_damage=True)
    made = QueueFiles(LocalFiles(tmp_path / "made"), "orders", 0)
    assert sorted(made.files) == [2_000]
    assert made.read(100, 30).tolist() == QueueFiles(LocalFiles(shard.root), "orders", 0).read(100, 30).tolist()
