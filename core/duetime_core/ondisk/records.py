"""Single records of a directory."""

from duetime_format import record
from duetime_format.errors import Damaged
from duetime_format.record import Record

from duetime_core.ondisk.state import State


def message(state: State, position: int) -> Record | None:
    """The record at a position; None where none is."""
    head = state.log.read(position, record.SIZE_MAGIC.size)
    if len(head) < record.SIZE_MAGIC.size:
        return None
    size, magic = record.SIZE_MAGIC.unpack(head)
    if magic not in (record.MAGIC_V1, record.MAGIC_V2):
        return None
    try:
        return record.decode(state.log.read(position, size), check_crc=False)
    except Damaged:
        return None
