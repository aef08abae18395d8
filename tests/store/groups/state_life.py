"""A life of a shard with state besides messages: an answered change is there after each crash or power cut."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from duetime.v1 import consumer_pb2, message_pb2
from duetime_core.errors import DueTimeError
from duetime_format import changes
from duetime_store.groups.subscription_groups import SubscriptionGroups
from duetime_store.recovery.checkpointer import CheckpointKeeper

from tests.store.groups.group_life import TOPIC, GroupLife

OFFSETS, SETTINGS = "offsets", "settings"
GROUPS = ("audit", "export")


class StateLife(GroupLife):
    """See the module. Two groups commit offsets, and have settings."""

    def __init__(self, root: Path, dice: random.Random, *, mode: str = "sync") -> None:
        # Each value since the last one that was found, by kind and group; None: surely replaced.
        self.values: dict[tuple[str, str], list[Any]] = {
            **{(OFFSETS, group): [{}] for group in GROUPS},
            **{(SETTINGS, group): [()] for group in GROUPS},
        }
        self.changing: list[tuple[Any, tuple[str, str], int]] = []
        super().__init__(root, dice, mode=mode)

    def make_keepers(self) -> list[CheckpointKeeper]:
        keepers = super().make_keepers()
        self.configured = SubscriptionGroups(self.worker, self.store, self.opened.changes.of(changes.GROUPS))
        return [*keepers, self.configured]

    # --- steps ------------------------------------------------------------------------------------------------------

    def commit_offset(self, group: str, offset: int) -> None:
        found = {0: offset}
        self.run(self._change((OFFSETS, group), found, lambda: self.offsets.commit(group, TOPIC, found)))

    def put_group(self, group: str, attempts: int) -> None:
        wanted = consumer_pb2.Group(name=group, retry=message_pb2.RetryPolicy(max_attempts=attempts))
        self.run(self._change((SETTINGS, group), (attempts,), lambda: self.configured.put(wanted)))

    def delete_group(self, group: str) -> None:
        self.run(self._change((OFFSETS, group), {}, lambda: self.offsets.delete(group, {})))
        self.run(self._change((SETTINGS, group), (), lambda: self.configured.remove(group)))

    async def _change(self, name: tuple[str, str], value: Any, change: Callable[[], None]) -> None:
        try:
            self.store.gate.check_write()
            change()
        except DueTimeError:
            return
        values = self.values[name]
        values.append(value)
        durable = self.store.when_events_durable()
        if durable is not None:
            self.changing.append((durable, name, len(values) - 1))
        self._settle()

    def _settle(self) -> None:
        super()._settle()
        waiting = []
        for durable, name, number in self.changing:
            if not durable.done():
                waiting.append((durable, name, number))
            elif durable.exception() is None:
                self.values[name][:number] = [None] * number
        self.changing = waiting

    def random_step(self) -> None:
        dice, at = self.dice, self.dice.random()
        if at < 0.1:
            self.step(self.commit_offset, dice.choice(GROUPS), dice.randint(0, 1 << 40))
        elif at < 0.2:
            self.step(self.put_group, dice.choice(GROUPS), dice.randint(1, 1_000))
        elif at < 0.23:
            self.step(self.delete_group, dice.choice(GROUPS))
        else:
            super().random_step()

    # --- checks -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        super().check()
        self.changing.clear()
        listed = {one.name: (one.retry.max_attempts,) for one in self.configured.list()}
        for (kind, group), values in self.values.items():
            found: Any = self.offsets.find(group, TOPIC) if kind == OFFSETS else listed.get(group, ())
            assert found in values, f"{kind} of {group} is {found}; possible: {values}"
            values[:] = [found]
