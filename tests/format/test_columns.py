"""Records of the log as columns: the compiled twin and the Python tell the same, and the walk tells all."""

import random
import zlib
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from duetime_format import columns, layout, record
from duetime_format.columns import RecordRun, take
from duetime_format.errors import DamagedBytes
from duetime_format.layout import MAGIC_V1, MAGIC_V2
from duetime_format.properties import value_of
from duetime_format.record import Record
from duetime_shard.walk import Item, SegmentBlank, item_end, scan_runs
from duetime_store.files.disk import Disk
from duetime_store.log.commitlog import CommitLog
from duetime_store.log.segment import file_name
from hypothesis import given
from hypothesis import strategies as st

from tests.store.conftest import sealed
from tests.twins import compiled

SEGMENT_BYTES = 64 * 1024

properties = st.lists(
    st.tuples(
        st.sampled_from(["TAGS", "UNIQ_KEY", "DELAY", "DT_ENTRY", "KEYS", "REAL_TOPIC", "TAGSX", "TIMER_OUT_MS"]),
        st.sampled_from(
            ["", "a", "Grüße", "a b", " a", "3", "18", "-1", "0x", "1:2:3", "1:2", "9" * 19, "0" * 13, "5" * 25]
        ),
    ),
    max_size=6,
)
records = st.builds(
    Record,
    topic=st.sampled_from(["orders", "t", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "%RETRY%" + "g" * 110]),
    queue=st.integers(0, 9),
    body=st.binary(max_size=60),
    properties=properties.map(lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs).encode()),
    sys_flag=st.sampled_from([0, 1, 4, 8, 12, 0x301]),
    born_host=st.sampled_from([bytes(8), bytes(20)]),
    store_host=st.sampled_from([bytes(8), bytes(20)]),
    stored_at_ms=st.integers(0, 1 << 42),
    queue_offset=st.integers(0, 1 << 40),
    magic=st.sampled_from([MAGIC_V1, MAGIC_V2]),
)


def encoded(found: Record, position: int, crc: bool) -> bytes:
    text = record.with_crc_mark(found.properties) if crc else found.properties
    values = {name: getattr(found, name) for name in Record.__slots__} | {"position": position, "properties": text}
    data = record.encode(Record(**values))
    return sealed(data) if crc else data


def log_of(items: list[tuple[Record, bool]], position: int = 0) -> bytes:
    data = bytearray()
    for found, crc in items:
        data += encoded(found, position + len(data), crc)
    return bytes(data)


def same(one: RecordRun, other: RecordRun) -> None:
    assert (one.end, one.keys, one.destinations) == (other.end, other.keys, other.destinations)
    assert np.array_equal(one.columns, other.columns)
    assert (one.entries is None) == (other.entries is None)
    assert one.entries is None or np.array_equal(one.entries, other.entries)


def in_python(data: bytes, at: int, position: int, monkeypatch: pytest.MonkeyPatch) -> RecordRun:
    with monkeypatch.context() as patch:
        patch.setattr(columns, "_twin", None)
        return take(data, at, position)


@given(
    items=st.lists(st.tuples(records, st.booleans()), max_size=8),
    damage=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(1, 255)), max_size=2),
    cut=st.integers(0, 40),
)
def test_twin_accepts_the_same_as_python(
    items: list[tuple[Record, bool]], damage: list[tuple[int, int]], cut: int
) -> None:
    compiled("duetime_format._columns")
    data = bytearray(log_of(items, 1000))
    for at, flip in damage if data else ():
        data[at % len(data)] ^= flip
    damaged = bytes(data[: len(data) - cut] if cut < len(data) else data)
    with pytest.MonkeyPatch.context() as patch:
        same(take(damaged, 0, 1000), in_python(damaged, 0, 1000, patch))


@given(
    items=st.lists(st.tuples(records, st.booleans()), min_size=1, max_size=5),
    where=st.integers(0),
    bit=st.integers(0, 7),
)
def test_record_with_a_crc_detects_any_flipped_bit(items: list[tuple[Record, bool]], where: int, bit: int) -> None:
    data = bytearray(log_of([(found, True) for found, _ in items]))
    assert take(bytes(data), 0, 0).count == len(items)
    size = layout.SIZE_MAGIC.unpack_from(data)[0]
    data[where % size] ^= 1 << bit
    assert take(bytes(data), 0, 0).count == 0


def test_columns_agree_with_the_records() -> None:
    delayed = b"DELAY\x013\x02KEYS\x01first\x02TAGS\x01paid\x02REAL_TOPIC\x01orders\x02UNIQ_KEY\x01k"
    lane = Record("SCHEDULE_TOPIC_XXXX", 2, b"b", delayed, stored_at_ms=5, queue_offset=9)
    named = b"KEYS\x01first\x02UNIQ_KEY\x01k\x02DT_ENTRY\x013:9:77"
    restored = Record("orders", 1, b"b", named, sys_flag=layout.SYS_TRANSACTION_PREPARED)
    data = log_of([(lane, False), (restored, True)], 500)
    run = take(data, 0, 500)
    assert run.keys == [(b"SCHEDULE_TOPIC_XXXX", 2), (b"orders", 1)]
    assert run.positions.tolist() == [500, 500 + int(run.sizes[0])]
    assert run.end == len(data)
    assert (run.offsets[0], run.stored_at_ms[0], run.levels.tolist()) == (9, 5, [3, -1])
    assert run.tags_codes.tolist() == [record.java_hash("paid"), 0]
    assert run.id_hashes.tolist() == [record.id_hash(b"orders", b"k")] * 2
    assert (run.destinations, run.real_of.tolist()) == ([b"orders"], [0, -1])
    assert run.key_crcs.tolist() == [zlib.crc32(b"first"), 0]
    assert columns.key_crc(b"first second") == columns.SEVERAL_KEYS
    assert run.queued.tolist() == [True, False]
    assert run.entries is not None
    assert run.entries[:, 1].tolist() == [3, 9, 77]
    assert run.properties(0) == lane.properties
    assert [data[at:][:5] for at in run.keys_at.tolist()] == [b"first"] * 2
    assert [data[at - 9 : at + 1] for at in run.id_at.tolist()] == [b"UNIQ_KEY\x01k"] * 2


def test_columns_of_a_lane_for_any_time_have_its_due_time() -> None:
    real = b"REAL_TOPIC\x01orders\x02REAL_QID\x014\x02UNIQ_KEY\x01k"
    out = b"TIMER_OUT_MS\x011700000000000\x02"
    texts = [
        b"DT_ENTRY\x011000:5:1699\x02" + out + real,
        b"DT_ENTRY\x011000:5:1699\x02n\x01v\x02" + out + real,
        out + real + b"\x02DT_ENTRY\x011000:5:1699",
        b"TIMER_OUT_MS\x01170000000000\x02" + real,
        out + b"TIMER_OUT_MS\x01170000000000x\x02" + real,
        b"TIMER_OUT_MS\x01now\x02" + out + b"TIMER_OUT_MS\x01\x02" + real,
    ]
    data = log_of([(Record("rmq_sys_wheel_timer", 0, b"b", text), True) for text in texts])
    data += log_of([(Record("orders", 0, b"b", texts[0]), True)], len(data))
    run = take(data, 0, 0)
    found = [data[at : at + 13] if at >= 0 else b"" for at in run.timer_at.tolist()]
    assert found == [b"1700000000000"] * 3 + [b"", b"", b"1700000000000", b""]
    assert run.entries is not None
    assert run.entries.T.tolist() == [[1_000, 5, 1_699]] + [[-1] * 3] * 6
    assert run.id_hashes.tolist() == [record.id_hash(b"orders", b"k")] * 7
    assert [columns.entry_of(run.record(index)) for index in range(7)] == [(1_000, 5, 1_699), *[None] * 6]


def test_last_of_equal_properties_counts() -> None:
    text = b"TAGS\x01a\x02XTAGS\x01c\x02TAGS\x01b\x02TAGS\x01\x02n\x01v"
    assert value_of(text, b"TAGS") == b"b"
    assert value_of(text, b"KEYS") == b""


def filled(folder: Path, seed: int) -> tuple[CommitLog, list[tuple[int, bytes]]]:
    """A log of several segments, with BLANK marks and some bytes damaged; and the records as they were written."""
    chance = random.Random(seed)
    print(f"seed {seed}")
    log = CommitLog(Disk(), folder, SEGMENT_BYTES)
    position, written = 0, []
    for number in range(400):
        made = Record(
            f"t{number % 5}", 0, chance.randbytes(chance.choice([3, 500, 3000])), b"n\x01v", queue_offset=number
        )
        size = len(record.encode(made))
        position = log.place(position, size)
        written.append((position, encoded(made, position, False)))
        log.write([(position, [written[-1][1]])])
        position += size
    log.close()
    for _ in range(chance.randrange(6)):
        at = chance.randrange(position)
        path = folder / file_name(at - at % SEGMENT_BYTES)
        data = bytearray(path.read_bytes())
        for index in range(at % SEGMENT_BYTES, min(at % SEGMENT_BYTES + chance.choice([1, 50, 5000]), len(data))):
            data[index] ^= 0x55
        path.write_bytes(data)
    return CommitLog(Disk(), folder, SEGMENT_BYTES), written


def told(item: Item) -> list[int]:
    """The positions of intact records."""
    return item.positions.tolist() if isinstance(item, RecordRun) else []


@pytest.mark.parametrize("seed", range(12))
def test_walk_tells_exactly_the_records_that_are_intact(tmp_path: Path, seed: int) -> None:
    log, written = filled(tmp_path, seed)
    intact = []
    for position, data in written:
        segment = log.segment_at(position)
        assert segment is not None
        with suppress(DamagedBytes):
            if record.decode(segment.read_file(position, len(data))).position == position:
                intact.append(position)
    items = list(scan_runs(log, 0))
    assert [position for item in items for position in told(item)] == intact
    assert len(intact) > 100
    # Nothing is left out between the first record and the last.
    assert all(item_end(item) == start_of(after) for item, after in pairwise(items))
    log.close()


def start_of(item: Item) -> int:
    return int(item.positions[0]) if isinstance(item, RecordRun) else item.position


@pytest.mark.parametrize("magic", [MAGIC_V1, MAGIC_V2])
def test_record_larger_than_the_walk_reads_at_once_is_a_run(tmp_path: Path, magic: int) -> None:
    log = CommitLog(Disk(), tmp_path, 64 * 1024 * 1024)
    parts, position = [], 0
    for number, size in enumerate([10, 9_000_000, 20, 5_000_000, 30]):
        made = Record("t", 0, bytes(size), b"n\x01v", queue_offset=number, magic=magic)
        parts.append((position, encoded(made, position, False)))
        position += len(parts[-1][1])
    log.write([(at, [data]) for at, data in parts])
    items = list(scan_runs(log, 0))
    assert all(isinstance(item, RecordRun) for item in items)
    assert [position for item in items for position in told(item)] == [at for at, _ in parts]
    log.close()


def test_every_blank_mark_is_recognised(tmp_path: Path) -> None:
    log = CommitLog(Disk(), tmp_path, SEGMENT_BYTES)
    data = record.encode(Record("t", 0, bytes(40_000), b"n\x01v"))
    log.write([(0, [data])])
    log.write([(SEGMENT_BYTES, [record.encode(Record("t", 0, b"", b"n\x01v", position=SEGMENT_BYTES))])])
    marks = [item for item in scan_runs(log, 0) if isinstance(item, SegmentBlank)]
    assert marks == [SegmentBlank(len(data), SEGMENT_BYTES - len(data))]
    log.close()


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4_095, 4_096, 4_097, 4_098, 4_099, 10_000])
def test_three_bytes_are_found_wherever_they_stand(size: int) -> None:
    blank = b"D" * size
    assert not columns.holds(blank, b"DT_")
    for at in {0, 1, size // 2, 4_093, 4_094, 4_095, 4_096, size - 4, size - 3}:
        if 0 <= at <= size - 3:
            assert columns.holds(blank[:at] + b"DT_" + blank[at + 3 :], b"DT_")
    assert not columns.holds(blank[2:] + b"DT", b"DT_")
