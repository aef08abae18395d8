"""The loop that ends leases in time, so that waiters are woken."""

from duetime_core.clock import turn

from duetime_store.groups.groups import GroupRegistry
from duetime_store.lanes.alarm import ClockAlarm


class LeaseExpirer:
    """See the module."""

    def __init__(self, groups: GroupRegistry, alarm: ClockAlarm) -> None:
        self._groups = groups
        self._alarm = alarm

    async def run(self) -> None:
        groups = self._groups
        while True:
            while groups.expire():
                await turn()
            deadline, changed = groups.when_deadline_changes()
            if deadline is not None:
                self._alarm.set(deadline, changed)
            await changed
