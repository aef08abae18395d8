"""A life of a shard with groups that commit offsets: an answered change is there after each crash or power cut."""

import random
from pathlib import Path
from typing import Any

from duetime_core.errors import DueTimeError

from tests.store.groups.group_life import TOPIC, GroupLife

COMMITTING = ("audit", "export")


class StateLife(GroupLife):
    """See the module."""

    def __init__(self, root: Path, dice: random.Random, *, mode: str = "sync") -> None:
        # Each value since the last one that was found, by group, and how many of them are surely replaced.
        self.values: dict[str, list[dict[int, int]]] = {group: [{}] for group in COMMITTING}
        self.changing: list[tuple[Any, str, int]] = []
        super().__init__(root, dice, mode=mode)

    def commit_offset(self, group: str, offset: int) -> None:
        self.run(self._commit(group, {0: offset}))

    def forget_offsets(self, group: str) -> None:
        self.run(self._commit(group, None))

    async def _commit(self, group: str, offsets: dict[int, int] | None) -> None:
        try:
            if offsets is None:
                self.store.gate.check_write()
                self.offsets.delete(group, {})
            else:
                self.offsets.commit(group, TOPIC, offsets)
        except DueTimeError:
            return
        values = self.values[group]
        values.append(offsets or {})
        durable = self.store.when_events_durable()
        if durable is not None:
            self.changing.append((durable, group, len(values) - 1))
        self._settle()

    def _settle(self) -> None:
        super()._settle()
        waiting = []
        for durable, group, number in self.changing:
            if not durable.done():
                waiting.append((durable, group, number))
            elif durable.exception() is None:
                values = self.values[group]
                values[:number] = [None] * number  # type: ignore[list-item]
        self.changing = waiting

    def random_step(self) -> None:
        dice, at = self.dice, self.dice.random()
        if at < 0.15:
            self.step(self.commit_offset, dice.choice(COMMITTING), dice.randint(0, 1 << 40))
        elif at < 0.18:
            self.step(self.forget_offsets, dice.choice(COMMITTING))
        else:
            super().random_step()

    def check(self) -> None:
        super().check()
        self.changing.clear()
        for group, values in self.values.items():
            found = self.offsets.find(group, TOPIC)
            assert found in values, f"{group} is at {found}; possible: {values}"
            values[:] = [found]
