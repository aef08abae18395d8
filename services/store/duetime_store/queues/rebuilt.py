"""The result of rebuilding units of a queue from the log."""

from dataclasses import dataclass, field

import numpy as np
from duetime_format.lanes import LANE_TOPICS
from duetime_format.units import FILLER_SIZE, UNIT_TYPE, Ints, Units, dues_of


@dataclass(slots=True)
class Rebuilt:
    """The result for `count` units: indices of those whose offset is taken already, and of those that must be wrong."""

    count: int
    repeated: list[int] = field(default_factory=list)
    strays: list[int] = field(default_factory=list)


def fillers_between(topic: str, gap: range, offsets: Ints, units: Units) -> bytes:
    """Fillers for offsets of which the log has only copies of others, at `offsets`.

    Retention copies all pending messages: in a lane the others have ended, and their fillers show that by the due time
    of the copy after them."""
    fillers = np.zeros(len(gap), UNIT_TYPE)
    fillers["size"] = FILLER_SIZE
    if topic in LANE_TOPICS:
        after = np.minimum(np.searchsorted(offsets, np.array(gap)), len(offsets) - 1)
        fillers["tags"] = -dues_of(units["tags"])[after]
    return fillers.tobytes()
