"""Hashes of tags by offset: a broker's tagsCodes for records where DueTime has due times or ends."""

import numpy as np
from duetime_format.columns import Ints, RecordRun
from duetime_format.names import HALF_TOPIC, TIMER_TOPIC
from duetime_shard.walk import Item

_TOPICS = {topic.encode(): topic for topic in (TIMER_TOPIC, HALF_TOPIC)}


class TagHashes:
    """Takes the records of a log; those of TOPICS count."""

    TOPICS = frozenset(_TOPICS.values())

    def __init__(self) -> None:
        # Offsets and hashes, in runs, by topic and queue.
        self._found: dict[tuple[str, int], list[tuple[Ints, Ints]]] = {}

    def see(self, item: Item) -> None:
        if isinstance(item, RecordRun):
            for number, (topic, queue) in enumerate(item.keys):
                if topic in _TOPICS:
                    own = item.key_of == number
                    self._found.setdefault((_TOPICS[topic], queue), []).append(
                        (item.offsets[own], item.tags_codes[own])
                    )

    def of(self, topic: str, queue: int, offsets: Ints) -> Ints:
        """The hash of each record's tag; 0 without a tag or record."""
        hashes = np.zeros(len(offsets), np.int64)
        if not len(offsets):
            return hashes
        low, high = int(offsets.min()), int(offsets.max()) + 1
        table = np.zeros(high - low, np.int64)
        for own, codes in self._found.get((topic, queue), ()):
            inside = (own >= low) & (own < high)
            table[own[inside] - low] = codes[inside]
        return table[offsets - low]
