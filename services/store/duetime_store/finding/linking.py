"""Makes the entries of an index file from rows of keys, each linked to the one before it in its slot.

The compiled twin does it in one pass.
"""

import numpy as np
import numpy.typing as npt
from duetime_format.columns import Ints
from duetime_format.compiled import twin
from duetime_format.keys import Rows

ENTRY_TYPE = np.dtype([("hash", ">i4"), ("position", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_I32_MAX = (1 << 31) - 1

Slots = npt.NDArray[np.int32]


def link(rows: Rows, slots: Slots, first: int, begin_at_ms: int) -> tuple[bytes, int]:
    """The entries, and the number of slots that had none before. The slots name the new entries on return.

    Args:
        rows: one at least.
        first: the number of the first entry.
        begin_at_ms: the origin of the seconds in the entries. The first entry of a file counts from the end of the
            file before, those after it from the first one's time.
    """
    numbers = np.arange(first, first + len(rows))
    places = rows["hash"] % len(slots)
    # Entries of one slot are adjacent, in their order; each but the first follows the one before it.
    order = np.argsort(places, kind="stable")
    grouped, in_order = places[order], numbers[order]
    opens = np.append(True, grouped[1:] != grouped[:-1])
    heads = slots[grouped[opens]]
    before = np.append(0, in_order[:-1])
    before[opens] = heads
    entries = np.empty(len(rows), ENTRY_TYPE)
    entries["hash"], entries["position"] = rows["hash"], rows["position"]
    entries["previous"][order] = before
    entries["seconds"] = seconds(rows["stored_at_ms"], begin_at_ms)
    if first == 1:
        entries["seconds"][1:] = seconds(rows["stored_at_ms"][1:], int(rows["stored_at_ms"][0]))
    # The last assignment to a place counts: the newest.
    slots[places] = numbers
    return entries.tobytes(), int(np.count_nonzero(heads == 0))


def unlink(entries: bytes, slots: Slots) -> None:
    """Reverts the changes of `link` to the slots."""
    linked = np.frombuffer(entries, ENTRY_TYPE)[::-1]
    # The last assignment to a place counts: the predecessor of the first entry.
    slots[linked["hash"] % len(slots)] = linked["previous"]


def seconds(times_ms: Ints, begin_at_ms: int) -> Ints:
    """The seconds that entries hold: 0 if a record is older than the file's first, or if no time is known."""
    if begin_at_ms <= 0:
        return np.zeros(len(times_ms), np.int64)
    return np.clip((times_ms - begin_at_ms) // 1000, 0, _I32_MAX)


_compiled = twin("duetime_store.finding._linking")
quickest_link = link if _compiled is None else _compiled.link
