"""The lite topics of a shard: an index of the messages of each, in memory, and no file.

    message ──▶ a queue of its topic, as any other ──▶ its property __LITE_TOPIC ──▶ its place, after those before it

A place is an offset in a queue of the parent topic. All of a lite topic's messages are in one queue; those of a broker
may be in several, in the order of the log. The index is derived: `reading.lites` fills it from the queues, at a start
and as messages come. A lite topic that nobody has written to or asked for in `keep_ms` is forgotten.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from duetime_core.errors import Overloaded
from duetime_core.limits.seats import Seats

from duetime_store.metrics import StoreMetrics

# Bits of an offset in a place; the queue's number is above them.
_OFFSET_BITS = 48
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
# Rounds that a lite topic is kept for after its last use: `keep_ms` has as many.
ROUNDS_KEPT = 8


class LiteTopicsExhausted(Overloaded):
    """The shard has its maximum of lite topics, or the caller its share of them."""

    reason = "LITE_TOPICS_EXHAUSTED"
    retriable = False


class LiteTopicIndex:
    """The places of one lite topic's messages. Many have one message, so a single place is kept as a number."""

    __slots__ = ("_places", "caller", "is_spread", "used")

    def __init__(self, caller: str, used: int) -> None:
        # Whom it counts for; empty: unknown, as since a start.
        self.caller = caller
        # The round of its last use.
        self.used = used
        # Whether its messages are in several queues.
        self.is_spread = False
        # Queue and offset of each message, in order; -1: no message.
        self._places: int | array[int] = -1

    @property
    def count(self) -> int:
        """The number of its messages."""
        return len(self._all())

    def add(self, queue: int, offset: int) -> None:
        place, places = queue << _OFFSET_BITS | offset, self._places
        if not isinstance(places, int):
            self.is_spread |= bool(places) and places[-1] >> _OFFSET_BITS != queue
            places.append(place)
        elif places < 0:
            self._places = place
        else:
            self.is_spread = places >> _OFFSET_BITS != queue
            self._places = array("q", (places, place))

    def _all(self) -> Sequence[int]:
        places = self._places
        return places if not isinstance(places, int) else (places,) if places >= 0 else ()

    @property
    def queues(self) -> Sequence[int]:
        """The queues that have messages of it."""
        places = self._all()
        if self.is_spread:
            return sorted({place >> _OFFSET_BITS for place in places})
        return (places[0] >> _OFFSET_BITS,) if places else ()

    def after(self, queue: int, offset: int, count: int) -> list[int]:
        """Up to `count` offsets in the queue, from `offset` on."""
        places, low = self._all(), queue << _OFFSET_BITS | offset
        if self.is_spread:
            end = (queue + 1) << _OFFSET_BITS
            return [place & _OFFSET_MASK for place in places if low <= place < end][:count]
        at = bisect_left(places, low)
        return [one & _OFFSET_MASK for one in places[at : at + count] if one >> _OFFSET_BITS == queue]

    def unread(self, queue: int, offset: int) -> int:
        """The number of messages in the queue from `offset` on."""
        places = self._all()
        if self.is_spread:
            return len(self.after(queue, offset, len(places)))
        if not places or places[0] >> _OFFSET_BITS != queue:
            return 0
        return len(places) - bisect_left(places, queue << _OFFSET_BITS | offset)

    def has(self, queue: int, offset: int) -> bool:
        return self.after(queue, offset, 1) == [offset]

    def trim(self, queue: int, offset: int) -> None:
        """Drops places before `offset`, which retention has deleted."""
        low, end = queue << _OFFSET_BITS, queue << _OFFSET_BITS | offset
        kept = [place for place in self._all() if not low <= place < end]
        if len(kept) < len(self._all()):
            self._places = kept[0] if len(kept) == 1 else array("q", kept) if kept else -1


class Lites:
    """All lite topics of a shard, by key (names.lite_key)."""

    def __init__(self, topics_max: int, metrics: StoreMetrics) -> None:
        self._topics: dict[str, LiteTopicIndex] = {}
        used, most = metrics.lites, metrics.lites_max
        self._seats = Seats(topics_max, "lite topics exist", error=LiteTopicsExhausted, used=used, most=most)
        self._left_out = metrics.lites_left_out
        self._limit = topics_max
        # The present round; `keep_ms` has ROUNDS_KEPT of them.
        self.round = 0

    def __len__(self) -> int:
        return len(self._topics)

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics)

    def get(self, key: str) -> LiteTopicIndex | None:
        return self._topics.get(key)

    def open(self, key: str, caller: str) -> None:
        """Makes room for a new lite topic. Raises: LiteTopicsExhausted."""
        found = self._topics.get(key)
        if found is not None:
            found.used = self.round
            return
        self._seats.take(caller)
        self._topics[key] = LiteTopicIndex(caller, self.round)

    def add(self, key: str, queue: int, offset: int) -> bool:
        """Adds a message. Returns whether its lite topic is there: one that no caller has opened counts for nobody, up
        to the shard's limit."""
        found = self._topics.get(key)
        if found is None:
            if len(self._topics) >= self._limit:
                self._left_out.inc()
                return False
            self._seats.hold("")
            found = self._topics[key] = LiteTopicIndex("", self.round)
        found.add(queue, offset)
        found.used = self.round
        return True

    def use(self, key: str) -> LiteTopicIndex | None:
        """The lite topic, which is in use now."""
        found = self._topics.get(key)
        if found is not None:
            found.used = self.round
        return found

    def is_unused(self, key: str) -> bool:
        """Whether nobody has used it for all the rounds."""
        found = self._topics.get(key)
        return found is None or self.round - found.used > ROUNDS_KEPT

    def forget(self, key: str) -> None:
        found = self._topics.pop(key, None)
        if found is not None:
            self._seats.give(found.caller)
