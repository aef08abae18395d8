"""Topics that take no messages: deleted ones, and those about to be deleted.

A gateway keeps sending until it learns of a deletion. A deleted topic therefore stays closed until it is announced with
a higher generation than the deleted one, which only a topic created since has.
"""

from collections.abc import Iterable

import numpy as np
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, NotFound, Unavailable
from duetime_format.lanes import LANE_TOPIC_NAMES

from duetime_store.log.intake import Intake
from duetime_store.queues.queues import Queues

# A topic that is not deleted within this time reopens: the deleting gateway may have died.
CLOSED_MS = 60_000


class ClosedTopics:
    """The closed and deleted topics of a shard. Belongs to the event loop's thread."""

    def __init__(self, queues: Queues, clock: Clock) -> None:
        self._queues = queues
        self._clock = clock
        # Monotonic time at which each topic reopens.
        self._closed: dict[str, float] = {}

    def close(self, topic: str) -> None:
        self._closed[topic] = self._clock.monotonic_ms() + CLOSED_MS

    def open(self, topic: str) -> None:
        self._closed.pop(topic, None)

    def is_deleted(self, topic: str) -> bool:
        """Whether it was deleted and not created again."""
        return topic not in self._queues.counts and self._queues.deletions.get(topic) is not None

    def refusal(self, topic: str) -> DueTimeError | None:
        """The reason it takes no messages, if there is one."""
        until_ms = self._closed.get(topic)
        if until_ms is not None and self._clock.monotonic_ms() < until_ms:
            return Unavailable(f"topic {topic} is being deleted", reason="TOPIC_CLOSED")
        if until_ms is not None:
            del self._closed[topic]
        return deleted(topic) if self.is_deleted(topic) else None

    def announced(self, topic: str, generation: int) -> DueTimeError | None:
        """The reason a topic of this generation may not be created, if there is one."""
        known = self._queues.deletions.get(topic)
        if known is not None and generation <= known.generation:
            return deleted(topic)
        return self.refusal(topic) if topic in self._closed else None

    def faults(self, intake: Intake) -> dict[int, DueTimeError]:
        """Errors of a put's records, by index: the topic or destination takes no messages."""
        if not self._closed and not self._queues.deletions:
            return {}
        found: dict[int, DueTimeError] = {}
        by_key = self._refusals(topic for topic, _ in intake.keys)
        if by_key:
            found.update(_rows(intake.key_of, by_key))
        if any(topic in LANE_TOPIC_NAMES for topic, _ in intake.keys):
            found.update(_rows(intake.real_of, self._refusals(intake.destinations)))
        return found

    def deleted_faults(self, intake: Intake) -> dict[int, str]:
        """As `faults`, for commits. A topic that is only about to be deleted still takes them."""
        found = self.faults(intake)
        return {index: error.text for index, error in found.items() if isinstance(error, NotFound)}

    def _refusals(self, topics: Iterable[bytes]) -> dict[int, DueTimeError]:
        refusals = {number: self.refusal(topic.decode("utf-8", "replace")) for number, topic in enumerate(topics)}
        return {number: error for number, error in refusals.items() if error is not None}


def _rows(column: "np.typing.NDArray[np.integer]", refused: dict[int, DueTimeError]) -> dict[int, DueTimeError]:
    rows = np.flatnonzero(np.isin(column, list(refused))) if refused else ()
    return {int(index): refused[int(column[index])] for index in rows}


def deleted(topic: str) -> NotFound:
    """The error for a deleted topic."""
    return NotFound(f"topic {topic} was deleted", reason="TOPIC_NOT_FOUND")
