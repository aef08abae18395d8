"""Which queue of a topic a message goes to, and which shard holds that queue. Pure."""

from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from zlib import crc32

from duetime_format import record
from duetime_format.making import topic_field
from duetime_format.names import QUARANTINE_TOPIC, SCHEDULE_TOPIC
from duetime_format.properties import VALUE_END, encode_properties

# Shapes of routes that are remembered.
_SHAPES_MAX = 4_096


def place(topic: str, queue_count: int, shards: Sequence[int]) -> tuple[int, ...]:
    """The shard of each queue of a new topic: spread evenly, from a shard that depends on the name.

    Without the latter, topics with fewer queues than there are shards would all lie on the first ones.
    """
    first = crc32(topic.encode())
    return tuple(shards[(first + queue) % len(shards)] for queue in range(queue_count))


class _Shape:
    """What routes whose queues lie on the same shards share: topics are many, shapes are few."""

    def __init__(self, shards: tuple[int, ...], numbers: tuple[int, ...]) -> None:
        self.shards = shards
        self.queue_count = len(shards)
        self.numbers = numbers
        # Whether a queue has another number on its shard: rare, and such topics are not packed.
        self.renumbered = numbers != tuple(range(self.queue_count))
        # Shard and queue there, by queue.
        self.places = dict(enumerate(zip(shards, numbers, strict=True)))
        # By distinct shard: its queues. As columns of int32 for the packer.
        distinct = sorted(set(shards))
        self.holders = tuple(tuple(queue for queue, holder in enumerate(shards) if holder == one) for one in distinct)
        self.shard_column = array("i", shards).tobytes()
        self.holder_columns = tuple(array("i", holders).tobytes() for holders in self.holders)


_shape = lru_cache(_SHAPES_MAX)(_Shape)


class Route:
    """A topic's queues, the shards they are on, and whose turn it is."""

    __slots__ = (
        "_deferrals",
        "holder_columns",
        "holders",
        "numbers",
        "places",
        "queue_count",
        "renumbered",
        "shard_column",
        "shards",
        "store_hosts",
        "topic",
        "topic_field",
        "turns",
    )

    def __init__(self, topic: str, shards: Sequence[int], numbers: Sequence[int] | None = None) -> None:
        """`numbers`: of each queue on its shard; None: the same as in the topic."""
        self.topic = topic
        self.topic_field = topic_field(topic)
        shape = _shape(tuple(shards), tuple(range(len(shards)) if numbers is None else numbers))
        # By queue.
        self.shards = shape.shards
        self.queue_count = shape.queue_count
        self.numbers = shape.numbers
        self.renumbered = shape.renumbered
        self.places = shape.places
        self.holders = shape.holders
        self.shard_column = shape.shard_column
        self.holder_columns = shape.holder_columns
        # By distinct shard: how many of its messages have taken turns, here and in the packer.
        self.turns = [0] * len(self.holders)
        # Host bytes of the shards that know this topic and can be written to; the shards fill it in.
        self.store_hosts: dict[int, bytes] = {}
        self._deferrals: dict[tuple[int, int], bytes] | None = None

    def choose(self, sharding_key: str, message_id: str) -> int:
        """The queue of a message that names none.

        By sharding key where there is one. Else the message's id chooses the shard, so that a repeated request
        reaches the shard that may have stored the message already, and that shard's queues take turns.
        """
        if sharding_key:
            return crc32(sharding_key.encode()) % self.queue_count
        which = crc32(message_id.encode()) % len(self.holders) if len(self.holders) > 1 else 0
        turn = self.turns[which]
        self.turns[which] = turn + 1
        return self.holders[which][turn % len(self.holders[which])]

    def queue_at(self, shard: int, number: int) -> int:
        """The topic's queue with this number on a shard; the number itself where there is none."""
        return next((queue for queue, place in self.places.items() if place == (shard, number)), number)

    def count_on(self, shard: int) -> int:
        """The queue count that a shard is to know."""
        if not self.renumbered:
            return self.queue_count
        return 1 + max(number for holder, number in self.places.values() if holder == shard)

    def deferral(self, level: int, queue: int) -> bytes:
        """The properties that bring a message back from a lane to a queue of this topic, by its number on the shard; to
        be put after others."""
        if self._deferrals is None:
            self._deferrals = {}
        found = self._deferrals.get((level, queue))
        if found is None:
            properties = encode_properties(record.deferral(level, self.topic, queue))
            found = self._deferrals[level, queue] = VALUE_END + properties
        return found


def shard_places(topic: str, shards: Iterable[int], lane_count: int) -> dict[int, tuple[int, int]] | None:
    """Shard and queue there, by the queue under which clients read a topic that every shard has for itself.

    Such topics have no route in the metadata database. From outside, shard s's one queue of DT_QUARANTINE is queue s;
    the lanes of SCHEDULE_TOPIC_XXXX follow each other, shard by shard. None for other topics.
    """
    counts = {QUARANTINE_TOPIC: 1, SCHEDULE_TOPIC: lane_count}
    count = counts.get(topic)
    if count is None:
        return None
    return {shard * count + queue: (shard, queue) for shard in sorted(shards) for queue in range(count)}
