"""Topics that take nothing more: those that are deleted, and those that are about to be.

A gateway that has not heard of a deletion goes on sending. So a deleted topic takes nothing until it is announced by a
higher generation than that of the deleted one, which only a topic that was made since has.
"""

from collections.abc import Iterable

import numpy as np
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, NotFound, Unavailable
from duetime_format.lanes import LANE_TOPIC_NAMES

from duetime_store.log.intake import Intake
from duetime_store.queues.queues import Queues

# How long a topic stays closed without being deleted: a gateway may have died meanwhile.
CLOSED_MS = 60_000


class Closing:
    """Belongs to the event loop's thread."""

    def __init__(self, queues: Queues, clock: Clock) -> None:
        self._queues = queues
        self._clock = clock
        # Until when (monotonic).
        self._closed: dict[str, float] = {}

    def close(self, topic: str) -> None:
        self._closed[topic] = self._clock.monotonic_ms() + CLOSED_MS

    def open(self, topic: str) -> None:
        self._closed.pop(topic, None)

    def is_deleted(self, topic: str) -> bool:
        """Whether it was deleted, and none of its name was made since."""
        return topic not in self._queues.counts and self._queues.deletions.get(topic) is not None

    def refusal(self, topic: str) -> DueTimeError | None:
        """Why it takes no messages; None: it does."""
        until_ms = self._closed.get(topic)
        if until_ms is not None and self._clock.monotonic_ms() < until_ms:
            return Unavailable(f"topic {topic} is being deleted", reason="TOPIC_CLOSED")
        if until_ms is not None:
            del self._closed[topic]
        return deleted(topic) if self.is_deleted(topic) else None

    def announced(self, topic: str, generation: int) -> DueTimeError | None:
        """Why a topic of this generation is not made; None: it may be."""
        known = self._queues.deletions.get(topic)
        if known is not None and generation <= known.generation:
            return deleted(topic)
        return self.refusal(topic) if topic in self._closed else None

    def faults(self, intake: Intake) -> dict[int, DueTimeError]:
        """By index of a put's record: why its topic, or its destination, takes no messages."""
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
        """As `faults`, of commits, which take a topic that is only about to be deleted for there."""
        found = self.faults(intake)
        return {index: error.text for index, error in found.items() if isinstance(error, NotFound)}

    def _refusals(self, topics: Iterable[bytes]) -> dict[int, DueTimeError]:
        refusals = {number: self.refusal(topic.decode("utf-8", "replace")) for number, topic in enumerate(topics)}
        return {number: error for number, error in refusals.items() if error is not None}


def _rows(column: "np.typing.NDArray[np.integer]", refused: dict[int, DueTimeError]) -> dict[int, DueTimeError]:
    rows = np.flatnonzero(np.isin(column, list(refused))) if refused else ()
    return {int(index): refused[int(column[index])] for index in rows}


def deleted(topic: str) -> NotFound:
    """Of a topic that was deleted."""
    return NotFound(f"topic {topic} was deleted", reason="TOPIC_NOT_FOUND")
