"""What groups have not read yet of the log's front: nothing of that is deleted to make room."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from duetime_store.groups.offsets import GroupOffsets
from duetime_store.groups.state import Progress
from duetime_store.queues.queues import Queues


class Unread(NamedTuple):
    """A group's first message that is not done, where that lies in the part of the log that was asked about."""

    group: str
    topic: str
    queue: int
    offset: int


# Looks, place after place, for what lies before a log position; None: nothing of this place.
FindUnread = Callable[[int], Iterator[Unread | None]]


def unread(queues: Queues, progress: Progress, offsets: GroupOffsets) -> FindUnread:
    """Of groups that receive, and of those that only commit offsets. A group without a place in a queue has none of
    its messages to lose: it is not known here."""

    def find(end: int) -> Iterator[Unread | None]:
        for group, topic, queue, offset in _places(progress, offsets):
            found = queues.known(topic.encode(), queue)
            before = False
            if found is not None:
                units = found.read(max(offset, found.min_offset), 1)
                before = bool(len(units)) and bool(units["position"][0] < end)
            yield Unread(group, topic, queue, offset) if before else None

    return find


def _places(progress: Progress, offsets: GroupOffsets) -> Iterator[Unread]:
    receiving = set()
    for key, place in list(progress.places.items()):
        receiving.add((key.group, key.queue_topic, key.queue))
        yield Unread(key.group, key.queue_topic, key.queue, place.committed)
    # Of groups that receive, the file has what was so at the last checkpoint.
    for group, topic, queue, offset in offsets.all():
        if (group, topic, queue) not in receiving:
            yield Unread(group, topic, queue, offset)
