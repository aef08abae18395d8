"""Committed offsets of consumer groups: config/consumerOffset.json, RocketMQ's file.

    "offsetTable": {"topic@group": {queue: next offset, ...}, ...}

A commit replaces the whole file, and is durable when it returns; commits that come while the file is being written
share the next write. Queues have this shard's numbers. A broker's other fields in the file are kept: 5.x's
`dataVersion` as it is, its `groupTopicMap` (group to topics) with additions. Offsets are visible at once: a reader that
loses them in a crash reads messages again.

Source: RocketMQ 4.9.3 and 5.3 ConsumerOffsetManager.
"""

import asyncio
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from duetime.v1 import gateway_pb2
from duetime_core.errors import DiskFull, InvalidArgument, Unavailable, Violation, refuse
from duetime_core.limits.seats import Seats
from duetime_core.telemetry.logs import sparing
from duetime_format.admission import group_violations
from duetime_format.errors import within
from duetime_format.names import is_system_topic
from duetime_shard.brokers.pops import Pop

from duetime_store.files import configs
from duetime_store.files.gate import NO_ROOM
from duetime_store.files.worker import FileWorker
from duetime_store.queues.queues import Queues
from duetime_store.writing.watch import DiskWatch

log = structlog.get_logger()
# Rate-limited, for log lines that callers can cause.
often = sparing()

_TABLE, _TOPICS = "offsetTable", "groupTopicMap"


class CommittedOffsets:
    """The file's content. Belongs to the event loop's thread; `worker` writes."""

    def __init__(self, worker: FileWorker, watch: DiskWatch) -> None:
        directory = self._directory = worker.directory
        self._watch = watch
        self._worker = worker
        loaded = configs.load(directory.config, configs.CONSUMER_OFFSETS)
        content = loaded.value
        # Whether a broker wrote the file last: its offsets are then new for groups that receive.
        self.is_brokers = content is not None and not loaded.is_ours
        if content is None and (directory.config / configs.CONSUMER_OFFSETS).exists():
            log.error("group offsets can't be read: groups start like new ones", file=configs.CONSUMER_OFFSETS)
        # Other fields are kept as they are. Inner values are never changed in place: the writer has them too.
        self._rest = dict(content or {})
        # Messages that a broker's groups have received by POP, until `took_over`.
        self.pops = _pops_of(self._rest.pop(configs.POPS, None))
        # A start has moved their half messages by now.
        self._rest.pop(configs.CHECKS, None)
        table = self._rest.pop(_TABLE, None)
        self._table = {
            key: configs.numbered(offsets) for key, offsets in (table if isinstance(table, dict) else {}).items()
        }
        # Queues with seats held by committed offsets, by key, and the caller of each.
        self._seats: Seats | None = None
        self._callers: dict[str, dict[int, str]] = {}
        self._commits = 0
        self._commits_durable = 0
        self._is_fitted = False
        self._writing = asyncio.Lock()

    def fit(self, queues: Queues) -> None:
        """Moves offsets beyond the end of their queue back to it: a power cut lost messages that were read before they
        were on disk, and others get their offsets. A broker's own progress stays: beyond the end it means nothing.
        Durable with the next checkpoint."""
        for group, topic, number, offset in list(self.all()):
            queue = queues.known(topic.encode(), number)
            if queue is not None and offset > queue.max_offset and not is_system_topic(topic):
                key, end = f"{topic}@{group}", queue.max_offset
                log.warning("a group is ahead of its queue", group=group, topic=topic, queue=number, at=offset, end=end)
                self._table[key] = self._table[key] | {number: end}
                self._is_fitted = True

    @property
    def config(self) -> Path:
        """The folder of the file."""
        return self._directory.config

    @property
    def is_news(self) -> bool:
        """Whether the file has to be written because of changes at the start."""
        return self.is_brokers or self._is_fitted

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

    async def commit(self, group: str, topic: str, offsets: Mapping[int, int], caller: str = "") -> None:
        """Saves the offsets; durable on return.

        Raises:
            InvalidArgument: it is not a group's name.
            Overloaded: groups have offsets in too many queues, or the caller created too many of them.
            DiskFull, Unavailable: the file was not written; the offsets may be written with the next commit.
        """
        known = self.find(group, topic)
        new = dict.fromkeys(offsets.keys() - known.keys(), caller)
        if new and self._seats is not None:
            self._seats.take(caller, len(new))
            self._callers.setdefault(f"{topic}@{group}", {}).update(new)
        self._set(group, topic, known | dict(offsets))
        self._commits += 1
        number = self._commits
        async with self._writing:
            if self._commits_durable < number:
                await self._write()

    async def keep(self, committed: Mapping[tuple[str, str], Mapping[int, int]]) -> None:
        """Writes the offsets of groups that receive, by (group, topic), into the file too, for brokers.

        Raises: OSError.
        """
        changed = {
            (group, topic): offsets
            for (group, topic), offsets in committed.items()
            if self._table.get(f"{topic}@{group}") != offsets
        }
        for (group, topic), offsets in changed.items():
            self._set(group, topic, dict(offsets))
        if changed:
            async with self._writing:
                await self._replace({**self._rest, _TABLE: dict(self._table)})

    async def adopt(self) -> None:
        """Takes over a broker's file: its offsets have been applied, and must not be applied again after groups have
        moved. Makes the changes of `fit` durable.

        Raises: OSError.
        """
        if self.is_news:
            async with self._writing:
                await self._replace({**self._rest, _TABLE: dict(self._table)})

    def took_over(self, moved: Mapping[tuple[str, str], Mapping[int, int]]) -> None:
        """At a start: the messages received by POP are now ours, and offsets in their retry topics have moved. Durable
        on return. Raises: OSError."""
        for (group, topic), offsets in moved.items():
            self._set(group, topic, self.find(group, topic) | dict(offsets))
        self.pops = []
        content = {**self._rest, _TABLE: dict(self._table)}
        configs.write(self._directory.disk, self._directory.config, configs.CONSUMER_OFFSETS, content)

    async def delete(self, group: str, left: Mapping[str, Mapping[int, int]]) -> None:
        """Removes the group's offsets except those `left`, by topic; durable on return.

        Raises:
            DiskFull, Unavailable: as `commit`.
        """
        own = [key for key in self._table if key.rpartition("@")[2] == group]
        self._drop(own)
        topics = self._rest.get(_TOPICS)
        listed = isinstance(topics, dict) and group in topics
        if isinstance(topics, dict):
            self._rest[_TOPICS] = {name: names for name, names in topics.items() if name != group}
        for topic, offsets in left.items():
            self._set(group, topic, dict(offsets))
        if own or listed or left:
            self._commits += 1
            async with self._writing:
                await self._write()

    async def delete_topic(self, topic: str) -> None:
        """Removes all offsets in a topic; durable on return. Raises as `commit`."""
        own = [key for key in self._table if key.rpartition("@")[0] == topic]
        topics = self._rest.get(_TOPICS)
        found = topics if isinstance(topics, dict) else {}
        listed = any(isinstance(names, list) and topic in names for names in found.values())
        self._drop(own)
        if listed:
            self._rest[_TOPICS] = {
                group: [name for name in names if name != topic] if isinstance(names, list) else names
                for group, names in found.items()
            }
        if own or listed:
            self._commits += 1
            async with self._writing:
                await self._write()

    def _drop(self, keys: Iterable[str]) -> None:
        for key in keys:
            del self._table[key]
            for caller in self._callers.pop(key, {}).values():
                assert self._seats is not None
                self._seats.give(caller)

    def _set(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        self._table[f"{topic}@{group}"] = offsets
        topics = self._rest.get(_TOPICS)
        if isinstance(topics, dict):
            names = topics.get(group, [])
            if isinstance(names, list) and topic not in names:
                self._rest[_TOPICS] = topics | {group: [*names, topic]}

    async def _write(self) -> None:
        commits, content = self._commits, {**self._rest, _TABLE: dict(self._table)}
        try:
            try:
                await self._replace(content)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                # Groups must not reread messages because others have filled the disk.
                self._watch.fill(f"writing group offsets: {error.strerror}")
                await self._worker.run(self._watch.give_back)
                await self._replace(content)
        except OSError as error:
            why = f"offsets are not saved, {configs.CONSUMER_OFFSETS} was not written: {error.strerror or error}"
            often.error("group offsets not written", error=str(error))
            raise (DiskFull(why) if error.errno in NO_ROOM else Unavailable(why, reason="OFFSETS_NOT_KEPT")) from error
        self._commits_durable = commits

    async def _replace(self, content: dict[str, Any]) -> None:
        disk, config = self._directory.disk, self._directory.config
        await self._worker.run(configs.write, disk, config, configs.CONSUMER_OFFSETS, content)
        self.is_brokers = self._is_fitted = False


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
