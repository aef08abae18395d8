"""Deletions of topics. The body of a record of DT_DELETED, queue 0: JSON.

    {"topic": "orders", "generation": 3, "begins": [1700, 0]}

The deletion covers all records of the topic before it in the log. A queue of a new topic with the same name continues
where the old one ended: `begins` has its first offset, by queue; further queues begin at 0. So no reader's offset in
the old queue is within the new one, and no offset is higher than the log is long.
"""

import json
from typing import NamedTuple

from duetime_format.errors import DamagedBytes


class Deletion(NamedTuple):
    """One deletion. `position` is the record's log position; `generation` is the deleted topic's."""

    topic: str
    generation: int
    begins: tuple[int, ...]
    position: int = 0

    def begin(self, queue: int) -> int:
        """The first offset of a queue of a new topic with this name."""
        return self.begins[queue] if queue < len(self.begins) else 0

    def encode(self) -> bytes:
        return json.dumps({"topic": self.topic, "generation": self.generation, "begins": self.begins}).encode()


def decode(body: bytes, position: int) -> Deletion:
    """Raises: DamagedBytes: the bytes are not a deletion."""
    try:
        found = json.loads(body)
        topic, generation, begins = found["topic"], found["generation"], found["begins"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedBytes("it is not a deletion of a topic") from error
    if type(topic) is not str or not topic or not isinstance(begins, list) or not _are_numbers(generation, *begins):
        raise DamagedBytes("it is not a deletion of a topic")
    return Deletion(topic, generation, tuple(begins), position)


def _are_numbers(*values: object) -> bool:
    return all(type(value) is int and value >= 0 for value in values)
