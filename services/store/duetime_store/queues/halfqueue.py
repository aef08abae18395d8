"""The queue of half messages: their units and pending marks, and so the existing messages and their ends.

    unit     i64 position | i32 size | i64 tagsCode: the hash of the tag, or the end (duetime_format.halves)

A mark of an end is written once the end is durable in the log. If the disk rejects it, it waits in memory, and no
checkpoint is made without it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from duetime_format.halves import GIVEN_UP, are_ended, end_tag, ends_of
from duetime_format.names import HALF_TOPIC
from duetime_format.units import FILLER_SIZE, UNIT, UNIT_TYPE, Ints, Mask, Units

from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.queues.queues import Queues

_TOPIC = HALF_TOPIC.encode()


class HalfOutcome(NamedTuple):
    """The end of a half message, and the log position of its record."""

    code: int
    position: int


class HalfQueue:
    """The half messages of a shard. Belongs to the event loop's thread."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        # The tagsCodes of ends, by offset.
        self._staged: dict[int, int] = {}
        self._unwritten: dict[int, int] = {}

    @property
    def queue(self) -> ConsumeQueue | None:
        """None: there never was a half message."""
        return self._queues.known(_TOPIC, 0)

    @property
    def is_even(self) -> bool:
        """Whether all durable ends are marked."""
        return not self._unwritten

    def units(self, offsets: Ints) -> Units:
        """Published units at offsets in any order, with waiting marks; size 0: no half message."""
        queue = self.queue
        if queue is None or not len(offsets):
            return np.zeros(len(offsets), UNIT_TYPE)
        units = queue.read_at(offsets).copy()
        units["size"][(offsets < queue.min_offset) | (units["size"] == FILLER_SIZE)] = 0
        if self._unwritten:
            for index in np.flatnonzero(np.isin(offsets, list(self._unwritten))).tolist():
                units["tags"][index] = self._unwritten[int(offsets[index])]
        return units

    def staged_positions(self, offsets: Sequence[int]) -> list[int]:
        """Positions of the records of half messages, staged ones included; -1: there are none."""
        queue = self.queue
        if queue is None or not offsets:
            return [-1] * len(offsets)
        units = self.units(np.array(offsets, np.int64))
        found: list[int] = np.where(units["size"] > 0, units["position"], -1).tolist()
        for index, offset in enumerate(offsets):
            at = (offset - queue.max_offset) * UNIT.size
            if 0 <= at < len(queue.staged):
                found[index], _, _ = UNIT.unpack_from(queue.staged, at)
        return found

    def tags(self, offsets: Ints, units: Units) -> Ints:
        """The tagsCodes of `units`, including staged ends."""
        tags = units["tags"].astype(np.int64)
        for index in np.flatnonzero(self.are_staged(offsets)).tolist():
            tags[index] = self._staged[int(offsets[index])]
        return tags

    @staticmethod
    def ends(tags: Ints) -> list[HalfOutcome | None]:
        """The ends of half messages, by their tagsCodes; None: they are open."""
        ended, (codes, positions) = are_ended(tags), ends_of(tags)
        return [
            HalfOutcome(code, position) if is_ended else None
            for is_ended, code, position in zip(ended.tolist(), codes.tolist(), positions.tolist(), strict=True)
        ]

    def end_at(self, offset: int) -> HalfOutcome | None:
        """The end of a half message, including staged ones; None: it is open."""
        offsets = np.array([offset], np.int64)
        (end,) = self.ends(self.tags(offsets, self.units(offsets)))
        return end

    def published(self, offset: int) -> tuple[int, int, HalfOutcome | None]:
        """Position and size of a half message, 0 if it does not exist, and its durable end."""
        units = self.units(np.array([offset], np.int64))
        position, size, _ = units[0].item()
        (end,) = self.ends(units["tags"])
        return position, size, end

    def are_open(self, offsets: Ints) -> Mask:
        """Whether half messages exist and have no end, not even a staged one."""
        units = self.units(offsets)
        opened: Mask = (units["size"] > 0) & ~are_ended(units["tags"]) & ~self.are_staged(offsets)
        return opened

    def are_staged(self, offsets: Ints) -> Mask:
        """Whether half messages have a staged end."""
        return np.isin(offsets, list(self._staged)) if self._staged else np.zeros(len(offsets), np.bool_)

    def stage(self, tags: Mapping[int, int]) -> None:
        """Stages ends of half messages, by offset: all later answers contain them."""
        self._staged.update(tags)

    def publish(self, tags: Mapping[int, int]) -> None:
        """Makes staged ends permanent and marks them. Raises: OSError: their marks wait in memory."""
        self._unwritten.update(tags)
        staged = self._staged
        for offset, tag in tags.items():
            # One that was given up may have another end staged by now.
            if staged.get(offset) == tag:
                del staged[offset]
        self.write()

    def undo(self) -> None:
        """Takes back all staged ends."""
        self._staged.clear()

    def mark(self, ends: Mapping[int, HalfOutcome]) -> None:
        """Recovery: marks half messages that have ended according to the log. One that was given up may have another
        end later."""
        queue = self.queue
        offsets = np.array(sorted(ends), np.int64)
        units = self.units(offsets)
        known_ends = self.ends(self.tags(offsets, units))
        for offset, known, size in zip(offsets.tolist(), known_ends, units["size"].tolist(), strict=True):
            end = ends[offset]
            if queue is None or not size or known == end:
                continue
            if known is None or known.code == GIVEN_UP or known.position >= end.position:
                self._unwritten[offset] = end_tag(*end)

    def mark_tags(self, offsets: Ints, tags: Ints) -> None:
        """As `mark`, by tagsCodes of half messages without a mark."""
        self._unwritten.update(zip(offsets.tolist(), tags.tolist(), strict=True))

    def write(self) -> None:
        """Writes the waiting marks. Raises: OSError: they still wait."""
        queue = self.queue
        if not self._unwritten or queue is None:
            return
        offsets = np.array(sorted(self._unwritten), np.int64)
        kept = offsets[offsets >= queue.min_offset]
        if len(kept):
            units = queue.read_at(kept).copy()
            units["tags"] = [self._unwritten[offset] for offset in kept.tolist()]
            queue.repoint(kept, units)
        self._unwritten.clear()

    def reopen(self, offsets: Ints, tags: Ints) -> None:
        """Recovery: removes marks whose records the log has lost. Raises: OSError."""
        queue = self.queue
        if queue is not None and len(offsets):
            units = queue.read_at(offsets).copy()
            units["tags"] = tags
            queue.repoint(offsets, units)
