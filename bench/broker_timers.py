"""Measures `duetime store import` of a broker's directory with many timers in RocksDB, and the shard's first start.

    python -m bench.broker_timers --timers 10000000

The directory is as RocketMQ 5.5.1 leaves it with timerRocksDBEnable: each timer is a record of queue 0 of
rmq_sys_wheel_timer and a key of the family `timer`, and `timercheck` has never moved. Import and start run in processes
of their own, whose peak memory counts.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from struct import Struct

import numpy as np
import numpy.typing as npt
from duetime_core.clock import SystemClock
from duetime_format import layout, record
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.names import TIMER_TOPIC
from duetime_format.properties import encode_properties
from duetime_format.record import Record, tags_code
from duetime_format.units import UNIT_TYPE
from duetime_shard.brokers.timers import CHECK_BYTES, CHECK_FILE
from duetime_store.files.directory import StoreDirectory
from duetime_store.lanes.alarm import ShardClock
from duetime_store.offline.transfer import import_directory
from duetime_store.recovery.recovery import open_store
from duetime_store.settings import StoreSettings

_SEGMENT_BYTES, _FILE_UNITS, _CHUNK = 1 << 30, 300_000, 100_000
_AT, _TAG = 1_795_000_000_000, "tag"
_ID, _OUT = "%032d", "%013d"
_KEY, _VALUE, _I64 = Struct(">q"), Struct(">iq"), Struct(">q")
_LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)


def _template() -> tuple[bytes, int, int, int]:
    """A timer's record, and the places of its id and of its two times."""
    named = {"UNIQ_KEY": _ID % 0, "TAGS": _TAG, "WAIT": "true", "CLUSTER": "DefaultCluster"}
    named |= {"TIMER_DELIVER_MS": _OUT % 1, record.TIMER_OUT_MS: _OUT % 2, "REAL_TOPIC": "Orders", "REAL_QID": "0"}
    data = record.encode(Record(TIMER_TOPIC, 0, b"x" * 64, encode_properties(named), born_at_ms=_AT, stored_at_ms=_AT))
    return data, *(data.index(text.encode()) for text in (_ID % 0, _OUT % 1, _OUT % 2))


def _digits(values: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.uint8]:
    powers = 10 ** np.arange(min(width, 18) - 1, -1, -1)
    found = np.full((len(values), width), ord("0"), np.uint8)
    found[:, width - len(powers) :] += (values[:, None] // powers % 10).astype(np.uint8)
    return found


def _chunks(count: int) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], bytes]]:
    """Offsets, positions and records of timers, by files of the log; each is due a second after another."""
    data, *places = _template()
    size = len(data)
    per_file = (_SEGMENT_BYTES - layout.BLANK_BYTES) // size
    first = 0
    while first < count:
        stop = min(first + _CHUNK, count, first - first % per_file + per_file)
        offsets = np.arange(first, stop)
        positions = offsets // per_file * _SEGMENT_BYTES + offsets % per_file * size
        rows = np.tile(np.frombuffer(data, np.uint8), (len(offsets), 1))
        rows[:, 20:28] = offsets.astype(">i8").view(np.uint8).reshape(-1, 8)
        rows[:, 28:36] = positions.astype(">i8").view(np.uint8).reshape(-1, 8)
        out_ms = _out_ms(offsets)
        for place, values, width in zip(places, (offsets, out_ms, out_ms), (32, 13, 13), strict=True):
            rows[:, place : place + width] = _digits(values, width)
        yield offsets, positions, rows.tobytes()
        first = stop


def _out_ms(offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Times within three days, in no order."""
    return _AT + 3_600_000 + offsets * 7_919 % (3 * 86_400) * 1_000


def make(root: Path, count: int) -> None:
    """Writes the directory."""
    queue = root / "consumequeue" / TIMER_TOPIC / "0"
    for folder in (root / "commitlog", queue, root / "config"):
        folder.mkdir(parents=True)
    size = len(_template()[0])
    for offsets, positions, data in _chunks(count):
        base = int(positions[0]) // _SEGMENT_BYTES * _SEGMENT_BYTES
        with (root / "commitlog" / f"{base:020d}").open("ab") as file:
            file.write(data)
        units = np.zeros(len(offsets), UNIT_TYPE)
        units["position"], units["size"], units["tags"] = positions, size, tags_code(_TAG.encode())
        for first in np.unique(offsets // _FILE_UNITS).tolist():
            own = offsets // _FILE_UNITS == first
            with (queue / f"{first * _FILE_UNITS * UNIT_TYPE.itemsize:020d}").open("ab") as file:
                file.write(units[own].tobytes())
    for path in sorted((root / "commitlog").iterdir()):
        used = path.stat().st_size
        with path.open("r+b") as file:
            file.truncate(_SEGMENT_BYTES)
            file.seek(used)
            if int(path.name) + _SEGMENT_BYTES <= int(positions[-1]):
                file.write(layout.blank(_SEGMENT_BYTES - used))
    for path in queue.iterdir():
        with path.open("r+b") as file:
            file.truncate(_FILE_UNITS * UNIT_TYPE.itemsize)
    (root / CHECK_FILE).write_bytes(bytes(CHECK_BYTES))
    (root / "checkpoint").write_bytes(bytes(4_096))
    _make_rocksdb(root / "rocksdbstore", count)


def _make_rocksdb(folder: Path, count: int) -> None:
    from rocksdict import Options, Rdict

    size = len(_template()[0])
    database = Rdict(str(folder), options=Options(raw_mode=True))
    family = database.create_column_family("timer", Options(raw_mode=True))
    for offsets, positions, _ in _chunks(count):
        for offset, position, out_ms in zip(
            offsets.tolist(), positions.tolist(), _out_ms(offsets).tolist(), strict=True
        ):
            family[_KEY.pack(out_ms) + (_ID % offset).encode()] = _VALUE.pack(size, position)
    family[b"sys_topic_scan_offset_checkpoint"] = _I64.pack(count)
    family[b"timeline_checkpoint"] = _I64.pack(_AT)
    database.close()
    (folder / "rocksdict-config.json").unlink()


def _measured(work: Callable[[], int]) -> None:
    """Prints seconds, peak memory and the result of the work."""
    started = time.perf_counter()
    count = work()
    took_s, peak_kib = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cpu_s = time.process_time()
    print(json.dumps({"s": round(took_s, 1), "cpu_s": round(cpu_s, 1), "peak_mib": peak_kib >> 10, "count": count}))


def _import(source: Path, target: Path) -> int:
    report = import_directory(source, target, _LEVELS, accept_damage=False)
    assert report.is_sound, report.damages
    assert not report.losses, report.losses
    return report.records


def _start(root: Path) -> int:
    directory = StoreDirectory(root)
    settings = StoreSettings.model_validate({"data_dir": root, "delay_levels": DEFAULT_DELAY_LEVELS})
    with ThreadPoolExecutor() as executor:
        opened = open_store(directory, settings, ShardClock(SystemClock()), executor)
    return sum(lane.pending_count for lane in opened.store.lanes)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--timers", type=int, default=10_000_000)
    arguments.add_argument("--step", choices=["import", "start"])
    arguments.add_argument("--dir", type=Path)
    chosen = arguments.parse_args()
    if chosen.step == "import":
        return _measured(lambda: _import(chosen.dir / "broker", chosen.dir / "shard"))
    if chosen.step == "start":
        return _measured(lambda: _start(chosen.dir / "shard"))
    with tempfile.TemporaryDirectory(prefix="duetime-bench-") as folder:
        root = Path(folder)
        started = time.perf_counter()
        make(root / "broker", chosen.timers)
        print(f"made {chosen.timers:,} timers in {time.perf_counter() - started:.0f} s")
        for step in ("import", "start"):
            command = [sys.executable, "-m", "bench.broker_timers", "--step", step, "--dir", str(root)]
            told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            print(step, told.strip().splitlines()[-1])
    return None


if __name__ == "__main__":
    main()
