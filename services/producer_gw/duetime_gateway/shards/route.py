"""Chooses the queue of a message, and maps queues to shards. Pure."""

from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from zlib import crc32

from duetime_format import priority, record
from duetime_format.lanes import TIMER_LANES_MAX
from duetime_format.making import topic_field
from duetime_format.names import CANCELLED_TOPIC, QUARANTINE_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from duetime_format.properties import NAME_END, VALUE_END, encode_properties

_TIMER_OUT = VALUE_END + record.TIMER_OUT_MS.encode() + NAME_END
# The number in duetime.v1.TopicType.
LITE_TYPE = 5
# Length of generated ids; their last digits, which do not affect the choice of shard.
ID_CHARS = 32
BLOCK_DIGITS = 2
# Cached shapes of routes.
_SHAPES_MAX = 4_096


def place(topic: str, queue_count: int, shards: Sequence[int], message_type: int = 0) -> tuple[int, ...]:
    """The shard of each queue of a new topic: spread evenly, from a first shard that depends on the name.

    Otherwise topics with fewer queues than shards would all be on the first shards. The queues of a topic with
    priorities are on one shard: only that shard knows the highest one with messages.
    """
    first = crc32(topic.encode())
    if message_type == priority.PRIORITY_TYPE:
        return (shards[first % len(shards)],) * queue_count
    return tuple(shards[(first + queue) % len(shards)] for queue in range(queue_count))


class _Shape:
    """The parts shared by routes with the same shards: topics are many, shapes are few."""

    def __init__(self, shards: tuple[int, ...], numbers: tuple[int, ...]) -> None:
        self.shards = shards
        self.queue_count = len(shards)
        self.numbers = numbers
        # Whether a queue has another number on its shard: rare.
        self.renumbered = numbers != tuple(range(self.queue_count))
        # Number of queues at the topic's creation; later ones came with a shard's directory, and are renumbered.
        self.own_count = next((queue for queue, number in enumerate(numbers) if queue != number), len(numbers)) or 1
        # Shard and its queue by the topic's queue.
        self.places = dict(enumerate(zip(shards, numbers, strict=True)))
        # Queues of each distinct shard, also as int32 columns for the packer. Queues added after the topic's creation
        # are left out: a repeated message must reach the shard of the first one (docs/adr/0035).
        own = shards[: self.own_count]
        self.holders = tuple(
            tuple(queue for queue, holder in enumerate(own) if holder == one) for one in sorted(set(own))
        )
        self.shard_column = array("i", shards).tobytes()
        self.holder_columns = tuple(array("i", holders).tobytes() for holders in self.holders)


_shape = lru_cache(_SHAPES_MAX)(_Shape)


class Route:
    """A topic's queues with their shards, and the round-robin state."""

    __slots__ = (
        "_deferrals",
        "_returns",
        "generation",
        "has_priorities",
        "holder_columns",
        "holders",
        "is_lite",
        "is_packed",
        "max_delay_ms",
        "message_type",
        "numbers",
        "own_count",
        "places",
        "queue_count",
        "renumbered",
        "shard_column",
        "shards",
        "store_hosts",
        "timer_lanes",
        "topic",
        "topic_field",
        "turns",
    )

    def __init__(
        self,
        topic: str,
        shards: Sequence[int],
        numbers: Sequence[int] | None = None,
        max_delay_ms: int = 0,
        message_type: int = 0,
        generation: int = 0,
    ) -> None:
        """`numbers`: of each queue on its shard; None: the same as in the topic. `max_delay_ms` 0: ten years.
        `message_type`: permitted to RocketMQ's clients, a number of duetime.v1.TopicType. `generation`: distinguishes a
        topic from a deleted one with its name."""
        self.topic = topic
        self.max_delay_ms = max_delay_ms
        self.message_type = message_type
        self.generation = generation
        self.topic_field = topic_field(topic)
        shape = _shape(tuple(shards), tuple(range(len(shards)) if numbers is None else numbers))
        # Columns by queue.
        self.shards = shape.shards
        self.queue_count = shape.queue_count
        self.numbers = shape.numbers
        self.renumbered = shape.renumbered
        self.own_count = shape.own_count
        self.places = shape.places
        self.has_priorities = message_type == priority.PRIORITY_TYPE
        self.is_lite = message_type == LITE_TYPE
        # Whether the packer knows the queues of messages: a priority or a lite topic chooses its own.
        self.is_packed = not (self.renumbered or self.has_priorities or self.is_lite)
        # Messages without a priority go to the lowest queue.
        self.holders = ((0,),) if self.has_priorities else shape.holders
        self.shard_column = shape.shard_column
        self.holder_columns = shape.holder_columns
        # Round-robin counters of each distinct shard, shared with the packer.
        self.turns = [0] * len(self.holders)
        # Host bytes of the writable shards that know this topic; set by the shards.
        self.store_hosts: dict[int, bytes] = {}
        # Number of lanes for any time by shard; a missing shard has none.
        self.timer_lanes: dict[int, int] = {}
        self._deferrals: dict[tuple[int, int], bytes] | None = None
        self._returns: dict[int, bytes] | None = None

    def forget(self, shard: int) -> None:
        """Called when the shard may have lost the topic."""
        self.store_hosts.pop(shard, None)
        self.timer_lanes.pop(shard, None)

    def choose_for_key(self, key: str) -> int:
        """The queue for messages with a key: stable, even if the route grows."""
        return 0 if self.has_priorities else crc32(key.encode()) % self.own_count

    def choose_for_priority(self, value: int) -> int:
        """The queue of a priority, among the queues from the topic's creation."""
        return priority.queue_of(value, self.own_count)

    def choose(self, sharding_key: str, message_id: str) -> int:
        """The queue for a message that names none and replaces none.

        A sharding key decides, if there is one. Otherwise the message's id selects the shard, and its queues take
        turns: a repeated send must reach the shard of the first one. Both select among the queues from the topic's
        creation.
        """
        if sharding_key:
            return self.choose_for_key(sharding_key)
        which = crc32(_block_of(message_id).encode()) % len(self.holders) if len(self.holders) > 1 else 0
        turn = self.turns[which]
        self.turns[which] = turn + 1
        return self.holders[which][turn % len(self.holders[which])]

    def goes_on(self, message_id: str, before: str) -> bool:
        """Whether a message of a pack uses the previous one's queue instead of taking a turn."""
        return len(self.holders) == 1 or _block_of(message_id) == _block_of(before)

    def queue_at(self, shard: int, number: int) -> int:
        """The topic's queue with this number on a shard; the number itself if there is none."""
        return next((queue for queue, place in self.places.items() if place == (shard, number)), number)

    def count_on(self, shard: int) -> int:
        """The queue count to announce to a shard."""
        if not self.renumbered:
            return self.queue_count
        return 1 + max(number for holder, number in self.places.values() if holder == shard)

    def deferral(self, level: int, queue: int) -> bytes:
        """Encoded properties that return a message from a lane to a queue of this topic, given by its number on the
        shard; to be appended to others."""
        if self._deferrals is None:
            self._deferrals = {}
        found = self._deferrals.get((level, queue))
        if found is None:
            properties = encode_properties(record.deferral(level, self.topic, queue))
            found = self._deferrals[level, queue] = VALUE_END + properties
        return found

    def timer_deferral(self, out: bytes, queue: int) -> bytes:
        """As `deferral`, for a lane for any time. `out`: the value of TIMER_OUT_MS (record.timer_out)."""
        return _TIMER_OUT + out + self.destination(queue)

    def destination(self, queue: int) -> bytes:
        """Encoded properties that name a queue of this topic by its number on the shard; to be appended to others."""
        if self._returns is None:
            self._returns = {}
        found = self._returns.get(queue)
        if found is None:
            real = {record.REAL_TOPIC: self.topic, record.REAL_QID: str(queue)}
            found = self._returns[queue] = VALUE_END + encode_properties(real)
        return found


def _block_of(message_id: str) -> str:
    """The part of an id that selects the shard: shared by 256 consecutive ids."""
    return message_id[:-BLOCK_DIGITS] if len(message_id) == ID_CHARS else message_id


def shard_places(topic: str, shards: Iterable[int], lane_count: int) -> dict[int, tuple[int, int]] | None:
    """Shard and its queue, by public queue, for topics that every shard has for itself.

    Such topics have no route in the metadata database. Publicly, shard s's one queue of DT_QUARANTINE or DT_CANCELLED
    is queue s. The lanes of SCHEDULE_TOPIC_XXXX are numbered shard after shard, as are those of rmq_sys_wheel_timer,
    sixteen per shard. None for other topics.
    """
    counts = {QUARANTINE_TOPIC: 1, CANCELLED_TOPIC: 1, SCHEDULE_TOPIC: lane_count, TIMER_TOPIC: TIMER_LANES_MAX}
    count = counts.get(topic)
    if count is None:
        return None
    return {shard * count + queue: (shard, queue) for shard in sorted(shards) for queue in range(count)}
