"""Takes over the messages that groups of a broker have received by POP (duetime_shard.brokers.pops), at a start.

    in a topic                      leased, as the broker had them: until the same time, as the same attempt
    in a retry topic of POP         copied into %RETRY%group, hidden until that time
    unread in a retry topic of POP  copied likewise, visible at once

%RETRY%group_topic exists only for POP. Groups here read %RETRY%group, so the broker's offset in the other one is moved
to its end. All of it is durable on return. After a crash on the way a start finds the same messages again: leases exist
already, and copies are recognised by their origin.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import structlog
from duetime_format import layout, limits, record
from duetime_format.errors import DamagedBytes
from duetime_format.events import PlaceKey
from duetime_format.names import RETRY_PREFIX, retry_topic
from duetime_format.properties import decode_properties, encode_properties
from duetime_format.record import Record
from duetime_format.units import FILLER_SIZE
from duetime_shard.brokers.pops import REVIVE_PREFIX, REVIVERS, Pop, by_place, origin_of

from duetime_store.groups.journal import GroupJournal
from duetime_store.groups.offsets import CommittedOffsets
from duetime_store.groups.state import GroupProgress
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.writing.store import Store

log = structlog.get_logger()

# Messages before a receive that no other receive covers, at most; beyond, the group's offset was reset.
_GAP_MAX = 65_536
_UNITS_AT_ONCE = 1_024


def take_over(store: Store, progress: GroupProgress, offsets: CommittedOffsets, attempts: dict[str, int]) -> None:
    """`attempts`: the most attempts by group. Raises: OSError."""
    taking = _PopTakeover(store, progress, offsets, attempts)
    for (group, topic, number), pops in by_place(offsets.pops).items():
        if origin_of(group, topic) == topic:
            taking.lease(group, topic, number, pops)
    for group, topic in dict.fromkeys((pop.group, pop.queue_topic) for pop in offsets.pops):
        taking.add_places(group, topic)
    moved = taking.copy_retries(offsets.pops)
    if not moved and not offsets.pops:
        return
    for queue in store.queues.all():
        if queue.topic.startswith(REVIVE_PREFIX) and queue.max_offset:
            # A broker that gets the directory back has handled all of it; its offset names the last one.
            moved.setdefault((REVIVERS, queue.topic), {})[queue.queue] = queue.max_offset - 1
    store.stage_events()
    batch = store.take()
    if batch is not None:
        for segment in store.log.write(batch.runs):
            segment.flush()
        store.publish(batch, store.clock.now_ms())
    offsets.took_over(moved)


@dataclass(slots=True)
class _PopTakeover:
    store: Store
    progress: GroupProgress
    offsets: CommittedOffsets
    attempts: dict[str, int]

    def lease(self, group: str, topic: str, number: int, pops: list[Pop]) -> None:
        queue = self.store.queues.known(topic.encode(), number)
        if queue is None or not queue.max_offset:
            log.warning("messages received by POP are gone", group=group, topic=topic, queue=number)
            return
        key = PlaceKey(group, topic, topic, number)
        start = self.offsets.find(group, topic).get(number, queue.min_offset)
        start = min(max(start, queue.min_offset), queue.max_offset)
        place = self.progress.place(key, start)
        frontier = max(place.frontier, start)
        known = set(place.entries)
        open_ = [(one, pop) for pop in pops for one in pop.offsets if _is_in(queue, one) and one not in known]
        received = _covered(pops, frontier)
        end = max([frontier, *(pop.end for pop in pops)])
        if min(end, queue.max_offset) - frontier > _GAP_MAX + len(received):
            # All messages from the group's offset on are new ones for it.
            end, open_ = frontier, [(offset, pop) for offset, pop in open_ if offset < frontier]
        end = min(end, queue.max_offset)
        own = {offset for offset, _ in open_}
        unknown = [one for one in range(frontier, end) if one not in received and one not in own and one not in known]
        if open_ or unknown or end > frontier:
            self._give(key, open_, unknown, min([frontier, *own]), end)
            log.info("messages received by POP taken over", **key._asdict(), count=len(own), offset=end)

    def add_places(self, group: str, topic: str) -> None:
        """Makes the group's places in the topic's other queues: a group that receives has its offsets there."""
        journal = GroupJournal(self.store.journal)
        if not any(key.group == group and key.queue_topic == topic for key in self.progress.places):
            return
        for number, offset in self.offsets.find(group, topic).items():
            key, queue = PlaceKey(group, topic, topic, number), self.store.queues.known(topic.encode(), number)
            if key not in self.progress.places and queue is not None:
                place = self.progress.place(key, min(max(offset, queue.min_offset), queue.max_offset))
                journal.scan(place, place.frontier, place.frontier)

    def _give(self, key: PlaceKey, open_: list[tuple[int, Pop]], unknown: list[int], begin: int, end: int) -> None:
        """Leases messages; the group's offset becomes `end`."""
        progress, place, journal = self.progress, self.progress.places[key], GroupJournal(self.store.journal)
        # The events name everything from there on, so a later start needs no other file.
        journal.scan(place, begin, begin)
        place.frontier, before = begin, begin
        queue = self.store.queues.get_bytes(key.queue_topic.encode(), key.queue)
        for pop, offsets in _by_pop(open_):
            most = self.attempts.get(key.group, limits.DELIVERIES_DEFAULT)
            lease = progress.new_lease(place, pop.popped_at_ms, most, ordered=pop.ordered)
            for attempt, own in self._by_attempt(queue, pop, offsets).items():
                journal.give(lease, own, pop.visible_at_ms, attempt, before, end, ())
                progress.give(lease, own, pop.visible_at_ms, attempt, end)
                before = end
        if unknown:
            now_ms = self.store.clock.now_ms()
            lease = progress.new_lease(place, now_ms, limits.DELIVERIES_DEFAULT)
            journal.give(lease, unknown, now_ms, 1, before, end, ())
            progress.give(lease, unknown, now_ms, 1, end)
            journal.back(place, lease.id, unknown, now_ms, counted=False)
            progress.give_back(place, lease.id, unknown, now_ms, counted=False)
        elif before < end:
            journal.scan(place, before, end)
            place.frontier = end

    def _by_attempt(self, queue: ConsumeQueue, pop: Pop, offsets: list[int]) -> dict[int, list[int]]:
        failed = dict(zip(pop.offsets, pop.failed, strict=False))
        found: dict[int, list[int]] = {}
        for offset in offsets:
            count = failed.get(offset)
            if count is None:
                one = self._record(queue, offset)
                count = one.reconsume_times if one is not None else 0
            found.setdefault(min(count + 1, limits.ATTEMPTS_MAX), []).append(offset)
        return found

    # --- retry topics of POP ----------------------------------------------------------------------------------------

    def copy_retries(self, pops: Iterable[Pop]) -> dict[tuple[str, str], dict[int, int]]:
        """Copies the messages of retry topics. Returns the new offsets by group and topic."""
        moved: dict[tuple[str, str], dict[int, int]] = {}
        places = by_place(pops)
        groups = {pop.group for pop in pops} | self.attempts.keys() | {group for group, _, _, _ in self.offsets.all()}
        for queue in self.store.queues.all():
            found = self._group_of(queue.topic, groups)
            if found is None or not queue.max_offset:
                continue
            group, topic = found
            own = places.get((group, queue.topic, queue.queue), [])
            times = {offset: pop.visible_at_ms for pop in own for offset in pop.offsets}
            start = max(self.offsets.find(group, queue.topic).get(queue.queue, 0), queue.min_offset)
            received = _covered(own, start)
            unread = [one for one in range(start, queue.max_offset) if one not in received]
            offsets = sorted({*unread, *(one for one in times if _is_in(queue, one))})
            if offsets:
                self._copy(queue, group, topic, offsets, times)
                moved.setdefault((group, queue.topic), {})[queue.queue] = queue.max_offset
        return moved

    def _group_of(self, name: str, groups: set[str]) -> tuple[str, str] | None:
        """The group and the topic of a retry topic of POP."""
        if not name.startswith(RETRY_PREFIX):
            return None
        # The longest group counts: a shorter one may have a topic with the rest of the name.
        for at in range(len(name) - 1, len(RETRY_PREFIX), -1):
            group, topic = name[len(RETRY_PREFIX) : at], name[at + 1 :]
            if name[at] in "_+" and group in groups and topic in self.store.queues.counts:
                return group, topic
        return None

    def _copy(self, queue: ConsumeQueue, group: str, topic: str, offsets: list[int], times: dict[int, int]) -> None:
        target = retry_topic(group)
        counts = self.store.queues.counts
        if target not in counts:
            counts.grow(target, 1)
        known = self._origins(target, len(offsets))
        count = 0
        for offset in offsets:
            found = self._record(queue, offset)
            if found is None:
                continue
            copy, origin = _copy_of(found, target, topic, times.get(offset))
            if origin not in known:
                self.store.stage_own(record.encode(copy))
                count += 1
        log.info("retries received by POP copied", group=group, topic=queue.topic, to=target, count=count)

    def _origins(self, target: str, count: int) -> set[str]:
        """The origins of the last records of a retry topic: copies that an earlier start has made."""
        queue = self.store.queues.get_bytes(target.encode(), 0)
        last = range(max(queue.min_offset, queue.max_offset - count), queue.max_offset)
        found = (self._record(queue, offset) for offset in last)
        return {decode_properties(one.properties).get(record.ORIGIN_MESSAGE_ID, "") for one in found if one is not None}

    def _record(self, queue: ConsumeQueue, offset: int) -> Record | None:
        units = queue.read(offset, 1)
        if not len(units):
            return None
        position, size, _ = units[0].tolist()
        if size == FILLER_SIZE:
            return None
        try:
            return record.decode(self.store.read_record(position, size))
        except DamagedBytes as error:
            log.warning("message received by POP can't be read", topic=queue.topic, offset=offset, error=str(error))
            return None


def _copy_of(found: Record, target: str, topic: str, visible_at_ms: int | None) -> tuple[Record, str]:
    """The record for %RETRY%group, and its origin. A message that is received at present has had that attempt."""
    properties = decode_properties(found.properties)
    properties.setdefault(record.RETRY_TOPIC, topic)
    origin = record.offset_message_id(found.store_host, found.position)
    properties[record.ORIGIN_MESSAGE_ID] = origin
    if visible_at_ms is not None:
        properties[record.VISIBLE_AT] = str(visible_at_ms)
    properties = {name: value for name, value in properties.items() if name != record.CRC}
    copy = replace(
        found,
        topic=target,
        queue=0,
        properties=record.with_crc_mark(encode_properties(properties)),
        reconsume_times=found.reconsume_times + (visible_at_ms is not None),
        sys_flag=found.sys_flag & ~layout.SYS_TRANSACTION,
        prepared_transaction_offset=0,
        stored_at_ms=0,
        queue_offset=0,
        position=0,
        magic=layout.MAGIC_V1,
    )
    return copy, origin


def _is_in(queue: ConsumeQueue, offset: int) -> bool:
    return queue.min_offset <= offset < queue.max_offset


def _covered(pops: Iterable[Pop], start: int) -> set[int]:
    """The offsets from `start` on that were received."""
    return {offset for pop in pops for offset in range(max(pop.begin, start, pop.end - _GAP_MAX), pop.end)}


def _by_pop(open_: list[tuple[int, Pop]]) -> Iterator[tuple[Pop, list[int]]]:
    """A message that was received twice counts as the latest receive has it."""
    found: dict[int, tuple[Pop, list[int]]] = {}
    for offset, pop in sorted(dict(open_).items()):
        found.setdefault(id(pop), (pop, []))[1].append(offset)
    return iter(found.values())
