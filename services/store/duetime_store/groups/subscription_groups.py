"""The groups known to this shard, and config/subscriptionGroup.json, RocketMQ's file.

Brokers read from it the number of retries of a group; gateways read from it the groups of a broker's directory. A
broker's content is kept as it is. A change is one of the journal (duetime_store.log.journal): it is durable and visible
once its record is. The file follows at checkpoints.

Source: RocketMQ 4.9.3 and 5.3 SubscriptionGroupManager, SubscriptionGroupConfig.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

import structlog
from duetime.v1 import consumer_pb2, message_pb2
from duetime_core.errors import refuse
from duetime_format import changes, limits
from duetime_format.changes import StateChange
from duetime_format.errors import within

from duetime_store.files import configs
from duetime_store.files.worker import FileWorker
from duetime_store.writing.store import Store

log = structlog.get_logger()

# Retries after the first delivery, and order; None: removed.
GroupSettings = tuple[int, bool] | None


class SubscriptionGroups:
    """The groups as of the log's published end. Belongs to the event loop's thread; `worker` writes."""

    def __init__(self, worker: FileWorker, store: Store, replayed: Iterable[StateChange]) -> None:
        """`replayed`: changes of the log that the file lacks."""
        directory = self._directory = worker.directory
        self._worker = worker
        self._store = store
        loaded = configs.load(directory.config, configs.GROUPS)
        if loaded.fault:
            log.error("groups' file is damaged", file=configs.GROUPS, why=loaded.fault)
        # The content on disk; never changed in place: the writer has it too.
        self._content = loaded.value
        # Entries as in the file, and published ones that it lacks.
        self._entries = {name: _settings(entry) for name, entry in configs.groups(loaded.value).items()}
        self._changes: dict[str, GroupSettings] = {}
        # Journaled and not published yet.
        self._ahead: dict[str, GroupSettings] = {}
        for change in replayed:
            # A broker that has served since has later entries.
            if loaded.is_ours or change.key not in self._entries:
                self._learn(change)
        store.journal.learners[changes.GROUPS] = self._learn

    def list(self) -> Iterator[consumer_pb2.Group]:
        """Groups by name, with their settings."""
        for name, entry in sorted(configs.groups(self._changed(self._changes)).items()):
            yield consumer_pb2.Group(
                name=name,
                ordered=entry.get("consumeMessageOrderly") is True,
                retry=message_pb2.RetryPolicy(max_attempts=_max_attempts(entry.get("retryMaxTimes"))),
            )

    def put(self, group: consumer_pb2.Group) -> None:
        """Durable, and visible, with the journal.

        Raises:
            InvalidArgument: the number of attempts is out of range.
            ReadOnly: the shard accepts no writes.
        """
        refuse(within("retry.max_attempts", group.retry.max_attempts, 0, limits.ATTEMPTS_MAX))
        retries = (group.retry.max_attempts or limits.DELIVERIES_DEFAULT) - 1
        self._change(group.name, (retries, group.ordered))

    def remove(self, name: str) -> None:
        """As `put`."""
        self._change(name, None)

    def _change(self, name: str, settings: GroupSettings) -> None:
        self._store.gate.check_write()
        known = self._ahead[name] if name in self._ahead else self._entries.get(name)
        if settings != known:
            self._ahead[name] = settings
            self._store.journal.change(StateChange(changes.GROUPS, name, None if settings is None else list(settings)))

    def _learn(self, change: StateChange) -> None:
        settings = self._changes[change.key] = None if change.value is None else (change.value[0], change.value[1])
        if settings is None:
            self._entries.pop(change.key, None)
        else:
            self._entries[change.key] = settings
        if change.key in self._ahead and self._ahead[change.key] == settings:
            del self._ahead[change.key]

    def capture(self) -> Callable[[], Awaitable[None]] | None:
        """See duetime_store.recovery.checkpointer.CheckpointKeeper."""
        changed = dict(self._changes)
        if not changed:
            return None

        async def write() -> None:
            self._content = await self._worker.run(self._replace, changed)
            self._changes = {name: known for name, known in self._changes.items() if changed.get(name, ()) != known}

        return write

    def _changed(self, changed: Mapping[str, GroupSettings]) -> dict[str, Any]:
        return configs.with_groups(self._content, changed, self._store.clock.now_ms())

    def _replace(self, changed: Mapping[str, GroupSettings]) -> dict[str, Any] | None:
        """Writes the file, on the worker's thread. Returns its new content."""
        content = self._changed(changed)
        if content and content != self._content:
            configs.write(self._directory.disk, self._directory.config, configs.GROUPS, content)
            return content
        return self._content


def _settings(entry: Mapping[str, Any]) -> GroupSettings:
    """An entry's settings, which any value of a broker's makes differ from those of a call."""
    return entry.get("retryMaxTimes", -1), entry.get("consumeMessageOrderly") is True


def most_attempts(content: Mapping[str, Any] | None) -> dict[str, int]:
    """Maximum attempts by group, from the content of the file."""
    return {name: _max_attempts(entry.get("retryMaxTimes")) for name, entry in configs.groups(content).items()}


def _max_attempts(retries: object) -> int:
    """The maximum attempts by `retryMaxTimes`: brokers accept any number, and one below 0 as RocketMQ's default."""
    if not isinstance(retries, int) or retries < 0:
        return limits.DELIVERIES_DEFAULT
    return min(retries + 1, limits.ATTEMPTS_MAX)
