"""Dead letters for retry services: those still in a queue of %DLQ%group, forward or backward."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from duetime_core.errors import InvalidArgument, Violation, refuse
from duetime_format.errors import within
from duetime_format.names import DLQ_PREFIX
from duetime_format.texts import shown
from duetime_format.units import FILLER_SIZE
from duetime_shard.gone import GoneDeadLetters
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.queues.queues import Queues
from duetime_store.reading.reader import SCAN_UNITS, SCAN_UNITS_MAX, Reader


@dataclass(slots=True)
class DeadLetterPull:
    """Records, back to back, and the offset of each; the caller continues at `next_offset`."""

    next_offset: int
    max_offset: int
    records: bytes = b""
    offsets: list[int] = field(default_factory=list)


def pull(
    reader: Reader, gone: GoneDeadLetters, queue: ConsumeQueue, offset: int, max_count: int, max_bytes: int
) -> DeadLetterPull:
    """Dead letters from an offset on, the first regardless of its size; damaged ones are logged and skipped.

    Inspects SCAN_UNITS_MAX places at most: if an answer has no letters and its `next_offset` is below `max_offset`, the
    caller should continue.
    """
    pulled = DeadLetterPull(min(max(offset, queue.min_offset), queue.max_offset), queue.max_offset)
    stop = min(pulled.next_offset + SCAN_UNITS_MAX, queue.max_offset)
    while pulled.next_offset < stop and not pulled.offsets:
        first = pulled.next_offset
        units = queue.read(first, min(SCAN_UNITS, stop - first))
        offsets = np.arange(first, first + len(units))
        indices = np.flatnonzero((units["size"] != FILLER_SIZE) & ~gone.among(queue.topic, queue.queue, offsets))
        fit = int(np.searchsorted(units["size"][indices].cumsum(), max_bytes, "right"))
        fit = min(max(fit, 1), max_count, len(indices))
        pulled.next_offset = int(offsets[indices[fit]]) if fit < len(indices) else first + len(units)
        if fit:
            chosen = indices[:fit]
            pulled.records, sizes, _, _ = reader.read(queue, offsets[chosen], units[chosen])
            pulled.offsets = [offset for offset, size in zip(offsets[chosen].tolist(), sizes, strict=True) if size]
    return pulled


def pull_back(
    reader: Reader, gone: GoneDeadLetters, queue: ConsumeQueue, offset: int, before: int, max_count: int, max_bytes: int
) -> DeadLetterPull:
    """The last dead letters before an offset and not below `offset`, oldest first; otherwise as `pull`. The caller
    continues before `next_offset`, until it is `offset`."""
    lowest = max(offset, queue.min_offset)
    pulled = DeadLetterPull(max(min(before, queue.max_offset), lowest), queue.max_offset)
    stop = max(pulled.next_offset - SCAN_UNITS_MAX, lowest)
    while pulled.next_offset > stop and not pulled.offsets:
        end = pulled.next_offset
        first = max(end - SCAN_UNITS, stop)
        offsets = np.arange(first, end)
        units = queue.read_at(offsets)
        indices = np.flatnonzero((units["size"] != FILLER_SIZE) & ~gone.among(queue.topic, queue.queue, offsets))
        fit = int(np.searchsorted(units["size"][indices[::-1]].cumsum(), max_bytes, "right"))
        fit = min(max(fit, 1), max_count, len(indices))
        chosen = indices[len(indices) - fit :]
        pulled.next_offset = int(offsets[chosen[0]]) if fit < len(indices) else first
        if fit:
            pulled.records, sizes, _, _ = reader.read(queue, offsets[chosen], units[chosen])
            pulled.offsets = [offset for offset, size in zip(offsets[chosen].tolist(), sizes, strict=True) if size]
    if pulled.next_offset <= lowest:
        pulled.next_offset = offset
    return pulled


def live_counts(queues: Queues, gone: GoneDeadLetters) -> dict[str, int]:
    """Dead letters that are neither redriven nor discarded, by group."""
    counts: dict[str, int] = {}
    for queue in list(queues.dead):
        group = queue.topic.removeprefix(DLQ_PREFIX)
        span = queue.max_offset - queue.min_offset
        live = span - gone.count(queue.topic, queue.queue, queue.min_offset, queue.max_offset)
        counts[group] = counts.get(group, 0) + live
    return counts


class DeadLetterCollector(Collector):
    """The number of dead letters of each group at a scrape."""

    def __init__(self, queues: Queues, gone: GoneDeadLetters) -> None:
        self._queues = queues
        self._gone = gone

    def collect(self) -> Iterable[GaugeMetricFamily]:
        letters = GaugeMetricFamily(
            "duetime_store_dead_letters", "Dead letters neither redriven nor discarded", labels=["group"]
        )
        for group, count in sorted(live_counts(self._queues, self._gone).items()):
            letters.add_metric([group], count)
        yield letters


def check_topic(topic: str) -> None:
    """Raises: InvalidArgument: it is not a topic of dead letters."""
    if not topic.startswith(DLQ_PREFIX):
        raise InvalidArgument([Violation("topic", f"{shown(topic)} is not a topic of dead letters: {DLQ_PREFIX}GROUP")])


def check_place(queues: Queues, topic: str, queue: int, offset: int) -> None:
    """Raises: InvalidArgument: no dead letter is or was there. NotFound: no such queue."""
    check_topic(topic)
    found = queues.find(topic, queue)
    refuse(within("offset", offset, 0, found.max_offset - 1, note=f" of queue {queue} of {topic}"))
