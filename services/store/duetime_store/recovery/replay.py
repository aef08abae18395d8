"""Rebuilds from the log's records everything that readers use: queue units, watermarks, recent message ids.

Intact records come as runs, and are sorted by queue (duetime_shard.rebuilding). Dangerous fields of a damaged
record are ignored: its store time would move the clock, its lane entry would move a watermark.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import structlog
from duetime_format import layout
from duetime_format.changes import OFFSETS, TOPICS, StateChanges
from duetime_format.columns import Ints, RecordRun
from duetime_format.deletions import Deletion
from duetime_format.lanes import level_of
from duetime_format.names import SCHEDULE_TOPIC, TIMER_TOPIC
from duetime_format.plans import Plan
from duetime_format.units import UNIT_TYPE
from duetime_shard.facts import are_restored, facts_of
from duetime_shard.history import LevelHistory
from duetime_shard.laneends import LaneEndReader
from duetime_shard.levels import TagsCodes
from duetime_shard.rebuilding import UnitRebuilder
from duetime_shard.walk import DamagedRecord, Item, SkippedBytes, item_end

from duetime_store.files.kept import KeptTable
from duetime_store.log.recent import RecentIds
from duetime_store.queues.queues import Queues
from duetime_store.recovery.halfreplay import HalfReplay

log = structlog.get_logger()

# Maximum damaged places named one by one; all are counted.
_NAMED_MAX = 1_000
# Maximum rows of plans kept, the newest: far more than were ever promised and not durable.
_PLANNED_MAX = 1 << 18
# Maximum step from one store time to the next, when the shard has been idle.
_LEAP_MS_MAX = 86_400_000


@dataclass(slots=True)
class LogDamage:
    """Damaged places of the log."""

    count: int = 0
    skipped_bytes: int = 0
    places: list[str] = field(default_factory=list)

    def add(self, position: int, text: str) -> None:
        self.count += 1
        if len(self.places) < _NAMED_MAX:
            self.places.append(f"{position}: {text}")
            log.error("damaged record", position=position, damage=text)


class LogReplay:
    """Takes in the items of a scan. `before_ms`: the store time of the last record before the replayed ones."""

    def __init__(self, queues: Queues, history: LevelHistory, recent: RecentIds) -> None:
        self._queues = queues
        self._recent = recent
        self._codes = TagsCodes(history)
        # Ends of lane entries after the checkpoint.
        self.ends = LaneEndReader()
        # Ends of half messages after the checkpoint.
        self.halves = HalfReplay()
        # The newest plans after the checkpoint, and their times.
        self.plans: deque[tuple[int, Plan]] = deque()
        self._planned_count = 0
        self.before_ms = 0
        # Offsets of groups.
        self.offsets = KeptTable()
        # Other changes of state after the newest checkpoint, whose files include the earlier ones.
        self.changes = StateChanges()
        self.files_position = 0
        # Topics in the files of a broker that has served since, or of an unknown position: the log adds the others.
        self.known_topics: frozenset[str] = frozenset()
        # The two largest store times.
        self._latest_ms = [0, 0]
        # Position after the last record.
        self.end = 0
        self.record_count = 0
        self.damage = LogDamage()
        self.units = UnitRebuilder(queues.get_bytes, queues.deletions.position, self.damage.add)

    @property
    def stored_at_ms(self) -> int:
        """The largest store time, without one far from all others: a flipped bit that no CRC covers."""
        before, last = self._latest_ms
        return before if before and last - before > _LEAP_MS_MAX else last

    @property
    def history(self) -> LevelHistory:
        """The level tables, with those of the log."""
        return self._codes.history

    @property
    def _now_ms(self) -> int:
        """The store time that the walk has reached."""
        return max(self.stored_at_ms, self.before_ms)

    def _see(self, stored_at_ms: Ints) -> None:
        self._latest_ms = np.sort(np.concatenate((self._latest_ms, stored_at_ms)))[-2:].tolist()

    def remember(self, item: Item) -> None:
        """Takes an item before the checkpoint: it is in its queue already, and only its id is needed."""
        if isinstance(item, SkippedBytes):
            self.damage.skipped_bytes += item.size
            self.damage.add(item.position, item.damage)
        elif isinstance(item, DamagedRecord):
            self.end = item_end(item)
            self.record_count += 1
            self.damage.add(item.position, item.damage)
        elif isinstance(item, RecordRun):
            self.end = item.end_position
            self.record_count += item.count
            self._see(item.stored_at_ms)
            # Restored records are not sends; those that name the entry they replace are.
            sent = (item.id_hashes >= 0) & ~are_restored(item)
            self._recent.add_all(item.id_hashes[sent], item.positions[sent], self.stored_at_ms)

    def replay(self, item: Item) -> None:
        """Takes an item after the checkpoint and rebuilds its units."""
        before_ms = self._now_ms
        self.remember(item)
        if isinstance(item, RecordRun):
            for place in self.halves.see(item):
                self.damage.add(*place)
            self._replay_run(item, before_ms)
        elif isinstance(item, DamagedRecord):
            self._replay_damaged(item)

    def _replay_run(self, run: RecordRun, before_ms: int) -> None:
        facts = facts_of(run, before_ms)
        self.ends.see(facts)
        for place in facts.damage:
            self.damage.add(*place)
        for position, why in facts.unread_plans:
            log.warning("plan can't be read: its messages may get other places", position=position, why=why)
        # Deletions come before the units: only records after its deletion have units in a topic.
        for deletion in facts.deleted:
            self._delete(deletion)
        self._codes.learn(facts.changed)
        self.units.add_run(run, self._codes.of(run), facts.copied)
        for planned in facts.planned:
            self._plan(*planned)
        for position, changes in facts.changed:
            for change in changes:
                if change.kind == OFFSETS:
                    self.offsets.replay(position, change)
                elif position < self.files_position:
                    continue
                elif change.kind != TOPICS:
                    self.changes.add(change)
                elif position > self._queues.deletions.position(change.key) and change.key not in self.known_topics:
                    self._queues.counts.learn(change)

    def _replay_damaged(self, item: DamagedRecord) -> None:
        found = item.record
        key = found.topic.encode(), found.queue
        queue = self._queues.known(*key)
        if queue is None or queue.next_offset != found.queue_offset or found.sys_flag & layout.SYS_TRANSACTION_PREPARED:
            return
        code = 0
        if found.topic == SCHEDULE_TOPIC:
            # Keeps the lane in the order of due times.
            code = self.history.due_at_ms(level_of(found.queue), item.position, self._now_ms)
        elif found.topic == TIMER_TOPIC:
            # Its due time is unknown: it is quarantined next. At 0 it would count as restored.
            code = max(self._now_ms, 1)
        unit = np.array([(item.position, found.size, code)], UNIT_TYPE)
        self.units.add_damaged(key, found.queue_offset, unit)

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
