"""Rebuilds from the log's records everything that readers use: queue units, watermarks, recent message ids.

A run of plain records is processed as columns, sorted by queue; any other record is a row of the same columns.

Dangerous fields of a damaged record are ignored: its store time would move the clock, its lane entry would
move a watermark. If the place that it names is the queue's next, it keeps that place until an intact record
claims it; otherwise a filler takes its place when the queue continues.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import structlog
from duetime_core.ondisk.facts import facts_of
from duetime_core.ondisk.history import LevelHistory
from duetime_core.ondisk.laneends import EndsReader
from duetime_core.ondisk.levels import TagsCodes
from duetime_core.ondisk.scan import DamagedRecord, Item, Skipped, item_end
from duetime_format import layout
from duetime_format.columns import Ints, Key, Run
from duetime_format.deletions import Deletion
from duetime_format.halves import are_ended
from duetime_format.lanes import LANE_TOPIC_NAMES, LANE_TOPICS, lane_of, level_of
from duetime_format.names import (
    FOREIGN_TOPICS,
    HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    is_name,
)
from duetime_format.plans import Plan
from duetime_format.units import UNIT_TYPE, Mask, Units

from duetime_store.log.recent import RecentIds
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.queues.queues import Queues
from duetime_store.recovery.halfreplay import HalfReplay

log = structlog.get_logger()

_HALF_TOPIC = HALF_TOPIC.encode()
# Maximum rows of plans kept, the newest: far more than were ever promised and not durable.
_PLANNED_MAX = 1 << 18
# Topics whose records retention appends again.
_KEPT_TOPICS = LANE_TOPIC_NAMES | {topic.encode() for topic in FOREIGN_TOPICS}
# Maximum damaged places named one by one; all are counted.
_NAMED_MAX = 1_000
# Maximum step from one store time to the next, when the shard has been idle.
_LEAP_MS_MAX = 86_400_000
# Larger numbers are damage: RocketMQ has no limit, but no broker has a topic with more queues.
_QUEUE_ID_MAX = 65_535


@dataclass(slots=True)
class Damage:
    """Damaged places of the log."""

    count: int = 0
    skipped_bytes: int = 0
    places: list[str] = field(default_factory=list)

    def add(self, position: int, text: str) -> None:
        self.count += 1
        if len(self.places) < _NAMED_MAX:
            self.places.append(f"{position}: {text}")
            log.error("damaged record", position=position, damage=text)


class Replay:
    """Takes in the items of a scan. `before_ms`: the store time of the last record before the replayed ones."""

    def __init__(self, queues: Queues, history: LevelHistory, recent: RecentIds) -> None:
        self._queues = queues
        self._recent = recent
        self._history = history
        self._codes = TagsCodes(history)
        # Ends of lane entries after the checkpoint.
        self.ends = EndsReader()
        # Ends of half messages after the checkpoint.
        self.halves = HalfReplay()
        # The newest plans after the checkpoint, and their times.
        self.plans: deque[tuple[int, Plan]] = deque()
        self._planned_count = 0
        self.before_ms = 0
        # The two largest store times.
        self._latest_ms = [0, 0]
        # The first offset from which only damaged records claim places in the queue so far.
        self._doubtful: dict[Key, int] = {}
        # Places that damaged records hold.
        self._claimed: set[tuple[ConsumeQueue, int]] = set()
        # Position after the last record.
        self.end = 0
        self.record_count = 0
        self.unit_count = 0
        # Records whose queue has another one at their offset: the first one counts.
        self.repeated_count = 0
        self.damage = Damage()

    @property
    def stored_at_ms(self) -> int:
        """The largest store time, without one far from all others: a flipped bit that no CRC covers."""
        before, last = self._latest_ms
        return before if before and last - before > _LEAP_MS_MAX else last

    @property
    def _now_ms(self) -> int:
        """The store time that the walk has reached."""
        return max(self.stored_at_ms, self.before_ms)

    def _see(self, stored_at_ms: Ints) -> None:
        self._latest_ms = np.sort(np.concatenate((self._latest_ms, stored_at_ms)))[-2:].tolist()

    def remember(self, item: Item) -> None:
        """Takes an item before the checkpoint: it is in its queue already, and only its id is needed."""
        if isinstance(item, Skipped):
            self.damage.skipped_bytes += item.size
            self.damage.add(item.position, item.damage)
        elif isinstance(item, DamagedRecord):
            self.end = item_end(item)
            self.record_count += 1
            self.damage.add(item.position, item.damage)
        elif isinstance(item, Run):
            self.end = item.end_position
            self.record_count += item.count
            self._see(item.stored_at_ms)
            # Restored records are not sends; those that name the entry they replace are.
            sent = item.id_hashes >= 0
            if item.entries is not None:
                sent &= (item.entries[0] < 0) | item.within(LANE_TOPIC_NAMES)
            self._recent.add_all(item.id_hashes[sent], item.positions[sent], self.stored_at_ms)

    def replay(self, item: Item) -> None:
        """Takes an item after the checkpoint and rebuilds its units."""
        before_ms = self._now_ms
        self.remember(item)
        if isinstance(item, Run):
            self.halves.see(item)
            self._replay_run(item, before_ms)
        elif isinstance(item, DamagedRecord):
            self._replay_damaged(item)

    def _replay_run(self, run: Run, before_ms: int) -> None:
        positions, tags = run.positions, self._codes.of(run)
        chosen = np.flatnonzero(run.queued)
        order = chosen[np.argsort(run.key_of[chosen], kind="stable")]
        units = np.empty(len(order), UNIT_TYPE)
        units["position"], units["size"], units["tags"] = positions[order], run.sizes[order], tags[order]
        offsets = run.offsets[order]
        facts = facts_of(run, before_ms)
        self.ends.see(facts)
        for place in facts.damage:
            self.damage.add(*place)
        copies, restored = facts.copied[order], _name_entries(run)[order]
        bounds = np.searchsorted(run.key_of[order], np.arange(len(run.keys) + 1)).tolist()
        # Deletions come before the units: only records after its deletion have units in a topic.
        for deletion in facts.deleted:
            self._delete(deletion)
        for key, first, stop in zip(run.keys, bounds, bounds[1:], strict=False):
            if stop > first:
                part = slice(first, stop)
                self._rebuild(key, offsets[part], units[part], copies[part], restored[part])
        for planned in facts.planned:
            self._plan(*planned)

    def _replay_damaged(self, item: DamagedRecord) -> None:
        found = item.record
        key = found.topic.encode(), found.queue
        queue = self._queues.known(*key)
        if queue is None or queue.next_offset != found.queue_offset or found.sys_flag & layout.SYS_TRANSACTION_PREPARED:
            return
        code = 0
        if found.topic == SCHEDULE_TOPIC:
            # Keeps the lane in the order of due times.
            code = self._history.due_at_ms(level_of(found.queue), item.position, self._now_ms)
        elif found.topic == TIMER_TOPIC:
            # Its due time is unknown: it is quarantined next. At 0 it would count as restored.
            code = max(self._now_ms, 1)
        unit = np.array([(item.position, found.size, code)], UNIT_TYPE)
        first = self._doubtful.pop(key, found.queue_offset)
        no = np.array([False])
        self._rebuild(key, np.array([found.queue_offset]), unit, no, no)
        self._doubtful[key] = first
        self._claimed.add((queue, found.queue_offset))

    def _plan(self, stored_at_ms: int, plan: Plan) -> None:
        self.plans.append((stored_at_ms, plan))
        self._planned_count += len(plan.rows)
        while self._planned_count > _PLANNED_MAX:
            self._planned_count -= len(self.plans.popleft()[1].rows)

    def _delete(self, deletion: Deletion) -> None:
        """Drops the topic's queues with all their units so far."""
        self._queues.deletions.add(deletion)
        for queue in self._queues.drop(deletion.topic):
            queue.reset()

    def _rebuild(self, key: Key, offsets: Ints, units: Units, copies: Mask, restored: Mask) -> None:
        """Adds the units of a queue's records, in the order of the log; their store times distinguish copies.
        `restored`: those that name an entry."""
        topic, queue_id = key
        name = topic.decode()
        is_queue = lane_of(name, queue_id) is not None if name in LANE_TOPICS else 0 <= queue_id <= _QUEUE_ID_MAX
        if not is_queue or not is_name(name):
            strays = list(range(len(offsets)))
        else:
            behind = units["position"] > self._queues.deletions.position(name)
            if not behind.all():
                offsets, units, copies, restored = offsets[behind], units[behind], copies[behind], restored[behind]
            if not len(offsets):
                return
            # A queue can't have more records than fit in the log before this one.
            possible = (offsets >= 0) & (offsets <= units["position"] // layout.RECORD_BYTES_MIN)
            queue = self._queues.get_bytes(topic, queue_id)
            copies &= possible & (topic in _KEPT_TOPICS)
            # Records that a recovery has written again, after later ones of their queue.
            again = restored & possible & (offsets < np.maximum.accumulate(offsets)) & (topic not in _KEPT_TOPICS)
            first = np.flatnonzero(~(copies | again))
            doubtful = self._doubtful.pop(key, None)
            if doubtful is not None and len(first) and doubtful <= offsets[first[0]] < queue.next_offset:
                queue.take_back(int(offsets[first[0]]))
            rebuilt = queue.rebuild(offsets[first], units[first], possible[first])
            if topic in _KEPT_TOPICS and rebuilt.repeated:
                # Copies too, whose store time is older: no other record has their place.
                free = {index for index in rebuilt.repeated if queue.is_free(int(offsets[first[index]]))}
                copies[first[sorted(free)]] = True
                rebuilt.repeated = [index for index in rebuilt.repeated if index not in free]
            elif rebuilt.repeated:
                again[first[[index for index in rebuilt.repeated if restored[first[index]]]]] = True
                rebuilt.repeated = [index for index in rebuilt.repeated if not restored[first[index]]]
            if copies.any():
                moved = units[copies]
                if topic == _HALF_TOPIC:
                    _keep_marks(queue, offsets[copies], moved)
                queue.rebuild_copies(offsets[copies], moved)
            for index in np.flatnonzero(again).tolist():
                self._fill(queue, offsets[index : index + 1], units[index : index + 1])
            self.repeated_count += len(rebuilt.repeated)
            self.unit_count += len(offsets) - len(rebuilt.repeated) - len(rebuilt.strays)
            strays = first[rebuilt.strays].tolist()
        for index in strays:
            text = f"it claims to be message {offsets[index]} of queue {queue_id} of {topic!r}, which is impossible"
            self.damage.add(int(units["position"][index]), text)

    def _fill(self, queue: ConsumeQueue, offset: Ints, unit: Units) -> None:
        """Gives a restored record the place that it names, unless another intact record has it."""
        at, place = int(offset[0]), (queue, int(offset[0]))
        if at >= queue.next_offset:
            queue.rebuild(offset, unit, np.array([True]))
        elif at >= queue.min_offset and (queue.is_free(at) or place in self._claimed):
            self._claimed.discard(place)
            queue.repoint(offset, unit)
        else:
            self.repeated_count += 1
            self.unit_count -= 1


def _name_entries(run: Run) -> Mask:
    """Whether records name an entry of a lane."""
    return run.entries[0] >= 0 if run.entries is not None else np.zeros(run.count, np.bool_)


def _keep_marks(queue: ConsumeQueue, offsets: Ints, units: Units) -> None:
    """Keeps the marks of half messages given up before, so that copies do not reopen them."""
    queue.publish_all()
    tags = queue.read_at(offsets)["tags"]
    marked = are_ended(tags) & (offsets >= queue.min_offset)
    units["tags"][marked] = tags[marked]
