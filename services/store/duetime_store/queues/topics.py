"""The topics that a shard knows and their queue counts: limits, and storage on disk.

A new topic is a change of the journal (duetime_store.log.journal): durable, and visible, once its record is. The files
follow at checkpoints. topics.json is RocketMQ's file and holds all topics: the cost of replacing it for each checkpoint
would grow with their number. New topics go as lines into a file of our own (duetime_shard.topics); from time to time,
and at a clean stop, that file is folded into topics.json.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType

import structlog
from duetime_core.clock import Clock
from duetime_core.errors import DiskFull, DueTimeError, InvalidArgument, Overloaded, Unavailable, Violation, refuse
from duetime_format.changes import TOPICS, StateChange
from duetime_format.errors import within
from duetime_format.limits import QUEUE_COUNT_MAX, TOPIC_CHARS_MAX
from duetime_format.names import is_group_topic, is_internal_topic, is_name, is_system_topic
from duetime_format.texts import shown
from duetime_shard import topics as lines

from duetime_store.files import configs
from duetime_store.files.gate import NO_FILES, NO_ROOM, WriteGate
from duetime_store.files.worker import FileWorker
from duetime_store.log.journal import Journal

log = structlog.get_logger()

# Up to this number, topics are folded with each checkpoint; beyond, only once 1/_FOLD_SHARE of them is new.
_FOLDED_AT_ONCE = 2_000
_FOLD_SHARE = 8
# A tenth beyond `queues_max` and `topics_max` is for retries and dead letters of groups: stored messages must be able
# to end.
_GROUPS_SHARE = 10
# RocketMQ's names of message types, by the numbers of duetime.v1.TopicType.
_TYPES = ("MIXED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "LITE", "PRIORITY")
_NUMBERS = {name: number for number, name in enumerate(_TYPES)}


class ShardTopicsExhausted(Overloaded):
    """The shard has reached its maximum of topics: only a higher limit helps."""

    reason = "TOPICS_EXHAUSTED"
    retriable = False


class ShardQueuesExhausted(Overloaded):
    """The shard has reached its maximum of queues."""

    reason = "QUEUES_EXHAUSTED"
    retriable = False


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """The maximum number of topics of a shard, and of queues in total."""

    topics_max: int
    queues_max: int

    def widened(self) -> "TopicLimits":
        """The limits for topics of groups."""
        return TopicLimits(
            self.topics_max + self.topics_max // _GROUPS_SHARE, self.queues_max + self.queues_max // _GROUPS_SHARE
        )


class ShardTopics(Mapping[str, int]):
    """Queue counts by topic. `changed` has those not on disk yet."""

    def __init__(
        self, counts: Mapping[str, int], limits: TopicLimits, types: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._counts = dict(counts)
        # Message types, by RocketMQ's names, of those that have one; a broker's may be unknown here.
        self.types = dict(types)
        # Counts of all topics, and of those of groups alone.
        self.queue_count = sum(self._counts.values())
        self._of_groups = {name: count for name, count in self._counts.items() if is_group_topic(name)}
        self._group_queue_count = sum(self._of_groups.values())
        self.changed: dict[str, int] = {}
        # Removed topics that may still be in their files.
        self.removed: set[str] = set()
        # Journaled and not published: queue count and type, and the topics and queues that they add.
        self._ahead: dict[str, tuple[int, str, int, int]] = {}
        # The sum of these, for other topics and those of groups.
        self._ahead_topics, self._ahead_queues = [0, 0], [0, 0]
        self.limits = limits
        self._group_limits = limits.widened()

    def __getitem__(self, topic: str) -> int:
        return self._counts[topic]

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def grow(self, topic: str, count: int) -> None:
        """Raises the topic's queue count to `count`, without checking limits: the queues exist."""
        known = self._counts.get(topic)
        if known is None or count > known:
            self._counts[topic] = self.changed[topic] = count
            self.queue_count += count - (known or 0)
            if is_group_topic(topic):
                self._of_groups[topic] = count
                self._group_queue_count += count - (known or 0)

    def propose(self, topic: str, count: int, message_type: int) -> StateChange | None:
        """The change to be journaled for a topic with at least `count` queues and a message type, a number of
        duetime.v1.TopicType; None: it is known or journaled. ANY changes no existing topic: RocketMQ treats a topic
        without a type as one of normal messages, so a new one gets MIXED."""
        known, kind = self._ahead.get(topic, (self._counts.get(topic), self.types.get(topic, "")))[:2]
        wanted = _TYPES[message_type] if message_type < len(_TYPES) else ""
        if not message_type and (known is not None or is_system_topic(topic)):
            wanted = ""
        if known is not None and count <= known and wanted in ("", kind):
            return None
        self._release(topic)
        published = self._counts.get(topic)
        count, is_new = max(count, known or 0), published is None
        of_groups = is_group_topic(topic)
        self._ahead[topic] = count, wanted or kind, is_new, count - (published or 0)
        self._ahead_topics[of_groups] += is_new
        self._ahead_queues[of_groups] += count - (published or 0)
        return StateChange(TOPICS, topic, [count, wanted or kind])

    def _release(self, topic: str) -> None:
        _, _, topics, queues = self._ahead.pop(topic, (0, "", 0, 0))
        self._ahead_topics[is_group_topic(topic)] -= topics
        self._ahead_queues[is_group_topic(topic)] -= queues

    def learn(self, change: StateChange) -> None:
        """Applies a published change."""
        if change.value is None:
            return
        topic, (count, kind) = change.key, change.value
        if topic in self._ahead and self._ahead[topic][:2] == (count, kind):
            self._release(topic)
        self.grow(topic, count)
        if kind and self.types.get(topic) != kind:
            self.types[topic] = kind
            self.changed[topic] = self._counts[topic]

    def type_of(self, topic: str) -> int:
        """A number of duetime.v1.TopicType; ANY also for a type unknown here."""
        return _NUMBERS.get(self.types.get(topic, ""), 0)

    def remove(self, topic: str) -> None:
        """Removes a deleted topic."""
        self.queue_count -= self._counts.pop(topic, 0)
        self._group_queue_count -= self._of_groups.pop(topic, 0)
        self.types.pop(topic, None)
        self.changed.pop(topic, None)
        self._release(topic)
        self.removed.add(topic)

    def set(self, counts: Mapping[str, int]) -> None:
        """Recovery: sets the exact queue counts of these topics."""
        self._counts.update(counts)
        self.changed = {name: count for name, count in self.changed.items() if name not in counts}
        self.queue_count = sum(self._counts.values())
        self._of_groups = {name: count for name, count in self._counts.items() if is_group_topic(name)}
        self._group_queue_count = sum(self._of_groups.values())

    def check(self, topic: str, count: int) -> None:
        """Checks that the topic may have `count` queues.

        Raises: InvalidArgument, ShardTopicsExhausted, ShardQueuesExhausted.
        """
        known = self._ahead[topic][0] if topic in self._ahead else self._counts.get(topic)
        if known is not None and count <= known:
            return
        if is_internal_topic(topic):
            raise InvalidArgument([Violation("name", f"{topic} is a system topic, created by the shard itself")])
        limits = self._group_limits
        topic_count = len(self._counts) + sum(self._ahead_topics)
        queue_count = self.queue_count + sum(self._ahead_queues)
        if not is_group_topic(topic):
            # Topics of groups, which each caller may create, take no room from these.
            limits = self.limits
            topic_count -= len(self._of_groups) + self._ahead_topics[True]
            queue_count -= self._group_queue_count + self._ahead_queues[True]
        if known is None and topic_count >= limits.topics_max:
            raise ShardTopicsExhausted(
                f"topic {topic} is not created: the shard has {topic_count}, topics_max is {limits.topics_max}"
            )
        if queue_count + count - (known or 0) > limits.queues_max:
            raise ShardQueuesExhausted(
                f"{count} queues of topic {topic} are not created: the shard has {queue_count} in total, "
                f"queues_max is {limits.queues_max}"
            )


class TopicFile:
    """Journals new topics, and puts them on disk. Belongs to the event loop's thread; `worker` writes."""

    def __init__(
        self, topics: ShardTopics, journal: Journal, gate: WriteGate, worker: FileWorker, clock: Clock
    ) -> None:
        self._topics = topics
        self._journal = journal
        self._gate = gate
        journal.learners[TOPICS] = topics.learn
        self._config = worker.directory.config
        self._disk = worker.directory.disk
        self._worker = worker
        self._clock = clock
        self._writing = asyncio.Lock()
        path = self._config / lines.FILE
        self._path = path
        # Number of topics in its lines, and the position of the next line.
        self._line_count = 0
        self._end = path.stat().st_size if path.exists() else 0
        if self._end:
            self._line_count = len(lines.read(self._config)[0])
        # A write failed: the content of the file is unknown, and nothing more is appended to it.
        self._is_broken = False

    def put(self, name: str, count: int, message_type: int = 0) -> None:
        """Durable, and visible, with the journal. Raises: InvalidArgument, Overloaded, ReadOnly."""
        check_topic(name, count)
        self._topics.check(name, count)
        change = self._topics.propose(name, count, message_type)
        if change is not None:
            self._gate.check_write()
            self._journal.change(change)

    def put_all(self, wanted: Sequence[tuple[str, int, int]]) -> dict[int, DueTimeError]:
        """As `put`, for many topics. Returns the errors of rejected ones, by index."""
        refused: dict[int, DueTimeError] = {}
        for index, one in enumerate(wanted):
            try:
                self.put(*one)
            except DueTimeError as error:
                refused[index] = error
        return refused

    async def write(self) -> None:
        """Adds published topics to the file. Raises: DiskFull, Overloaded, Unavailable: they are not in it."""
        async with self._writing:
            changed, self._topics.changed = self._topics.changed, {}
            if not changed:
                return
            try:
                await self._worker.run(self._append, changed)
            except OSError as error:
                self._topics.changed = changed | self._topics.changed
                self._is_broken = True
                raise refusal(f"topics are not stored: {error.strerror or error}", error) from error

    def capture(self) -> Callable[[], Awaitable[None]]:
        """See duetime_store.recovery.checkpointer.CheckpointKeeper."""
        return self.fold

    async def fold(self, *, whole: bool = False) -> None:
        """Brings topics.json up to date, if that is worth its cost or `whole` is set. Raises as `write`."""
        await self.write()
        async with self._writing:
            count = len(self._topics)
            worth = self._is_broken or whole or count <= _FOLDED_AT_ONCE or self._line_count * _FOLD_SHARE >= count
            removed = frozenset(self._topics.removed)
            if not removed and not (self._line_count and worth):
                return
            counts, types = dict(self._topics), dict(self._topics.types)
            try:
                await self._worker.run(self._fold, counts, types, removed)
            except OSError as error:
                self._is_broken = True
                raise refusal(f"{configs.TOPICS} was not written: {error.strerror or error}", error) from error
            self._topics.removed -= removed

    def _append(self, counts: Mapping[str, int]) -> None:
        """Runs on the worker's thread."""
        if self._is_broken:
            # A successful flush after a failed one proves nothing: all topics go into a new file.
            self._fold({**self._topics, **counts}, dict(self._topics.types))
            return
        created = not self._end
        if created:
            self._disk.make_directory(self._config)
        data = lines.encode(counts, self._topics.types)
        fd = self._disk.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            self._disk.write(fd, data, self._end)
            self._disk.datasync(fd)
        finally:
            self._disk.close(fd)
        if created:
            self._disk.sync_directory(self._config)
        self._end += len(data)
        self._line_count += len(counts)

    def _fold(self, counts: Mapping[str, int], types: Mapping[str, str], removed: Set[str] = frozenset()) -> None:
        """Runs on the worker's thread. A crash in the middle leaves lines that topics.json has too, or those of a
        deleted topic; recovery then finds its deletion in the log."""
        known = configs.read(self._config, configs.TOPICS)
        changed = configs.with_topics(known, counts, self._clock.now_ms(), types, removed)
        if changed is not None:
            configs.write(self._disk, self._config, configs.TOPICS, changed)
        self._disk.unlink(self._path)
        self._disk.sync_directory(self._config)
        self._end = self._line_count = 0
        self._is_broken = False


def refusal(text: str, error: OSError) -> DueTimeError:
    """The error for callers whose change could not be written."""
    if error.errno in NO_ROOM:
        return DiskFull(text)
    return Overloaded(text) if error.errno in NO_FILES else Unavailable(text, reason="TOPIC_NOT_KEPT")


def check_topic(name: str, count: int) -> None:
    """Raises: InvalidArgument."""
    violations = []
    if not 1 <= len(name) <= TOPIC_CHARS_MAX or not is_name(name):
        violations.append(
            Violation("name", f"{shown(name)} is not 1 to {TOPIC_CHARS_MAX} characters of [%|a-zA-Z0-9_-]")
        )
    refuse(violations + within("queue_count", count, 1, QUEUE_COUNT_MAX))
