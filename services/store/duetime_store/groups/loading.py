"""Loads groups at a start: the snapshot, then the journal's events since.

1. The snapshot is read; a missing or damaged one counts as empty.
2. The journal's records are applied from the snapshot's offset on, or all there are. A place without its first event
   begins with its offset in consumerOffset.json, or with the first remaining message.
3. Offsets outside the queues as they are in the log are dropped.
4. If a broker wrote consumerOffset.json last, all messages before its offsets are done: in each queue the later of the
   two counts, and none moves back. That is journaled. Messages that its groups have received by POP become theirs here
   (pops.py).
5. Leases and dead letters ended by a record that the log lacks, or has torn, are reopened. That is journaled at once,
   before everything else, since another record now takes that record's place in its queue.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog
from duetime_format import record
from duetime_format.errors import DamagedBytes
from duetime_format.events import Letter, PlaceKey
from duetime_format.lanes import lane_of
from duetime_format.names import GROUPS_TOPIC
from duetime_format.units import FILLER_SIZE, are_ended
from duetime_shard.gone import GoneDeadLetters

from duetime_store.files import configs
from duetime_store.groups import pops, snapshot
from duetime_store.groups.journal import GroupJournal
from duetime_store.groups.offsets import CommittedOffsets
from duetime_store.groups.replay import GroupReplay
from duetime_store.groups.state import GroupProgress
from duetime_store.groups.subscription_groups import most_attempts
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.writing.store import Store

log = structlog.get_logger()

_TOPIC = GROUPS_TOPIC.encode()
_UNITS_AT_ONCE = 1_024


@dataclass(slots=True)
class LoadedGroups:
    """The state of groups, and the damage found while loading it."""

    progress: GroupProgress
    gone: GoneDeadLetters
    events: int = 0
    faults: int = 0


def load(path: Path, store: Store, offsets: CommittedOffsets) -> LoadedGroups:
    """The state according to the snapshot at `path` and the log."""
    faults = 0
    loaded = None
    try:
        loaded = snapshot.read(path)
    except (DamagedBytes, OSError) as error:
        faults += 1
        log.error("snapshot of groups damaged, the journal is read from its start", file=path.name, error=str(error))
    if loaded is None:
        loaded = snapshot.GroupSnapshot(0, GroupProgress(), GoneDeadLetters())
    progress, gone = loaded.progress, loaded.gone
    queue = store.queues.known(_TOPIC, 0)
    if queue is not None and queue.max_offset:
        replay = GroupReplay(
            progress,
            gone,
            lambda topic, number: _ends(store, topic, number),
            lambda key: _start(offsets, key),
            lambda copy: _is_there(store, copy),
        )
        faults += _replay(store, queue, loaded.journal_offset, replay)
    else:
        replay = GroupReplay(progress, gone, lambda topic, number: (0, 0), lambda key: -1, lambda copy: False)
    _fit(store, progress)
    for topic, number in gone.queues():
        gone.keep(topic, number, *_ends(store, topic, number))
    if offsets.is_brokers:
        _apply_broker_offsets(store, progress, offsets)
        pops.take_over(store, progress, offsets, most_attempts(configs.read(offsets.config, configs.GROUPS)))
    _open_again(store, progress, gone, replay)
    if replay.found.lost_range:
        log.warning("events of groups are lost: messages are redelivered", messages=replay.found.lost_range)
    return LoadedGroups(progress, gone, replay.found.events, faults)


def _ends(store: Store, topic: str, number: int) -> tuple[int, int]:
    queue = store.queues.known(topic.encode(), number)
    return (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)


def _is_there(store: Store, copy: Letter) -> bool:
    """Whether a copy is stored, or was before it left the log. A power cut may keep the event of a copy and later
    records of its queue, and tear the copy. If an earlier start has missed it, a later event opens the lease again."""
    topic, number, offset = copy
    queue = store.queues.known(topic.encode(), number)
    if queue is None or offset >= queue.max_offset:
        return False
    if offset < queue.min_offset:
        return True
    units = queue.read(offset, 1)
    if not len(units):
        return True
    position, size, tags = units[0].item()
    if size == FILLER_SIZE:
        # Entries of a lane that have ended leave fillers with their due times.
        return lane_of(topic, number) is not None and bool(are_ended(np.array([tags]))[0])
    if position < max(store.recovered_from, store.log.min_position):
        return True
    try:
        record.decode(store.read_record(position, size))
    except DamagedBytes:
        return False
    return True


def _start(offsets: CommittedOffsets, key: PlaceKey) -> int:
    return -1 if key.is_lite else offsets.find(key.group, key.queue_topic).get(key.queue, -1)


def _replay(store: Store, queue: ConsumeQueue, first: int, replay: GroupReplay) -> int:
    """Applies the journal from an offset on. Returns the number of unreadable records."""
    faults = 0
    offset = max(min(first, queue.max_offset), queue.min_offset)
    if offset > first:
        log.warning("events of groups are gone", from_offset=first, to_offset=offset)
    while len(units := queue.read(offset, _UNITS_AT_ONCE)):
        for index, (position, size, _) in enumerate(units.tolist()):
            try:
                if size == FILLER_SIZE:
                    raise DamagedBytes("it is missing")
                replay.apply(record.decode(store.read_record(position, size)).body)
            except DamagedBytes as error:
                faults += 1
                log.error("record of group events damaged", offset=offset + index, error=str(error))
        offset += len(units)
    return faults


def _fit(store: Store, progress: GroupProgress) -> None:
    for key, place in list(progress.places.items()):
        if place.frontier < 0:
            progress.forget(place)
            continue
        if place.frontier < store.queues.deletions.begin(key.queue_topic, key.queue):
            # The topic was deleted, or this place is one of its predecessor.
            progress.reset(place, 0)
            progress.forget(place)
            continue
        least, most = _ends(store, key.queue_topic, key.queue)
        if place.frontier > most:
            log.warning("a group is ahead of its queue", **key._asdict(), offset=place.frontier, end=most)
        progress.drop_from(place, most)
        progress.drop_before(place, least)


def _apply_broker_offsets(store: Store, progress: GroupProgress, offsets: CommittedOffsets) -> None:
    """Marks messages as done that a broker has given to groups since."""
    journal = GroupJournal(store.journal)
    for key, place in progress.places.items():
        if key.is_lite:
            # The file's offset is the group's own in the parent topic.
            continue
        known = offsets.find(key.group, key.queue_topic).get(key.queue, 0)
        offset = min(known, _ends(store, key.queue_topic, key.queue)[1])
        if offset <= place.committed:
            continue
        log.info("a broker has served the group since", **key._asdict(), from_offset=place.committed, to_offset=offset)
        done = sorted(one for one in place.entries if one < offset)
        if done:
            progress.end_any(place, done)
            journal.end(place, 0, done)
        if offset > place.frontier:
            journal.scan(place, place.frontier, offset)
            place.frontier = offset


def _open_again(store: Store, progress: GroupProgress, gone: GoneDeadLetters, replay: GroupReplay) -> None:
    journal = GroupJournal(store.journal)
    for place, lease_id, offset in replay.found.open_again:
        hold = place.entries.get(offset)
        if hold is not None and hold.lease is not None and hold.lease.id == lease_id:
            at = place.frontier
            journal.give(hold.lease, [offset], hold.until_ms, hold.attempt, at, at, hold.expired)
    for letter in replay.found.left:
        topic, number, offset = letter
        # A dead letter that another call has taken since is gone.
        if not gone.is_gone(letter):
            journal.left(topic, number, [offset])
    if store.journal.entries:
        store.stage_events()
