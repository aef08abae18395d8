"""Batches: stored all or none, also where a crash has torn a partly written batch.

`make torture` cuts a batch at every byte (CUT_STEP=1).
"""

import os
import random
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from duetime_core.errors import InvalidArgument
from duetime_format import batches, layout, record
from duetime_format.columns import RecordRun
from duetime_format.errors import DamagedBytes
from duetime_format.levels import DelayLevels
from duetime_shard.shard import read
from duetime_shard.walk import scan_runs
from duetime_store.writing.batches import PARTLY_STORED
from duetime_store.writing.staging import DUPLICATE, OK, REFUSED

from tests.rounds import ONE_IN, some
from tests.seeds import seed
from tests.store.conftest import MIB, Shard, flip, ids, log_file, remove, sent, timer

SECTOR = 512
# Bytes between cuts in a batch; each cut costs a start.
CUT_STEP = int(os.environ.get("CUT_STEP", "7"))
LEVELS = DelayLevels.parse("1s 5s")


def batch(name: str, count: int = 4, body: bytes = b"body") -> list[bytes]:
    """Records of a batch: plain ones, one that waits for its level, and one that waits for its own time."""
    records = [sent(f"{name}{number}", body=body) for number in range(count - 2)]
    return [*records, sent(f"{name}L", level=1, body=body), timer(f"{name}T", 700, topic="orders", body=body)]


def put_batch(shard: Shard, *records: bytes) -> list[int]:
    """Statuses."""
    return shard.put(*records, batches=(0, len(records))).statuses


def seen(shard: Shard) -> set[str]:
    """Ids of all messages that are there, delayed ones too."""
    found: set[str] = set()
    for topic, queue in (("orders", 0), ("SCHEDULE_TOPIC_XXXX", 0), ("rmq_sys_wheel_timer", 0)):
        known = shard.store.queues.known(topic.encode(), queue)
        if known is not None:
            _, units = known.last(1_000)
            data = [shard.store.read_record(position, size) for position, size, _ in units.tolist()]
            found |= names_of(*data)
    return found


def offline(root: Path) -> set[str]:
    """As `seen`, by a reader of the directory."""
    state, found = read(root, LEVELS), set()
    for queue in state.queues.values():
        for _, units in queue.read():
            for position, size, _ in units.tolist():
                found |= names_of(state.log.read(position, size))
    state.log.close()
    return found


def kept(shard: Shard, begin: int, keep: bytes) -> None:
    """The process dies; these bytes written from `begin` on are kept, and no units."""
    shard.crash()
    remove(shard.root / "consumequeue")
    with log_file(shard).open("r+b") as file:
        file.truncate(begin)
        file.truncate(MIB)
        file.seek(begin)
        file.write(keep)


def names_of(*records: bytes) -> set[str]:
    """Ids of those that are intact; before they are put, they all are."""
    found = set()
    for one in records:
        with suppress(DamagedBytes):
            found.update(ids([record.decode(one, check_crc=one[layout.POSITION_AT : layout.SYS_FLAG_AT] != bytes(8))]))
    return found


def test_batch_has_consecutive_offsets_and_names_itself(shard: Shard) -> None:
    shard.put(sent("A"))
    records = batch("B", 5)
    outcome = shard.put(sent("C"), *records, sent("D"), batches=(1, 5))
    assert outcome.statuses == [OK] * 7
    assert outcome.queue_offsets[:4] == [1, 2, 3, 4]
    first, end = len(sent("A")) * 2, len(sent("A")) * 2 + sum(map(len, records))
    (run,) = scan_runs(shard.store.log, 0)
    assert isinstance(run, RecordRun)
    rows, *spans = batches.spans_of(run)
    assert (rows.tolist(), *map(np.unique, spans)) == ([2, 3, 4, 5, 6], first, end)
    shard.reopen()
    assert seen(shard) == names_of(*records) | {"A", "C", "D"}


@pytest.mark.parametrize("one_in", ONE_IN)
@pytest.mark.parametrize("after", [False, True])
def test_batch_torn_at_any_byte_is_cut_whole(shard: Shard, after: bool, one_in: int) -> None:
    """`after`: the log has a partly written record before the batch."""
    shard.put(sent("A"), sent("E", level=1))
    if after:
        shard.checkpoint()
    begin = shard.store.published_end
    records = batch("B")
    put_batch(shard, *records)
    end = shard.store.published_end
    shard.crash()
    data = log_file(shard).read_bytes()[begin:end]
    shard.open()
    edges = {*range(40), *range(len(data) - 40, len(data))} if after else set()
    every = range(0, len(data), CUT_STEP) if CUT_STEP == 1 or not after else ()
    for length in some(sorted({*every, *edges}), one_in):
        kept(shard, begin, data[:length])
        assert offline(shard.root) == {"A", "E"}
        report = shard.open().report
        assert seen(shard) == {"A", "E"}
        assert shard.store.published_end == begin
        assert report.damage.count == 0
    assert put_batch(shard, *batch("N")) == [OK] * 4
    assert shard.put(sent("Z")).queue_offsets == [3]
    shard.reopen()
    assert seen(shard) == {"A", "E", "Z"} | names_of(*batch("N"))


@pytest.mark.parametrize("count", [15, pytest.param(60, marks=pytest.mark.proof)])
def test_sectors_that_were_not_written_take_the_whole_batch_and_nothing_else(shard: Shard, count: int) -> None:
    """Power was cut: of one write any sectors are there."""
    dice = random.Random(seed())
    shard.put(sent("A"))
    begin = shard.store.published_end
    first, second = batch("B", 6, body=b"b" * 300), batch("C", 5, body=b"c" * 200)
    shard.put(*first, sent("P", body=b"p" * 900), *second, batches=(0, 6, 7, 5))
    end = shard.store.published_end
    shard.crash()
    data = log_file(shard).read_bytes()[begin:end]
    shard.open()
    for _ in range(count):
        lost = bytearray(data)
        for at in range(begin - begin % SECTOR, end, SECTOR):
            if dice.random() < 0.2:
                start, stop = max(at - begin, 0), min(at + SECTOR - begin, len(data))
                lost[start:stop] = bytes(stop - start)
        kept(shard, begin, bytes(lost))
        before = offline(shard.root)
        shard.open()
        there = seen(shard)
        for names in (names_of(*first), names_of(*second)):
            assert there & names in (set(), names), seed()
        assert before == there, seed()
        assert there == offline(shard.root), seed()
        shard.reopen()
        assert seen(shard) == there, seed()


def test_damage_in_a_batch_that_was_whole_costs_one_message(shard: Shard) -> None:
    records = batch("B", 6)
    put_batch(shard, *records)
    shard.put(sent("A"))
    flip(log_file(shard), len(records[0]) + 90)
    report = shard.reopen().report
    assert (report.damage.count, report.torn_batches) == (1, 0)
    assert seen(shard) >= names_of(*records[:1], *records[2:]) | {"A"}


def test_damage_at_the_end_of_the_last_batch_costs_one_message(shard: Shard) -> None:
    records = [sent(f"B{number}") for number in range(4)]
    put_batch(shard, *records)
    flip(log_file(shard), sum(map(len, records[:3])) + 90)
    assert shard.reopen().report.torn_batches == 0
    assert seen(shard) == {"B0", "B1", "B2"}
    assert shard.put(sent("Z")).queue_offsets == [4]


def test_zeros_before_the_checkpoint_cost_their_messages_only(shard: Shard) -> None:
    records = [sent(f"B{number}", body=b"b" * 700) for number in range(4)]
    put_batch(shard, *records)
    shard.checkpoint()
    shard.crash()
    with log_file(shard).open("r+b") as file:
        file.seek(SECTOR)
        file.write(bytes(SECTOR))
    assert offline(shard.root) >= {"B2", "B3"}
    shard.open()
    assert seen(shard) >= {"B2", "B3"}


def test_batch_stays_within_one_segment(shard: Shard) -> None:
    filling = sent("F", body=bytes(MIB - 3_000))
    shard.put(filling)
    shard.put(sent("A"), *(sent(f"B{number}", body=b"b" * 900) for number in range(4)), sent("Z"), batches=(1, 4))
    assert [one.position // MIB for one in shard.pulled()] == [0, 0, 1, 1, 1, 1, 1]
    assert ids(shard.pulled()) == ["F", "A", "B0", "B1", "B2", "B3", "Z"]
    assert shard.reopen().report.damage.count == 0
    assert ids(shard.pulled()) == ["F", "A", "B0", "B1", "B2", "B3", "Z"]


def test_batch_in_the_last_bytes_of_its_segment_is_cut_whole(shard: Shard) -> None:
    records = [sent(f"B{number}", body=b"b" * 90) for number in range(3)]
    size = sum(map(len, records))
    empty = len(sent("F", body=b""))
    shard.put(sent("F", body=bytes(MIB - size - layout.BLANK_BYTES - empty)))
    begin = shard.store.published_end
    put_batch(shard, *records)
    assert shard.store.published_end == MIB - layout.BLANK_BYTES
    shard.put(sent("N"))
    shard.reopen()
    assert seen(shard) == names_of(*records) | {"F", "N"}
    shard.crash()
    data = log_file(shard).read_bytes()
    (shard.root / "commitlog" / f"{MIB:020d}").unlink()
    for lost in (1, 8, 9, 10, 200):
        with log_file(shard).open("r+b") as file:
            file.seek(begin)
            file.write(data[begin : MIB - layout.BLANK_BYTES - lost] + bytes(layout.BLANK_BYTES + lost))
        remove(shard.root / "consumequeue")
        shard.open()
        assert seen(shard) == {"F"}
        shard.crash()
    shard.open()


def test_one_bad_record_refuses_its_batch_and_no_other(shard: Shard) -> None:
    bad = sent("X", level=9)
    outcome = shard.put(sent("A"), sent("B0"), bad, sent("C0"), sent("C1"), batches=(1, 2, 3, 2))
    assert outcome.statuses == [OK, REFUSED, REFUSED, OK, OK]
    assert outcome.faults[1].startswith("record 1 of its batch ")
    assert ids(shard.pulled()) == ["A", "C0", "C1"]


def test_batch_of_two_queues_is_refused(shard: Shard) -> None:
    outcome = shard.put(sent("A"), sent("B", queue=1), batches=(0, 2))
    assert outcome.statuses == [REFUSED] * 2
    assert outcome.faults[0] == "begins a batch of 2 queues; a batch has one"


def test_batch_larger_than_a_segment_is_refused(shard: Shard) -> None:
    records = [sent(f"B{number}", body=bytes(MIB // 3)) for number in range(4)]
    outcome = shard.put(*records, batches=(0, 4))
    assert outcome.statuses == [REFUSED] * 4
    assert outcome.faults[0] == f"begins a batch of {sum(map(len, records))} bytes; the limit is {MIB - 8}"


@pytest.mark.parametrize("wrong", [(0, 3), (1, 0), (-1, 1), (0, 1, 0, 1), (0,)])
def test_invalid_runs_are_rejected(shard: Shard, wrong: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument):
        shard.put(sent("A"), sent("B"), batches=wrong)


def test_repeated_batch_is_stored_once(shard: Shard) -> None:
    records = batch("B")
    first = shard.put(*records, batches=(0, 4))
    again = shard.put(sent("A"), *records, batches=(1, 4))
    assert again.statuses == [OK, *[DUPLICATE] * 4]
    assert again.queue_offsets[1:] == first.queue_offsets
    twice = [sent("T0"), sent("T1")]
    both = shard.put(*twice, *twice, batches=(0, 2, 2, 2))
    assert both.statuses == [OK, OK, DUPLICATE, DUPLICATE]


def test_partly_stored_batch_is_rejected(shard: Shard) -> None:
    shard.put(sent("A"))
    outcome = shard.put(sent("A"), sent("B"), batches=(0, 2))
    assert outcome.statuses == [REFUSED] * 2
    assert outcome.errors[0].reason == PARTLY_STORED
    assert outcome.faults[1] == "1 of the 2 messages of the batch are stored, the others are not"
    outcome = shard.put(sent("C"), sent("C"), sent("D"), batches=(1, 2))
    assert outcome.statuses == [OK, REFUSED, REFUSED]
    assert ids(shard.pulled()) == ["A", "C"]
