"""Single records of a directory."""

from duetime_format import layout, record
from duetime_format.errors import DamagedBytes
from duetime_format.record import Record

from duetime_shard.shard import DirectoryState


def message(state: DirectoryState, position: int) -> Record | None:
    """The record at a position; None: there is none."""
    size = layout.size_at(state.log.read(position, layout.PREFIX_BYTES))
    if not size:
        return None
    try:
        return record.decode(state.log.read(position, size), check_crc=False)
    except DamagedBytes:
        return None
