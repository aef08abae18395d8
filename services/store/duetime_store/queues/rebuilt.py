"""The result of rebuilding units of a queue from the log."""

from dataclasses import dataclass, field

import numpy as np
from duetime_format.lanes import LANE_TOPICS
from duetime_format.units import FILLER_SIZE, UNIT_TYPE, Ints, Units, dues_of


@dataclass(slots=True)
class Rebuilt:
    """The result for `count` units: indices of those whose offset has one already, and of those that can't be right."""

    count: int
    repeated: list[int] = field(default_factory=list)
    strays: list[int] = field(default_factory=list)


def fillers_between(topic: str, gap: range, offsets: Ints, units: Units) -> bytes:
    """Fillers for offsets of which the log has nothing but copies of others, at `offsets`.

    Retention copies all that is pending: in a lane the others have ended, and say so by the due time of the copy after
    them."""
    fillers = np.zeros(len(gap), UNIT_TYPE)
    fillers["size"] = FILLER_SIZE
    if topic in LANE_TOPICS:
        after = np.minimum(np.searchsorted(offsets, np.array(gap)), len(offsets) - 1)
        fillers["tags"] = -dues_of(units["tags"])[after]
    return fillers.tobytes()
