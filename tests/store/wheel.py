"""A directory of timers as a 5.x broker writes it: records of its timers' queue, timer log, timercheck."""

from pathlib import Path

import numpy as np
from duetime_format import record
from duetime_format.names import TIMER_TOPIC
from duetime_format.properties import decode_properties, encode_properties
from duetime_format.record import Record, encode
from duetime_format.units import UNIT_TYPE
from duetime_shard.brokers.timers import LOG_UNIT, TimerCheck, pending
from duetime_shard.disk import LocalFiles

START_MS = 1_700_000_000_000
SEGMENT_BYTES = 1 << 20
ROLLED, DELETES = 2, 4


def read_check(root: Path) -> TimerCheck:
    """Values of timercheck of a directory."""
    return TimerCheck.decode((root / "config" / "timercheck").read_bytes())


class Wheel:
    """Write to it with `timer`, `enter` and `deliver`, then ask `pending`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = bytearray()
        self.units: list[tuple[int, int, int]] = []
        self.in_log: list[tuple[int, int, int, int]] = []

    def timer(
        self,
        message_id: str,
        out_ms: int,
        *,
        topic: str = "orders",
        rolls: int = 0,
        labelled: bool = False,
        deletes: str = "",
    ) -> int:
        """A record of the timers' queue. Returns its offset."""
        properties = {"UNIQ_KEY": message_id, "TIMER_OUT_MS": str(out_ms), "REAL_TOPIC": topic, "REAL_QID": "0"}
        properties |= {"TIMER_ROLL_TIMES": str(rolls), "TIMER_DEQUEUE_MS": str(START_MS)} if rolls else {}
        properties |= {"TIMER_ROLL_LABEL": "R"} if labelled else {}
        properties |= {"TIMER_DEL_UNIQKEY": deletes} if deletes else {}
        position, size = self._append(TIMER_TOPIC, properties, len(self.units))
        self.units.append((position, size, 0))
        return len(self.units) - 1

    def enter(self, offset: int, slot_ms: int, *, magic: int = 0) -> None:
        """The timer enters the wheel."""
        position, size, _ = self.units[offset]
        self.in_log.append((slot_ms, 1 | magic, position, size))

    def deliver(self, offset: int, *, topic: str = "orders", from_rocksdb: bool = False) -> None:
        """A copy goes to the timer's topic; without the wheel's marks if the timer was in RocksDB."""
        position, _, _ = self.units[offset]
        properties = decode_properties(record.decode(self.log, position).properties)
        if from_rocksdb:
            properties = {name: properties[name] for name in ("UNIQ_KEY", "TIMER_OUT_MS")}
        else:
            properties["TIMER_DEQUEUE_MS"] = str(START_MS)
        self._append(topic, properties, 0)

    def pending(self, *, read_ms: int, queue_offset: int, written_ms: int = START_MS) -> list[int]:
        """Offsets of pending timers, with a timercheck of this content."""
        self._write(TimerCheck(read_ms, 0, queue_offset, queue_offset, 0, written_ms, 1))
        found = pending(
            LocalFiles(self.root),
            np.arange(len(self.units)),
            np.array(self.units, UNIT_TYPE),
            lambda position, size: bytes(self.log[position : position + size]),
        )
        assert found is not None
        return found.tolist()

    def _append(self, topic: str, properties: dict[str, str], offset: int) -> tuple[int, int]:
        position = len(self.log)
        place = {"queue_offset": offset, "position": position, "stored_at_ms": START_MS}
        data = encode(Record(topic, 0, b"body", encode_properties(properties), **place))
        self.log += data
        return position, len(data)

    def _write(self, check: TimerCheck) -> None:
        for folder in ("config", "timerlog", "commitlog"):
            (self.root / folder).mkdir(exist_ok=True)
        (self.root / "config" / "timercheck").write_bytes(check.encode().ljust(4_096, b"\0"))
        units = np.zeros(len(self.in_log), LOG_UNIT)
        for index, (slot_ms, magic, position, size) in enumerate(self.in_log):
            units[index] = (LOG_UNIT.itemsize, -1, magic, START_MS, slot_ms - START_MS, position, size, 0, 0)
        (self.root / "timerlog" / f"{0:020d}").write_bytes(units.tobytes().ljust(1 << 16, b"\0"))
        (self.root / "commitlog" / f"{0:020d}").write_bytes(bytes(self.log).ljust(SEGMENT_BYTES, b"\0"))
