"""Messages at the log's front that a group has not read yet: they are not deleted to make room."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from duetime_store.groups.offsets import CommittedOffsets
from duetime_store.groups.state import GroupProgress
from duetime_store.queues.lites import Lites
from duetime_store.queues.queues import Queues


class UnreadMessage(NamedTuple):
    """A group's first message that is not done."""

    group: str
    topic: str
    queue: int
    offset: int


# Finds, place after place, unread messages before a log position; None: this place has none.
FindUnread = Callable[[int], Iterator[UnreadMessage | None]]


def unread(queues: Queues, progress: GroupProgress, offsets: CommittedOffsets, lites: Lites) -> FindUnread:
    """The function that finds unread messages of groups that receive, and of those that only commit offsets. Groups
    without a place in a queue are unknown here: they have no messages in it to lose."""

    def find(end: int) -> Iterator[UnreadMessage | None]:
        for group, topic, queue, offset in _places(progress, offsets, lites):
            found = queues.known(topic.encode(), queue)
            before = False
            if found is not None:
                units = found.read(max(offset, found.min_offset), 1)
                before = bool(len(units)) and bool(units["position"][0] < end)
            yield UnreadMessage(group, topic, queue, offset) if before else None

    return find


def _places(progress: GroupProgress, offsets: CommittedOffsets, lites: Lites) -> Iterator[UnreadMessage]:
    receiving = set()
    for key, place in list(progress.places.items()):
        if key.is_lite:
            lite = lites.get(key.topic)
            for first in lite.after(key.queue, place.committed, 1) if lite is not None else ():
                yield UnreadMessage(key.group, key.queue_topic, key.queue, first)
            continue
        receiving.add((key.group, key.queue_topic, key.queue))
        yield UnreadMessage(key.group, key.queue_topic, key.queue, place.committed)
    # The file has only the state of the last checkpoint for groups that receive.
    for group, topic, queue, offset in offsets.all():
        if (group, topic, queue) not in receiving:
            yield UnreadMessage(group, topic, queue, offset)
