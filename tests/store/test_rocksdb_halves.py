"""Half messages of a broker with transactions in RocksDB: open ones are asked about, the others have ended."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from duetime.v1 import store_pb2
from duetime_format import layout, record
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.names import GIVEN_UP_TOPIC, HALF_TOPIC, ROCKSDB_HALF_TOPIC
from duetime_format.properties import decode_properties, encode_properties
from duetime_format.record import Record
from duetime_shard import halves
from duetime_shard.brokers import halves as rocksdbhalves
from duetime_shard.shard import read
from duetime_store.files import configs
from duetime_store.log.intake import parse
from duetime_store.offline.export import export_directory
from duetime_store.offline.summary import summary
from duetime_store.offline.transfer import import_directory
from duetime_store.offline.verify import verify
from duetime_store.transactions.ending import Result
from duetime_store.writing.staging import PutOutcome

from tests.format import golden55
from tests.store.conftest import HandClock
from tests.store.half_shard import HalfShard
from tests.store.test_export_halves import asked_about
from tests.store.transacting import COMMIT, COMMITTED, ROLLBACK, ROLLED_BACK, end_of, staged_ends

NAME = "d-trans-rocksdb"
LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return golden55.unpack(NAME, tmp_path)


@pytest.fixture
def shard(root: Path, clock: HandClock) -> Iterator[HalfShard]:
    clock.wall_ms = golden55.ended_at_ms(NAME)
    shard = HalfShard(root, clock, delay_levels=DEFAULT_DELAY_LEVELS)
    yield shard
    shard.crash()


def half_ids() -> list[str]:
    return [line["id"] for line in golden55.lines(NAME, "tx") if line["state"] == "half"]


def listed(root: Path) -> list[dict[str, Any]]:
    """As by `duetime store inspect --json`."""
    found = halves.described(read(root, LEVELS), listed=True)["messages"]
    assert isinstance(found, list)
    return found


def open_ids(root: Path) -> list[str]:
    return [one["uniqKey"] for one in listed(root)]


def moved(shard: HalfShard) -> list[Record]:
    """Records of the half topic."""
    units = shard.store.queues.find(HALF_TOPIC, 0).read(0, 1_000)[["position", "size"]].tolist()
    return [record.decode(shard.store.read_record(position, size)) for position, size in units]


def end(shard: HalfShard, message_id: str, offset: int, decision: int) -> Result:
    """Its producer's end."""
    position = int(shard.store.halves.units(np.array([offset]))["position"][0])
    one = end_of(store_pb2.Half(offset=offset, position=position), message_id, decision)
    (result,) = staged_ends(shard.ending, "Dd_tx", [one])
    shard.flush()
    return result


def write(shard: HalfShard, topic: str, message_id: str, **fields: int) -> int:
    """A record of a broker that serves the directory in between. Returns its position."""
    named = {"UNIQ_KEY": message_id, "PGROUP": "Dd_tx", "REAL_TOPIC": "Dd_Trans", "REAL_QID": "0", "TRAN_MSG": "true"}
    encoded = record.encode(Record(topic, 0, b"body", record.with_crc_mark(encode_properties(named)), **fields))
    (position,) = shard.store.stage_sent(parse(encoded), PutOutcome([], stored_at_ms=shard.clock.wall_ms)).tolist()
    shard.flush()
    return int(position)


def test_inspection_counts_and_lists_the_open_ones(root: Path) -> None:
    assert open_ids(root) == half_ids()
    assert summary(read(root, LEVELS), listed=False)["halfMessages"] == {"pending": 5}


def test_open_ones_are_moved_once(shard: HalfShard, root: Path) -> None:
    for _ in range(3):
        assert len(shard.table) == 5
        assert set(shard.table.counts()) == {"Dd_tx"}
        shard.reopen()
    found = moved(shard)
    assert [decode_properties(one.properties)["UNIQ_KEY"] for one in found] == half_ids()
    assert [one.body.decode() for one in found] == [f"body of x{number}" for number in range(10, 15)]
    assert open_ids(root) == half_ids()
    assert (configs.read(root / "config", configs.STORE) or {})[rocksdbhalves.MOVED] == 15
    shard.checkpoint()
    assert verify(root, LEVELS).damages == []


@pytest.mark.parametrize("is_imported", [False, True])
def test_checks_are_counted_on(root: Path, clock: HandClock, tmp_path: Path, is_imported: bool) -> None:
    """The broker had asked once; the import leaves its RocksDB behind."""
    assert {one["checks"] for one in listed(root)} == {1}
    if is_imported:
        import_directory(root, tmp_path / "shard", LEVELS, accept_damage=False)
        root = tmp_path / "shard"
        assert {one["checks"] for one in listed(root)} == {1}
    shard = HalfShard(root, clock, delay_levels=DEFAULT_DELAY_LEVELS)
    for _ in range(2):
        found = shard.table.find(np.arange(5))
        assert found.checks.tolist() == [1] * 5
        shard.reopen()
        # The whole log is read the second time.
        (root / "duetimeTransactions").unlink(missing_ok=True)
    assert {one["checks"] for one in listed(root)} == {1}
    shard.crash()


def test_checks_begin_at_0_without_the_rocksdb(root: Path, clock: HandClock) -> None:
    shutil.rmtree(root / "rocksdbstore")
    shard = HalfShard(root, clock, delay_levels=DEFAULT_DELAY_LEVELS)
    assert shard.table.find(np.arange(5)).checks.tolist() == [0] * 5
    shard.crash()


def test_each_ends_once(shard: HalfShard, root: Path) -> None:
    decisions = [ROLLBACK, *[COMMIT] * 4]
    ends = [end(shard, one, number, decisions[number]) for number, one in enumerate(half_ids())]
    assert [one.state for one in ends] == [ROLLED_BACK, *[COMMITTED] * 4]
    shard.reopen()
    assert len(shard.table) == 0
    assert end(shard, half_ids()[1], 1, COMMIT).duplicate
    assert open_ids(root) == []
    assert len([one for number in range(2) for one in shard.pulled("Dd_Trans", number)]) == 6 + 4
    shard.checkpoint()
    assert verify(root, LEVELS).damages == []


def test_kill_between_a_moved_one_and_its_end_repeats_nothing(root: Path, clock: HandClock) -> None:
    shard = HalfShard(root, clock, delay_levels=DEFAULT_DELAY_LEVELS)
    first = moved(shard)[0]
    shard.crash()
    data = (root / "commitlog" / f"{0:020d}").read_bytes()
    # The log ends after the first of the moved ones.
    (root / "commitlog" / f"{0:020d}").write_bytes(data[: first.position + first.size].ljust(len(data), b"\0"))
    for name in ("checkpoint", "config/duetimeStore.json"):
        (root / name).unlink(missing_ok=True)
    (root / "abort").touch()
    shard = HalfShard(root, clock, delay_levels=DEFAULT_DELAY_LEVELS)
    assert sorted(decode_properties(one.properties)["UNIQ_KEY"] for one in moved(shard)) == half_ids()
    assert len(shard.table) == 5
    shard.crash()


def test_those_that_a_broker_adds_later_are_moved_too(shard: HalfShard) -> None:
    shard.reopen()
    committed, _ = (write(shard, ROCKSDB_HALF_TOPIC, one) for one in ("committed", "later"))
    write(shard, "Dd_Trans", "committed", sys_flag=layout.SYS_TRANSACTION_COMMIT, prepared_transaction_offset=committed)
    for one in ("given up", "in both"):
        write(shard, ROCKSDB_HALF_TOPIC, one)
    write(shard, GIVEN_UP_TOPIC, "given up")
    write(shard, HALF_TOPIC, "in both")
    shard.reopen()
    names = [decode_properties(one.properties)["UNIQ_KEY"] for one in moved(shard)]
    assert names == [*half_ids(), "in both", "later"]


@pytest.mark.parametrize("is_started", [False, True])
def test_open_ones_go_back_to_a_broker(root: Path, clock: HandClock, tmp_path: Path, is_started: bool) -> None:
    if is_started:
        shard = HalfShard(root, clock, delay_levels=DEFAULT_DELAY_LEVELS)
        end(shard, half_ids()[0], 0, COMMIT)
        shard.checkpoint()
        shard.crash()
    made = tmp_path / "made"
    exported = export_directory(root, made, LEVELS, accept_damage=False)
    left = half_ids()[is_started:]
    assert exported.transactions == len(left)
    assert [name for name, _ in asked_about(made)] == left
    again = HalfShard(made, clock, delay_levels=DEFAULT_DELAY_LEVELS)
    assert len(again.table) == len(left)
    again.crash()
