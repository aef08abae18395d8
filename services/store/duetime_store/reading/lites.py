"""Fills the index of lite topics (queues.lites) from the queues of their parent topics.

    at a start    all queues of topics of type LITE, step by step; meanwhile the messages indexed so far are received
    later         each published batch, at once

Messages older than `keep_ms` are indexed at a start only for groups that have a place in the lite topic: others may
have forgotten it, and would read them again.
"""

import asyncio
import struct
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from duetime_core.errors import DueTimeError, InvalidArgument, Violation
from duetime_core.telemetry.logs import sparing
from duetime_format import layout, record
from duetime_format.columns import values
from duetime_format.limits import LITE_CHARS_MAX, SEND_COUNT_MAX
from duetime_format.names import is_lite_topic, lite_key, lite_parent_of
from duetime_format.properties import as_text
from duetime_format.texts import shown
from duetime_format.units import FILLER_SIZE

from duetime_store.lanes.alarm import ShardClock
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.queues.lites import ROUNDS_KEPT, Lites
from duetime_store.queues.queues import Queues
from duetime_store.reading.reader import Reader
from duetime_store.reading.turns import ScanTurns

log = sparing()

LITE = "LITE"
_LITE_TOPIC = record.LITE_TOPIC.encode()
# Units and bytes of one piece.
_PIECE_UNITS = 256
_PIECE_BYTES = 1024 * 1024
# Units of one arrival that are indexed at once; the loop does the others.
_AT_ONCE_UNITS = 4_096
_I64 = struct.Struct(">q")


@dataclass(eq=False, slots=True)
class _FillProgress:
    """The progress in one queue."""

    queue: ConsumeQueue
    offset: int
    # Messages stored before it are indexed only if a group has a place in their lite topic.
    since_ms: int


class LiteReaders(Protocol):
    """The groups that read lite topics."""

    @property
    def placed(self) -> Set[str]:
        """Lite topics in which they had places at the start, by key."""
        ...

    @property
    def arrived(self) -> Callable[[str], None]:
        """Called with the key of a lite topic that has a new message."""
        ...

    def forget(self, unused: Set[str]) -> Set[str]:
        """Forgets the places in unused lite topics; returns those that stay."""
        ...


class LiteFiller:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        queues: Queues,
        clock: ShardClock,
        reader: Reader,
        lites: Lites,
        turns: ScanTurns,
        readers: LiteReaders,
        *,
        keep_ms: int,
    ) -> None:
        self._queues = queues
        self._clock = clock
        self._reader = reader
        self.lites = lites
        self._turns = turns
        self.keep_ms = keep_ms
        self._arrived = readers.arrived
        self._placed = readers.placed
        self._forget = readers.forget
        self._reached: dict[tuple[str, int], _FillProgress] = {}
        self._behind: dict[_FillProgress, None] = {}
        self._late = asyncio.Event()

    # --- queues -----------------------------------------------------------------------------------------------------

    def watch(self, topic: str) -> None:
        """Indexes the queues of a parent topic, from now on with each of their messages."""
        counts = self._queues.counts
        for number in range(counts.get(topic, 0)):
            if (topic, number) not in self._reached:
                queue = self._queues.get_bytes(topic.encode(), number)
                since_ms = self._clock.now_ms() - self.keep_ms
                reached = self._reached[topic, number] = _FillProgress(queue, queue.min_offset, since_ms)
                queue.listen(partial(self._index, reached))
                self._index(reached)

    def is_indexed(self, topic: str, queue: int, offset: int) -> bool:
        """Whether the index knows all messages of the queue up to this one."""
        reached = self._reached.get((topic, queue))
        return reached is not None and reached.offset > offset

    def _drop(self, topic: str) -> None:
        """Forgets a deleted topic."""
        for key in [key for key in self._reached if key[0] == topic]:
            del self._reached[key]
        for lite in [one for one in self.lites if one.startswith(lite_key(topic, ""))]:
            self.lites.forget(lite)

    def open(self, topic: str, names: Sequence[str], caller: str) -> dict[int, DueTimeError]:
        """Makes room for new lite topics of the caller. Returns the errors of rejected ones, by index.

        Raises:
            NotFound, InvalidArgument: no such topic, or too many.
        """
        self._queues.find(topic, 0)
        if len(names) > SEND_COUNT_MAX:
            text = f"{len(names)} lite topics exceed the limit of {SEND_COUNT_MAX}"
            raise InvalidArgument([Violation("lite_topics", text)])
        self.watch(topic)
        refused: dict[int, DueTimeError] = {}
        for index, name in enumerate(names):
            try:
                if not is_lite_topic(name):
                    text = f"{shown(name)} is not 1 to {LITE_CHARS_MAX} characters of [%|a-zA-Z0-9_-]"
                    raise InvalidArgument([Violation("lite_topics", text)])
                self.lites.open(lite_key(topic, name), caller)
            except DueTimeError as error:
                refused[index] = error
        return refused

    def _index(self, reached: _FillProgress) -> None:
        if reached.queue.is_gone:
            self._drop(reached.queue.topic)
            return
        stop = reached.offset + _AT_ONCE_UNITS
        while reached.offset < stop and self._piece(reached):
            pass
        if reached.offset < reached.queue.max_offset:
            self._behind[reached] = None
            self._late.set()

    def _piece(self, reached: _FillProgress) -> bool:
        """Indexes some messages of the queue. Returns whether there were any."""
        queue = reached.queue
        first = max(reached.offset, queue.min_offset)
        if queue.is_gone or first >= queue.max_offset:
            return False
        units = queue.read(first, _PIECE_UNITS)
        sizes = np.where(units["size"] == FILLER_SIZE, 0, units["size"])
        fit = max(int(np.searchsorted(np.cumsum(sizes), _PIECE_BYTES, side="right")), 1)
        units = units[:fit]
        there = np.flatnonzero(units["size"] != FILLER_SIZE)
        offsets = first + there
        records, found, _, _ = self._reader.read(queue, offsets, units[there])
        (names,) = values(records, found, (_LITE_TOPIC,))
        at = 0
        for offset, size, name in zip(offsets.tolist(), found, names, strict=True):
            if name and size:
                self._add(reached, offset, as_text(name), records, at)
            at += size
        reached.offset = first + len(units)
        return True

    def _add(self, reached: _FillProgress, offset: int, name: str, records: bytes, at: int) -> None:
        if not is_lite_topic(name):
            return
        queue = reached.queue
        key = lite_key(queue.topic, name)
        if reached.since_ms:
            head = layout.head_of(records[at : at + layout.HEAD_BYTES_MAX])
            assert head is not None, "the record is intact"
            if _I64.unpack_from(records, at + head.stored_at)[0] >= reached.since_ms:
                # Store times never go back.
                reached.since_ms = 0
            elif key not in self._placed:
                return
        if self.lites.add(key, queue.queue, offset):
            self._arrived(key)
        else:
            log.error("too many lite topics: a message is only in its topic", topic=queue.topic, lite_topic=name)

    # --- the loops --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Indexes the topics of type LITE, and from then on the messages that come faster than `_index` takes them."""
        with self._turns.walk() as walk:
            walk.start_freely()
            for topic, kind in list(self._queues.counts.types.items()):
                if kind == LITE:
                    self.watch(topic)
                    await walk.turn_if_over()
        while True:
            self._late.clear()
            with self._turns.walk() as walk:
                walk.start_freely()
                while self._behind:
                    reached = next(iter(self._behind))
                    if not self._piece(reached):
                        self._behind.pop(reached, None)
                    await walk.turn_if_over()
            await self._late.wait()

    async def sweep(self) -> None:
        """Forgets lite topics that are no longer used, round by round."""
        clock = self._clock
        while True:
            await clock.sleep(self.keep_ms / ROUNDS_KEPT)
            self.lites.round += 1
            with self._turns.walk() as walk:
                walk.start()
                unused = set()
                for key in list(self.lites):
                    self._trim(key)
                    if self.lites.is_unused(key):
                        unused.add(key)
                    await walk.turn_if_over()
            # Some may have been used meanwhile.
            unused = {key for key in unused if self.lites.is_unused(key)}
            for key in unused - self._forget(unused):
                self.lites.forget(key)

    def _trim(self, key: str) -> None:
        lite, topic = self.lites.get(key), lite_parent_of(key)
        for queue in lite.queues if lite is not None else ():
            reached = self._reached.get((topic, queue))
            if lite is not None and reached is not None:
                lite.trim(queue, reached.queue.min_offset)
