"""A store's log read record by record, in plain Python: the reference for results of Spark."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from duetime_format import layout, record
from duetime_format.errors import DamagedBytes
from duetime_format.names import QUARANTINE_TOPIC, SCHEDULE_TOPIC
from duetime_format.properties import decode_properties
from duetime_format.record import Record

# (shard, level)
Lane = tuple[int, int]
# (shard, topic, queue)
Queue = tuple[int, str, int]


def walk(root: Path, end: int | None = None) -> Iterator[Record]:
    """Intact records in order, up to a position; damaged bytes are searched for the next record one by one."""
    for path in sorted((root / "commitlog").iterdir()):
        data, base, at = path.read_bytes(), int(path.name), 0
        while at + 8 <= len(data) and (end is None or base + at < end):
            if data[at + 4 : at + 8] == layout.MAGIC_BLANK.to_bytes(4, "big", signed=True):
                break
            found = _record(data, base, at)
            if found is not None:
                yield found
                at += found.size
            else:
                magic = data.find(layout.MAGIC_V1.to_bytes(4, "big", signed=True), at + 5)
                blank = data.find(layout.MAGIC_BLANK.to_bytes(4, "big", signed=True), at + 5)
                at = min((place - 4 for place in (magic, blank) if place >= 0), default=len(data))


def _record(data: bytes, base: int, at: int) -> Record | None:
    try:
        found = record.decode(data, at)
    except DamagedBytes:
        return None
    return found if found.position == base + at else None


def property_of(found: Record, name: str) -> str | None:
    return decode_properties(found.properties).get(name)


def id_of(found: Record) -> str:
    return property_of(found, "UNIQ_KEY") or ""


@dataclass
class Log:
    """Contents of the logs of some shards. The last place of an entry that retention has appended again counts."""

    records: dict[int, list[Record]] = field(default_factory=dict)
    entries: dict[Lane, dict[int, Record]] = field(default_factory=lambda: defaultdict(dict))
    restored: dict[Lane, dict[int, list[Record]]] = field(default_factory=lambda: defaultdict(dict))
    dead: dict[Lane, dict[int, list[Record]]] = field(default_factory=lambda: defaultdict(dict))
    queues: dict[Queue, dict[int, Record]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, shard: int, root: Path, end: int | None = None) -> None:
        self.records[shard] = list(walk(root, end))
        for one in self.records[shard]:
            self.queues[shard, one.topic, one.queue][one.queue_offset] = one
            entry = record.find_lane_entry(one.properties)
            if one.topic == SCHEDULE_TOPIC:
                self.entries[shard, one.queue + 1][one.queue_offset] = one
            elif entry is not None:
                ends = self.dead if one.topic == QUARANTINE_TOPIC else self.restored
                ends[shard, entry[0]].setdefault(entry[1], []).append(one)


def log_of(roots: dict[int, Path], ends: dict[int, int] | None = None) -> Log:
    found = Log()
    for shard, root in roots.items():
        found.add(shard, root, ends[shard] if ends else None)
    return found


def percentile(values: list[int], thousandths: int) -> int:
    """The lowest value that this share does not exceed."""
    ordered = sorted(values)
    return next(value for rank, value in enumerate(ordered, 1) if rank * 1000 >= len(ordered) * thousandths)
