"""Units of a consume queue: where the records of one (topic, queue) lie in the log.

    i64 physical position | i32 record size | i64 tagsCode

Unit n of the queue is at byte 20 n. tagsCode is the hash of the tag, and in a lane the due time in ms. A filler unit
(0, 0x7FFFFFFF, 0) holds the place of an offset whose record is missing.
"""

from collections.abc import Iterable
from struct import Struct

import numpy as np
import numpy.typing as npt

UNIT = Struct(">qiq")
UNIT_TYPE = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags", ">i8")])
FILLER_SIZE = 0x7FFFFFFF
FILLER = UNIT.pack(0, FILLER_SIZE, 0)

Units = npt.NDArray[np.void]
Ints = npt.NDArray[np.int64]


def joined(parts: Iterable[Units]) -> Units:
    """Units one after the other, in the byte order of files: numpy's own concatenation makes native integers of
    them."""
    return np.concatenate([np.empty(0, UNIT_TYPE), *parts], dtype=UNIT_TYPE)
