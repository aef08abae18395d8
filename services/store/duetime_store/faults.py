"""Why records of a put are refused for good."""

import numpy as np
from duetime_core import record
from duetime_core.names import SCHEDULE_TOPIC

from duetime_store.intake import Intake

_LANE_TOPIC = SCHEDULE_TOPIC.encode()


def faults_of(intake: Intake, highest: int, size_max: int, *, restoring: bool) -> dict[int, str]:
    """By index. `highest`: of the levels; `size_max`: most bytes of a record."""
    faults: dict[int, str] = {}
    if intake.entries is not None and not restoring:
        for index in np.flatnonzero(intake.entries[0] >= 0).tolist():
            faults[index] = f"property {record.LANE_ENTRY} is the store's own"
    of_keys = [_key_fault(topic, queue_id, highest, restoring=restoring) for topic, queue_id in intake.keys]
    if any(of_keys):
        for index, number in enumerate(intake.key_of.tolist()):
            if of_keys[number]:
                faults[index] = of_keys[number]
    if len(intake.data) > size_max:
        for index in np.flatnonzero(intake.sizes > size_max).tolist():
            size = int(intake.sizes[index])
            faults[index] = f"record of {size} bytes; a segment of this shard takes {size_max}"
    return faults


def _key_fault(topic: bytes, queue_id: int, highest: int, *, restoring: bool) -> str:
    if queue_id < 0:
        return f"queue {queue_id} is below 0"
    if topic == _LANE_TOPIC:
        if restoring:
            return "a restored record can't enter a lane"
        if queue_id >= highest:
            return f"level {queue_id + 1} is above the highest, {highest}"
    return ""
