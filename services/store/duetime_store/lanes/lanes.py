"""All lanes of a shard."""

from collections.abc import Iterator

from duetime_core.errors import NotFound

from duetime_store.lanes.lane import ShardLane
from duetime_store.lanes.timerlane import TimerLane
from duetime_store.queues.consumequeue import ConsumeQueue


class ShardLanes:
    """The lanes by number, and by the queue that holds their entries."""

    def __init__(self) -> None:
        self._by_number: dict[int, ShardLane] = {}
        self._by_queue: dict[ConsumeQueue, ShardLane] = {}

    def add(self, lane: ShardLane) -> None:
        """Lanes must be added in the order of their numbers."""
        self._by_number[lane.number] = lane
        self._by_queue[lane.queue] = lane

    def close(self) -> None:
        for lane in self.timers():
            lane.close()

    def timers(self) -> list[TimerLane]:
        """Lanes of messages for any time."""
        return [lane for lane in self if isinstance(lane, TimerLane)]

    def __iter__(self) -> Iterator[ShardLane]:
        return iter(self._by_number.values())

    def __contains__(self, number: int) -> bool:
        return number in self._by_number

    def __getitem__(self, number: int) -> ShardLane:
        """Raises: NotFound."""
        lane = self._by_number.get(number)
        if lane is None:
            raise NotFound(f"lane {number} is not one of {list(self._by_number)}", reason="LANE_NOT_FOUND")
        return lane

    def of(self, queue: ConsumeQueue) -> ShardLane | None:
        """The lane whose entries the queue holds."""
        return self._by_queue.get(queue)
