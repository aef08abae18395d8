"""Committed offsets of consumer groups, and config/consumerOffset.json, RocketMQ's file.

    "offsetTable": {"topic@group": {queue: next offset, ...}, ...}

A commit is a change in the journal (duetime_store.log.journal): it is durable and visible once its record is. At
checkpoints the table goes into a file of ours (duetime_store.files.kept), and then into RocketMQ's. Queues have this
shard's numbers. A broker's other fields in its file are kept: 5.x's `dataVersion` as it is, its `groupTopicMap` (group
to topics) with changes.

Source: RocketMQ 4.9.3 and 5.3 ConsumerOffsetManager.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from duetime.v1 import gateway_pb2
from duetime_core.errors import InvalidArgument, Violation, refuse
from duetime_core.limits.seats import Seats
from duetime_format.admission import group_violations
from duetime_format.changes import OFFSETS, StateChange
from duetime_format.errors import within
from duetime_format.names import is_system_topic
from duetime_shard.brokers.pops import Pop

from duetime_store.files import configs, kept
from duetime_store.files.kept import KeptTable
from duetime_store.files.worker import FileWorker
from duetime_store.queues.queues import Queues
from duetime_store.writing.store import Store

log = structlog.get_logger()

_TABLE, _TOPICS = "offsetTable", "groupTopicMap"


class CommittedOffsets:
    """The offsets of the log's published end. Belongs to the event loop's thread; `worker` writes."""

    def __init__(self, worker: FileWorker, store: Store, own: KeptTable) -> None:
        """`own`: as replayed to the end of the log. Raises: OSError: a broker's changes can't be taken over."""
        directory = self._directory = worker.directory
        self._worker = worker
        self._store = store
        self._journal = store.journal
        loaded = configs.load(directory.config, configs.CONSUMER_OFFSETS)
        known = own.contents
        content, self._table = own.judge(loaded)
        # Whether a broker wrote the file last: its offsets are then new for groups that receive.
        self.is_brokers = content is not None and not loaded.is_ours
        if content is None and not known and (directory.config / configs.CONSUMER_OFFSETS).exists():
            log.error("group offsets can't be read: groups start like new ones", file=configs.CONSUMER_OFFSETS)
        # Other fields are kept as they are. Inner values are never changed in place: the writer has them too.
        self._rest = dict(content or {})
        # Messages that a broker's groups have received by POP, until `took_over`.
        self.pops = _pops_of(self._rest.pop(configs.POPS, None))
        # A start has moved their half messages by now.
        self._rest.pop(configs.CHECKS, None)
        self._rest.pop(_TABLE, None)
        # Queues with seats held by committed offsets, by key, and the caller of each.
        self._seats: Seats | None = None
        self._callers: dict[str, dict[int, str]] = {}
        # Changes so far, and those in the files.
        self._edition = self._written = 0
        self._contents = own.contents
        if own.contents != known or own.position > store.published_end:
            # Before the first commit: it is later than a broker's, and than a log that was restored from a copy.
            now = KeptTable(store.published_end, own.contents, self._table)
            kept.write(directory.disk, directory.config, now)
        for key in own.table.keys() ^ own.replayed.keys():
            topic, _, group = key.rpartition("@")
            (self._list if key in self._table else self._unlist)(group, topic)
        self._edition += own.table != self._table
        # The table with all journaled changes, for the decisions of later ones.
        self._ahead = dict(self._table)
        self._journal.learners[OFFSETS] = self._learn

    def fit(self, queues: Queues) -> None:
        """Moves offsets beyond the end of their queue back to it: a power cut lost messages that were read before they
        were on disk, and others get their offsets. A broker's own progress stays: beyond the end it means nothing.
        In the files with the next checkpoint."""
        for group, topic, number, offset in list(self.all()):
            queue = queues.known(topic.encode(), number)
            if queue is not None and offset > queue.max_offset and not is_system_topic(topic):
                key, end = f"{topic}@{group}", queue.max_offset
                log.warning("a group is ahead of its queue", group=group, topic=topic, queue=number, at=offset, end=end)
                self._table[key] = self._ahead[key] = self._table[key] | {number: end}
                self._edition += 1

    @property
    def config(self) -> Path:
        """The folder of the file."""
        return self._directory.config

    def find(self, group: str, topic: str) -> dict[int, int]:
        """Next offset by queue, for queues with a commit.

        Raises:
            InvalidArgument: it is not a group's name.
        """
        check_group(group)
        found = self._table.get(f"{topic}@{group}")
        return dict(sorted(found.items())) if isinstance(found, dict) and all(map(_is_number, found)) else {}

    def all(self) -> Iterator[tuple[str, str, int, int]]:
        """Group, topic, queue and next offset of all commits."""
        for key, found in list(self._table.items()):
            topic, _, group = key.rpartition("@")
            if isinstance(found, dict) and all(map(_is_number, found)):
                yield from ((group, topic, queue, offset) for queue, offset in found.items())

    def share(self, seats: Seats, received: Container[tuple[str, str, int]]) -> None:
        """Shares seats among callers from now on: one for each offset of a group, topic and queue that is not
        `received`."""
        self._seats = seats
        for group, topic, queue, _ in self.all():
            if (group, topic, queue) not in received:
                self._callers.setdefault(f"{topic}@{group}", {})[queue] = ""
                seats.hold("")

    def commit(self, group: str, topic: str, offsets: Mapping[int, int], caller: str = "") -> None:
        """Saves the offsets; durable, and visible, with the journal.

        Raises:
            InvalidArgument: it is not a group's name.
            Overloaded: groups have offsets in too many queues, or the caller created too many of them.
            ReadOnly: the shard accepts no writes.
        """
        check_group(group)
        self._store.gate.check_write()
        key = f"{topic}@{group}"
        known = self._ahead.get(key)
        new = dict.fromkeys(offsets.keys() - (known.keys() if isinstance(known, dict) else ()), caller)
        if new and self._seats is not None:
            self._seats.take(caller, len(new))
            self._callers.setdefault(key, {}).update(new)
        self._change(key, offsets)

    def _change(self, key: str, offsets: Mapping[int, int] | None) -> None:
        """Journals a change; None: without offsets any more."""
        value = None if offsets is None else {str(queue): offset for queue, offset in offsets.items()}
        change = StateChange(OFFSETS, key, value)
        self._journal.change(change)
        kept.apply(self._ahead, change)
        if value is None:
            for caller in self._callers.pop(key, {}).values():
                assert self._seats is not None
                self._seats.give(caller)

    def delete(self, group: str, left: Mapping[str, Mapping[int, int]]) -> None:
        """Removes the group's offsets except those `left`, by topic; durable with the journal."""
        topics = self._lists.get(group)
        for topic in {*self._topics_of(group), *(topics if isinstance(topics, list) else ())}:
            self._change(f"{topic}@{group}", None)
        for topic, offsets in left.items():
            self._change(f"{topic}@{group}", offsets)

    def delete_topic(self, topic: str) -> None:
        """Removes all offsets in a topic; durable with the journal."""
        found = {key for key in self._ahead if key.rpartition("@")[0] == topic}
        for group, names in self._lists.items():
            if isinstance(names, list) and topic in names:
                found.add(f"{topic}@{group}")
        for key in found:
            self._change(key, None)

    def _topics_of(self, group: str) -> Iterator[str]:
        return (key.rpartition("@")[0] for key in self._ahead if key.rpartition("@")[2] == group)

    @property
    def _lists(self) -> dict[str, Any]:
        """A broker's topics by group."""
        found = self._rest.get(_TOPICS)
        return found if isinstance(found, dict) else {}

    def _learn(self, change: StateChange) -> None:
        """Applies a published change."""
        self._edition += 1
        kept.apply(self._table, change)
        topic, _, group = change.key.rpartition("@")
        if change.value is not None:
            self._list(group, topic)
            return
        self._unlist(group, topic)

    def _unlist(self, group: str, topic: str) -> None:
        """The opposite of `_list`."""
        names = self._lists.get(group)
        if isinstance(names, list) and topic in names:
            left = {name: topics for name, topics in self._lists.items() if name != group}
            kept_names = [name for name in names if name != topic]
            self._rest[_TOPICS] = {**left, group: kept_names} if kept_names else left

    # --- files ------------------------------------------------------------------------------------------------------

    @property
    def is_news(self) -> bool:
        """Whether the files lack changes."""
        return self.is_brokers or self._edition != self._written

    async def save(self, position: int, received: Mapping[tuple[str, str], Mapping[int, int]] | None = None) -> None:
        """Brings the files up to date. They include all records before `position`, which are durable.

        Args:
            received: offsets of groups that receive, by (group, topic): for brokers.

        Raises: OSError.
        """
        for (group, topic), offsets in (received or {}).items():
            if self._table.get(f"{topic}@{group}") != offsets:
                self._set(group, topic, dict(offsets))
        if self.is_news:
            edition = self._edition
            content = {**self._rest, _TABLE: dict(self._table)}
            await self._worker.run(self._write, position, content)
            self._written, self.is_brokers = edition, False

    def took_over(self, moved: Mapping[tuple[str, str], Mapping[int, int]]) -> None:
        """At a start: the messages received by POP are now ours, and offsets in their retry topics have moved. Durable
        on return. Raises: OSError."""
        for (group, topic), offsets in moved.items():
            self._set(group, topic, self.find(group, topic) | dict(offsets))
        self.pops = []
        self._write(self._store.published_end, {**self._rest, _TABLE: dict(self._table)})

    def _write(self, position: int, content: dict[str, Any]) -> None:
        """Writes our file, then RocketMQ's with this content. One call at a time, on any thread."""
        disk, config = self._directory.disk, self._directory.config
        # The second write may fail at any step: its earlier contents stay known.
        self._contents = (*self._contents[-2:], configs.crc_of(configs.as_read(content)))
        kept.write(disk, config, KeptTable(position, self._contents, content[_TABLE]))
        configs.write(disk, config, configs.CONSUMER_OFFSETS, content)

    def _set(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        self._edition += 1
        self._table[f"{topic}@{group}"] = self._ahead[f"{topic}@{group}"] = offsets
        self._list(group, topic)

    def _list(self, group: str, topic: str) -> None:
        """Adds the topic to a broker's list of the group's."""
        topics = self._rest.get(_TOPICS)
        if isinstance(topics, dict):
            names = topics.get(group, [])
            if isinstance(names, list) and topic not in names:
                self._rest[_TOPICS] = topics | {group: [*names, topic]}


def _pops_of(found: Any) -> list[Pop]:
    try:
        return [Pop.from_dict(one) for one in found or ()]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        log.error("messages received by POP can't be read", file=configs.CONSUMER_OFFSETS, error=str(error))
        return []


def _is_number(key: object) -> bool:
    return isinstance(key, int)


def check_group(group: str) -> None:
    """Raises: InvalidArgument."""
    refuse(list(group_violations("group", group)))


def check_offsets(queues: Queues, topic: str, positions: Sequence[gateway_pb2.QueuePosition]) -> dict[int, int]:
    """The offsets of a commit, by queue on this shard.

    Raises:
        NotFound: no such topic or queue.
        InvalidArgument: there are none, or one is not within its queue.
    """
    if not positions:
        raise InvalidArgument([Violation("queues", "is empty")])
    found, faults = {}, []
    for position in positions:
        queue = queues.find(topic, position.shard_queue)
        note = f" of queue {position.queue} of {topic}"
        faults += within("queues.offset", position.offset, queue.min_offset, queue.max_offset, note=note)
        found[position.shard_queue] = position.offset
    refuse(faults)
    return found
