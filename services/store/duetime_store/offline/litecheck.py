"""Checks a broker's queues of lite topics: each unit names a record of the parent topic that names the unit's place.

INNER_MULTI_DISPATCH        names of the queues, separated by commas
INNER_MULTI_QUEUE_OFFSET    the offset in each
"""

from collections.abc import Iterable

from duetime_core.ondisk.files import QueueFiles
from duetime_core.ondisk.folder import IS_FOLDER
from duetime_core.ondisk.records import message
from duetime_core.ondisk.state import LMQ_PREFIX, State
from duetime_format.properties import decode_properties

from duetime_store.offline.report import Message, Report
from duetime_store.offline.unitcheck import unit_place

_NAMES, _OFFSETS = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"


def in_files(state: State) -> list[QueueFiles]:
    """The queues of lite topics in files."""
    return [
        QueueFiles(state.files, topic, int(name))
        for topic, kind in state.files.listed("consumequeue")
        if kind == IS_FOLDER and topic.startswith(LMQ_PREFIX)
        for name, inner in state.files.listed(f"consumequeue/{topic}")
        if inner == IS_FOLDER and name.isascii() and name.isdigit()
    ]


def check(state: State, report: Report, queues: Iterable[QueueFiles]) -> None:
    """After the log was read. Units of records that left with its front, or did not reach the disk, are not checked."""
    for queue in queues:
        at = queue.min_offset
        while len(units := queue.read(at, queue.max_offset - at)):
            report.units += len(units)
            for offset, (position, size, _) in enumerate(units.tolist(), at):
                is_there = state.min_position <= position < state.end
                if is_there and not _names(state, queue.topic, offset, position, size):
                    what = f"unit names position {position}, {size} bytes: no record of it is there"
                    report.add(*unit_place(queue, offset), what, Message(queue.topic, queue.queue, offset))
            at += len(units)


def _names(state: State, topic: str, offset: int, position: int, size: int) -> bool:
    found = message(state, position)
    if found is None or found.size != size:
        return False
    properties = decode_properties(found.properties)
    names, offsets = (properties.get(name, "").split(",") for name in (_NAMES, _OFFSETS))
    return (topic, str(offset)) in zip(names, offsets, strict=False)
