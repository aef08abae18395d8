"""Checks a broker's queues of lite topics: each unit names a record of the parent topic that names the unit's place.

INNER_MULTI_DISPATCH        names of the queues, separated by commas
INNER_MULTI_QUEUE_OFFSET    the offset in each
"""

from collections.abc import Iterable

from duetime_format.properties import decode_properties
from duetime_shard.disk import IS_FOLDER
from duetime_shard.files import QueueFiles
from duetime_shard.records import message
from duetime_shard.shard import LMQ_PREFIX, DirectoryState

from duetime_store.offline.report import DamagedMessage, VerifyReport
from duetime_store.offline.unitcheck import unit_place

_NAMES, _OFFSETS = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"


def in_files(state: DirectoryState) -> list[QueueFiles]:
    """The queues of lite topics in files."""
    return [
        QueueFiles(state.files, topic, int(name))
        for topic, kind in state.files.listed("consumequeue")
        if kind == IS_FOLDER and topic.startswith(LMQ_PREFIX)
        for name, inner in state.files.listed(f"consumequeue/{topic}")
        if inner == IS_FOLDER and name.isascii() and name.isdigit()
    ]


def check(state: DirectoryState, report: VerifyReport, queues: Iterable[QueueFiles]) -> None:
    """After the log was read. Units of records that left with its front, or did not reach the disk, are not checked."""
    for queue in queues:
        at = queue.min_offset
        while len(units := queue.read(at, queue.max_offset - at)):
            report.units += len(units)
            for offset, (position, size, _) in enumerate(units.tolist(), at):
                is_there = state.min_position <= position < state.end
                if is_there and not _names(state, queue.topic, offset, position, size):
                    what = f"unit names position {position}, {size} bytes: no record of it is there"
                    report.add(*unit_place(queue, offset), what, DamagedMessage(queue.topic, queue.queue, offset))
            at += len(units)


def _names(state: DirectoryState, topic: str, offset: int, position: int, size: int) -> bool:
    found = message(state, position)
    if found is None or found.size != size:
        return False
    properties = decode_properties(found.properties)
    names, offsets = (properties.get(name, "").split(",") for name in (_NAMES, _OFFSETS))
    return (topic, str(offset)) in zip(names, offsets, strict=False)
