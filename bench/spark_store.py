"""Store directories of millions of pending messages, generated in seconds, and Spark's time to read them.

    python -m bench.spark_store make DIR --pending 20000000
    python -m bench.spark_store measure DIR --master local[2]

Records, units, checkpoint and configuration equal those of a store that has accepted the messages and delivered none:
tests/bench/test_spark_store.py opens one. All records have one size, so numpy can write them. CRC-32 is linear: a CRC
is the template's plus a contribution of each changed byte.
"""

import argparse
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from duetime_format import layout, record
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.names import SCHEDULE_TOPIC
from duetime_format.properties import encode_properties
from duetime_format.units import UNIT, UNIT_TYPE
from duetime_shard.history import LevelHistory
from duetime_store.files import configs
from duetime_store.files.directory import save_history
from duetime_store.files.disk import Disk
from duetime_store.recovery import checkpoint
from duetime_store.recovery.checkpoint import Checkpoint

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
FIRST_MS = 1_700_000_000_000
SEGMENT_BYTES = 1 << 30
QUEUE_FILE_BYTES = 6_000_000
TOPICS = tuple(f"topic-{number:02d}" for number in range(20))
BODY_BYTES = 64
_BLOCK = 200_000
_ID = "7F000001" + "0" * 24
_DIGITS = np.frombuffer(b"0123456789ABCDEF", np.uint8)

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


class Template:
    """A record with a fixed number of level digits. Changed fields are written over it, then the CRC is updated."""

    def __init__(self, digits: int, body_bytes: int) -> None:
        level, mark = "9" * digits, TOPICS[0]
        properties = {"UNIQ_KEY": _ID, **record.deferral(int(level), mark, 0)}
        encoded = record.with_crc_mark(encode_properties(properties))
        whole = record.encode(record.Record(SCHEDULE_TOPIC, 0, bytes(body_bytes - digits), encoded))
        self.bytes = np.frombuffer(whole, np.uint8)
        self.size = len(whole)
        self.fields = {
            "queue": slice(12, 16),
            "offset": slice(20, 28),
            "position": slice(28, 36),
            "born_at_ms": slice(40, 48),
            "stored_at_ms": slice(56, 64),
            "id": _found(whole, _ID.encode(), 8, 24),
            "level": _found(whole, b"DELAY\1" + level.encode(), 6, digits),
            "topic": _found(whole, b"REAL_TOPIC\1" + mark.encode(), 11, len(mark)),
        }
        self._crc_end = self.size - len(record.CRC_MARK)
        self._crc = zlib.crc32(whole[: self._crc_end])
        self._tables = {at: self._table(at) for part in self.fields.values() for at in range(part.start, part.stop)}

    def _table(self, at: int) -> npt.NDArray[np.uint32]:
        """The changes of the CRC by each value of one byte."""
        zeros = bytes(self._crc_end - at - 1)
        base = zlib.crc32(bytes([self.bytes[at]]) + zeros)
        return np.array([zlib.crc32(bytes([value]) + zeros) ^ base for value in range(256)], np.uint32)

    def seal(self, records: Bytes) -> None:
        """Writes the CRCs of the rows into their fields."""
        crcs = np.full(len(records), self._crc, np.uint32)
        for at, table in self._tables.items():
            crcs ^= table[records[:, at]]
        left = (crcs & 0x7FFFFFFF).astype(np.int64)
        for digit in range(10):
            left, last = np.divmod(left, 10)
            records[:, self.size - 11 + digit] = last + ord("0")


def _found(whole: bytes, text: bytes, skip: int, length: int) -> slice:
    at = whole.index(text) + skip
    return slice(at, at + length)


def make(root: Path, pending: int, *, segment_bytes: int = SEGMENT_BYTES, seed: int = 0) -> None:
    """Makes a directory with pending messages, spread over all levels and 20 topics, stored within an hour."""
    rng = np.random.default_rng(seed)
    templates = {digits: Template(digits, BODY_BYTES) for digits in (1, 2)}
    size = templates[1].size
    assert size == templates[2].size
    per_segment = (segment_bytes - layout.BLANK_BYTES) // size
    root.mkdir(parents=True)
    lanes = [_Lane(root, level) for level in range(1, LEVELS.highest + 1)]
    log = _Log(root, segment_bytes, per_segment, size)
    for first in range(0, pending, _BLOCK):
        count = min(_BLOCK, pending - first)
        levels = rng.integers(1, LEVELS.highest + 1, count)
        rows = np.arange(first, first + count)
        stored_at_ms = FIRST_MS + rows * 3_600_000 // pending
        positions = rows // per_segment * segment_bytes + rows % per_segment * size
        dues = stored_at_ms + np.array(LEVELS.delays_ms)[levels - 1]
        offsets = np.empty(count, np.int64)
        for lane in lanes:
            own = np.flatnonzero(levels == lane.level)
            offsets[own] = lane.count + np.arange(len(own))
            lane.add(positions[own], size, dues[own])
        topics = rng.integers(0, len(TOPICS), count)
        log.write(first, _records(templates, rows, levels, offsets, positions, stored_at_ms, topics))
    end = log.close()
    for lane in lanes:
        lane.close()
    _write_rest(root, pending, end, FIRST_MS + 3_600_000)


def _records(
    templates: dict[int, Template],
    rows: Ints,
    levels: Ints,
    offsets: Ints,
    positions: Ints,
    stored_at_ms: Ints,
    topics: Ints,
) -> Bytes:
    found = np.empty((len(rows), templates[1].size), np.uint8)
    names = np.frombuffer("".join(TOPICS).encode(), np.uint8).reshape(len(TOPICS), -1)
    for digits, template in templates.items():
        own = np.flatnonzero((levels > 9) == (digits == 2))
        part = np.tile(template.bytes, (len(own), 1))
        fields = template.fields
        part[:, fields["queue"]] = _big(levels[own] - 1, ">i4")
        part[:, fields["offset"]] = _big(offsets[own], ">i8")
        part[:, fields["position"]] = _big(positions[own], ">i8")
        part[:, fields["born_at_ms"]] = part[:, fields["stored_at_ms"]] = _big(stored_at_ms[own], ">i8")
        part[:, fields["topic"]] = names[topics[own]]
        part[:, fields["level"]] = _decimal(levels[own], digits)
        part[:, fields["id"]] = _hexadecimal(rows[own], 24)
        template.seal(part)
        found[own] = part
    return found


def _big(values: Ints, kind: str) -> Bytes:
    return values.astype(kind).view(np.uint8).reshape(len(values), -1)


def _decimal(values: Ints, digits: int) -> Bytes:
    powers = 10 ** np.arange(digits - 1, -1, -1)
    found: Bytes = _DIGITS[values[:, None] // powers % 10]
    return found


def _hexadecimal(values: Ints, digits: int) -> Bytes:
    found = np.full((len(values), digits), _DIGITS[0])
    for digit in range(12):
        found[:, digits - 1 - digit] = _DIGITS[values >> 4 * digit & 15]
    return found


class _Log:
    def __init__(self, root: Path, segment_bytes: int, per_segment: int, size: int) -> None:
        self._folder = root / "commitlog"
        self._folder.mkdir()
        self._segment_bytes, self._per_segment, self._size = segment_bytes, per_segment, size
        self._end = 0

    def write(self, first: int, records: Bytes) -> None:
        while len(records):
            segment, row = divmod(first, self._per_segment)
            part = records[: self._per_segment - row]
            base, used = segment * self._segment_bytes, self._per_segment * self._size
            with (self._folder / f"{base:020d}").open("r+b" if row else "w+b") as file:
                if not row:
                    file.truncate(self._segment_bytes)
                file.seek(row * self._size)
                file.write(part.tobytes())
                self._end = base + file.tell()
                if file.tell() == used:
                    file.write(layout.SIZE_MAGIC.pack(self._segment_bytes - used, layout.MAGIC_BLANK))
            first, records = first + len(part), records[len(part) :]

    def close(self) -> int:
        """The log's end."""
        return self._end


class _Lane:
    def __init__(self, root: Path, level: int) -> None:
        self.level = level
        self.count = 0
        self._folder = root / "consumequeue" / SCHEDULE_TOPIC / str(level - 1)
        self._folder.mkdir(parents=True)

    def add(self, positions: Ints, size: int, dues: Ints) -> None:
        units = np.empty(len(positions), UNIT_TYPE)
        units["position"], units["size"], units["tags"] = positions, size, dues
        data = units.tobytes()
        while data:
            base, at = divmod(self.count * UNIT.size, QUEUE_FILE_BYTES)
            part = data[: QUEUE_FILE_BYTES - at]
            with (self._folder / f"{base * QUEUE_FILE_BYTES:020d}").open("r+b" if at else "w+b") as file:
                if not at:
                    file.truncate(QUEUE_FILE_BYTES)
                file.seek(at)
                file.write(part)
            self.count += len(part) // UNIT.size
            data = data[len(part) :]

    def close(self) -> None:
        if not self.count:
            self._folder.rmdir()


def _write_rest(root: Path, pending: int, end: int, now_ms: int) -> None:
    disk, config = Disk(), root / "config"
    config.mkdir()
    save_history(LevelHistory.of(LEVELS), disk, config, 0)
    offsets = configs.with_delay_offsets(None, dict.fromkeys(range(1, LEVELS.highest + 1), 0), now_ms)
    configs.write(disk, config, configs.DELAY_OFFSETS, offsets)
    topics = configs.with_topics(None, {SCHEDULE_TOPIC: LEVELS.highest, **dict.fromkeys(TOPICS, 1)}, now_ms)
    configs.write(disk, config, configs.TOPICS, topics or {})
    point = Checkpoint(end, end, pending, (0,) * LEVELS.highest, now_ms - 1, now_ms)
    checkpoint.write(disk, root / "checkpoint", point)


_NUMBERS = "shard,queue,offset,position,size,tags_code,due_at_ms"
_QUERIES = (
    (
        "scan, all columns",
        "queue_entries",
        f"topic,{_NUMBERS}",
        ["sum(length(topic))", *(f"max({name})" for name in _NUMBERS.split(","))],
    ),
    ("scan, due time alone", "queue_entries", "due_at_ms", ["max(due_at_ms)"]),
    ("pending without topics", "pending", "level,size,due_at_ms", ["max(due_at_ms)", "sum(size)", "sum(level)"]),
    (
        "pending with topics",
        "pending",
        "level,topic,size,due_at_ms",
        ["sum(length(topic))", "sum(size)", "max(due_at_ms)"],
    ),
)


def measure(root: Path, master: str, rows: str | None) -> Iterator[str]:
    """Seconds and rates, line by line."""
    from duetime_spark import take_snapshots
    from duetime_spark.session import start

    started = time.perf_counter()
    spark = start(master)
    yield f"session {time.perf_counter() - started:.1f} s"
    started = time.perf_counter()
    pinned = take_snapshots([str(root)])
    yield f"snapshot {time.perf_counter() - started:.2f} s, {len(pinned):,} bytes"

    def read(table: str, columns: str) -> object:
        options = {"table": table, "columns": columns, "snapshot": pinned, **({"rows": rows} if rows else {})}
        return spark.read.format("duetime").options(**options).load(str(root))

    spark.range(1).count()
    for name, table, columns, query in _QUERIES:
        for _ in range(2):
            started, used = time.perf_counter(), _cpu_s()
            frame = read(table, columns)
            row = frame.selectExpr(*query, "count(*) AS rows").collect()[0]  # type: ignore[attr-defined]
            took = time.perf_counter() - started
            rate, cpu_s = row["rows"] / took / 1e6, _cpu_s() - used
            yield f"{name}: {row['rows']:,} rows in {took:.2f} s, {rate:.2f} M/s; {cpu_s:.1f} s of processors"
    peaks = sorted(_peak_mib(pid) for pid in _family())
    yield f"processes' peaks: {', '.join(f'{peak} MiB' for peak in peaks)}"
    spark.stop()


def _family() -> list[int]:
    """The pids of this process, the JVM and Python's workers."""
    parents = {int(path.name): int(_stat(path)[1]) for path in Path("/proc").iterdir() if path.name.isdigit()}
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _stat(path: Path) -> list[str]:
    """The fields from the state on."""
    try:
        return (path / "stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ["", "-1", *"0" * 50]  # it ended


def _cpu_s() -> float:
    """Processor time of the family, including ended children."""
    ticks = sum(int(field) for pid in _family() for field in _stat(Path("/proc") / str(pid))[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _peak_mib(pid: int) -> int:
    lines = (Path("/proc") / str(pid) / "status").read_text().splitlines()
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM")), 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("make", "measure"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--pending", type=int, default=20_000_000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--rows", help="rows of a task")
    arguments = parser.parse_args()
    if arguments.task == "make":
        started = time.perf_counter()
        make(arguments.directory, arguments.pending)
        print(f"{arguments.pending:,} pending in {time.perf_counter() - started:.1f} s")
        return
    for line in measure(arguments.directory, arguments.master, arguments.rows):
        print(line, flush=True)


if __name__ == "__main__":
    main()
