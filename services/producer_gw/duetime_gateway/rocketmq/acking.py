"""Gathers acks of single messages: RocketMQ's clients make one call each, and a call to a shard costs as much as dozens
of its receipts.

    ack ──▶ waits while one call to its shard is running ──▶ one call for the waiting acks of its group ──▶ its status
"""

import asyncio
from collections.abc import Sequence
from functools import partial

from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError
from duetime_core.rpc.gathering import QuestionGatherer
from duetime_core.telemetry.defects import outcome
from duetime_format.limits import RECEIPTS_MAX
from duetime_format.receipts import shard_of

from duetime_gateway.consuming.leases import LeaseRouter
from duetime_gateway.errors import shard_unavailable

WAITING_MAX = 65_536
# Timeout for a caller without a deadline.
WAIT_MS_MAX = 30_000.0


class Acks:
    """All running and waiting acks."""

    def __init__(self, leases: LeaseRouter, clock: Clock, tasks: asyncio.TaskGroup) -> None:
        self._leases = leases
        self._clock = clock
        self._tasks = tasks
        # Gatherings by shard: one that does not answer delays no other's acks.
        self._gatherings: dict[int, QuestionGatherer[tuple[str, bytes], int]] = {}

    async def ack(self, group: str, receipts: Sequence[bytes], remaining_ms: float | None) -> Sequence[int]:
        """Returns a `ReceiptStatus` for each receipt; empty: all OK. Raises: DueTimeError: see `LeaseRouter.ack`."""
        shard = shard_of(receipts[0])
        if len(receipts) > 1 or shard is None:
            return await self._leases.ack(group, receipts, remaining_ms)
        question = group, receipts[0]
        wait_ms = WAIT_MS_MAX if remaining_ms is None else min(remaining_ms, WAIT_MS_MAX)
        answer = (await self._of(shard).ask([question], wait_ms)).get(question)
        if answer is None:
            text = f"shard {shard} did not answer within {wait_ms:.0f} ms"
            raise shard_unavailable(text)
        if isinstance(answer, DueTimeError):
            raise answer
        return (answer,)

    def _of(self, shard: int) -> QuestionGatherer[tuple[str, bytes], int]:
        found = self._gatherings.get(shard)
        if found is None:
            found = self._gatherings[shard] = QuestionGatherer(
                f"acks to shard {shard}", self._answer, self._clock, round_max=RECEIPTS_MAX, waiting_max=WAITING_MAX
            )
            found.start(self._tasks)
        return found

    async def _answer(self, questions: list[tuple[str, bytes]]) -> dict[tuple[str, bytes], int | DueTimeError]:
        """Runs one round, with a call for each group."""
        groups: dict[str, list[bytes]] = {}
        for group, receipt in questions:
            groups.setdefault(group, []).append(receipt)
        asked = [outcome(partial(self._leases.ack, group, receipts, None), "ack") for group, receipts in groups.items()]
        found: dict[tuple[str, bytes], int | DueTimeError] = {}
        for (group, receipts), (statuses, error) in zip(groups.items(), await asyncio.gather(*asked), strict=True):
            answers: Sequence[int | DueTimeError] = statuses or [0] * len(receipts)
            if error is not None:
                answers = [error] * len(receipts)
            found.update(((group, receipt), one) for receipt, one in zip(receipts, answers, strict=True))
        return found
