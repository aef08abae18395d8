"""Half messages of real brokers in a shard: open ones are taken over, end once, and go back to a broker."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from duetime.v1 import store_pb2
from duetime_format import halves, layout
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.properties import value_of
from duetime_format.record import Record
from duetime_shard.records import message
from duetime_shard.shard import read
from duetime_store.offline.export import ExportTarget, export_directory
from duetime_store.offline.summary import summary
from duetime_store.offline.verify import verify
from duetime_store.transactions.ending import Result

from tests.format import golden
from tests.store.conftest import HandClock
from tests.store.half_shard import HalfShard
from tests.store.test_export_halves import asked_about, opened
from tests.store.test_halves import by_manifest
from tests.store.transacting import COMMIT, COMMITTED, ROLLBACK, ROLLED_BACK, end_of, staged_ends

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)


@pytest.fixture(params=golden.params(count=1))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def root(name: str, tmp_path: Path) -> Path:
    return golden.unpack(name, tmp_path)


@pytest.fixture
def expected(name: str, root: Path) -> dict[str, tuple[int, int]]:
    """By id, offset and checks."""
    return by_manifest(name, root)


@pytest.fixture
def shard(root: Path, expected: dict[str, tuple[int, int]], clock: HandClock) -> Iterator[HalfShard]:
    clock.wall_ms = 1_800_000_000_000
    shard = HalfShard(root, clock, delay_levels=DEFAULT_DELAY_LEVELS)
    yield shard
    shard.crash()


def end(shard: HalfShard, message_id: str, offset: int, decision: int) -> Result:
    """Its producer's end."""
    position = int(shard.store.halves.units(np.array([offset]))["position"][0])
    one = end_of(store_pb2.Half(offset=offset, position=position), message_id, decision)
    (result,) = staged_ends(shard.ending, f"D{'k' if 'killed' in str(shard.root) else 't'}_tx", [one])
    shard.flush()
    return result


def real_messages(root: Path, message_id: str) -> list[Record]:
    """Those that a commit has stored."""
    state, found = read(root, LEVELS), []
    for (topic, _), queue in state.queues.items():
        for _, units in queue.read() if topic.startswith("D") else ():
            for position in units["position"].tolist():
                one = message(state, position)
                if one is not None and halves.message_id_of(one.properties) == message_id:
                    found.append(one)
    return [one for one in found if one.sys_flag & layout.SYS_TRANSACTION == layout.SYS_TRANSACTION_COMMIT]


def test_open_ones_are_taken_over(shard: HalfShard, expected: dict[str, tuple[int, int]]) -> None:
    rows = shard.table.snapshot().rows()
    assert list(zip(rows.offsets.tolist(), rows.checks.tolist(), strict=True)) == sorted(expected.values())
    # The check times are past: producers are asked immediately.
    assert (rows.next_check_at_ms < shard.clock.wall_ms).all()
    assert set(shard.table.counts()) == {next(iter(shard.table.counts()))}
    queue = shard.store.halves.queue
    assert queue is not None
    offsets = np.arange(queue.min_offset, queue.max_offset)
    assert offsets[shard.store.halves.are_open(offsets)].tolist() == sorted(offset for offset, _ in expected.values())
    shard.checkpoint()
    assert verify(shard.root, LEVELS).damages == []


@pytest.mark.parametrize("checkpoints", [False, True])
def test_they_end_once(shard: HalfShard, expected: dict[str, tuple[int, int]], checkpoints: bool) -> None:
    (first, (offset, _)), (second, (other, _)), *rest = expected.items()
    committed = end(shard, first, offset, COMMIT)
    assert (committed.state, committed.duplicate) == (COMMITTED, False)
    assert end(shard, second, other, ROLLBACK).state == ROLLED_BACK
    if checkpoints:
        shard.checkpoint()
    shard.reopen()
    again = end(shard, first, offset, ROLLBACK)
    assert (again.state, again.duplicate) == (COMMITTED, True)
    assert end(shard, second, other, COMMIT).state == ROLLED_BACK
    assert shard.open_offsets == sorted(offset for _, (offset, _) in rest)
    shard.checkpoint()
    assert verify(shard.root, LEVELS).damages == []
    (real,) = real_messages(shard.root, first)
    assert halves.half_of(real.properties) == offset
    assert real.topic == value_of(real.properties, b"REAL_TOPIC").decode()
    assert real_messages(shard.root, second) == []
    assert summary(read(shard.root, LEVELS))["halfMessages"]["pending"] == len(rest)


def test_they_go_back_to_a_broker(shard: HalfShard, expected: dict[str, tuple[int, int]], tmp_path: Path) -> None:
    (first, (offset, _)), (second, (other, _)), *rest = expected.items()
    end(shard, first, offset, COMMIT)
    end(shard, second, other, ROLLBACK)
    shard.checkpoint()
    made, timers = tmp_path / "made", tmp_path / "timers.jsonl"
    target = ExportTarget(has_timers=False, timers_to=timers)
    exported = export_directory(shard.root, made, LEVELS, accept_damage=False, broker=target)
    assert exported.transactions == len(rest)
    left = sorted((message_id, checks) for message_id, (_, checks) in rest)
    assert sorted(asked_about(made)) == sorted(opened(made)) == left
    again = HalfShard(made, shard.clock, delay_levels=DEFAULT_DELAY_LEVELS)
    try:
        assert len(again.table) == len(rest)
    finally:
        again.crash()
