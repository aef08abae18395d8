"""Lends parts of groups' rates from shards without a use for them to shards whose messages wait for permits.

    every second   each shard ──▶ the parts that it has a use for, and its clock
                   spare parts ──▶ lent for 2 s ──▶ borrowed by the shards that want more

The shards keep the rate: a loan is never of more parts than a lender has, and ends at the borrower first. So gateways
need not agree. If none of them or no shard answers, loans end, and each shard has its equal part.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from duetime.v1 import store_pb2
from duetime_core.clock import Clock
from duetime_core.telemetry.defects import outcome
from duetime_core.telemetry.logs import sparing
from duetime_format import limits

from duetime_gateway.shards.shards import Shards

log = sparing()

PERIOD_MS = 1_000
# Less than the rest of a loan when it is renewed, so that a shard that hangs ends no loans of others.
TIMEOUT_MS = 400
# Longer than a receive waits.
RECEIVED_MS = 60_000


class RateKey(NamedTuple):
    """The rate of a group in a topic."""

    group: str
    topic: str


class RateTransfer(NamedTuple):
    """Parts of a rate that one shard lends to another one."""

    lender: int
    borrower: int
    parts: int


def plan_transfers(wanted: Mapping[int, int]) -> list[RateTransfer]:
    """The loans by the parts that each shard wants: spare parts, evenly to shards that want more than theirs."""
    spare = {shard: limits.RATE_PARTS - parts for shard, parts in wanted.items() if parts < limits.RATE_PARTS}
    missing = sorted((parts - limits.RATE_PARTS, shard) for shard, parts in wanted.items() if parts > limits.RATE_PARTS)
    left, found = sum(spare.values()), []
    for index, (most, borrower) in enumerate(missing):
        given = min(most, left // (len(missing) - index))
        left -= given
        for lender, parts in spare.items():
            lent = min(parts, given)
            if lent:
                found.append(RateTransfer(lender, borrower, lent))
                spare[lender] -= lent
                given -= lent
    return found


class RateLender:
    """The rates that clients of this gateway receive at, and the loop that lends their parts."""

    def __init__(self, shards: Shards, clock: Clock) -> None:
        self._shards = shards
        self._clock = clock
        # Shards with queues of the topic, and the time of the last receive.
        self._received: dict[RateKey, tuple[tuple[int, ...], float]] = {}
        self._noted = asyncio.Event()

    def note(self, key: RateKey, numbers: Sequence[int]) -> None:
        """Notes a receive from these shards."""
        self._received[key] = tuple(numbers), self._clock.monotonic_ms()
        self._noted.set()

    async def run(self) -> None:
        while True:
            await self._noted.wait()
            await self.exchange()
            await self._clock.sleep(PERIOD_MS)

    async def exchange(self) -> None:
        """Lends parts of all rates once. Never raises."""
        since_ms = self._clock.monotonic_ms() - RECEIVED_MS
        self._received = {key: one for key, one in self._received.items() if one[1] >= since_ms}
        if not self._received:
            self._noted.clear()
        keys = list(self._received)
        for first in range(0, len(keys), limits.RATE_SHARES_MAX):
            await self._lend(keys[first : first + limits.RATE_SHARES_MAX])

    async def _lend(self, keys: Iterable[RateKey]) -> None:
        places = {key: self._received[key][0] for key in keys}
        asked: dict[int, dict[RateKey, store_pb2.RateShareRequest]] = {}
        for key, numbers in places.items():
            for number in numbers:
                asked.setdefault(number, {})[key] = _request(key, places)
        wanted: dict[RateKey, dict[int, int]] = {key: {} for key in places}
        clocks: dict[int, int] = {}
        for number, (now_ms, states) in (await self._ask(asked)).items():
            clocks[number] = now_ms
            for key, state in states.items():
                if state.is_known:
                    wanted[key][number] = state.wanted_parts
        lent: dict[int, dict[RateKey, store_pb2.RateShareRequest]] = {}
        for key, parts in wanted.items():
            for one in plan_transfers(parts):
                request = lent.setdefault(one.lender, {}).setdefault(key, _request(key, places))
                request.lent.add(shard=one.borrower, parts=one.parts)
        borrowed: dict[int, dict[RateKey, store_pb2.RateShareRequest]] = {}
        for lender, (_, states) in (await self._ask(lent)).items():
            for key, state in states.items():
                for loan in state.lent:
                    if loan.parts:
                        request = borrowed.setdefault(loan.shard, {}).setdefault(key, _request(key, places))
                        request.asked_at_ms = clocks[loan.shard]
                        request.borrowed.add(shard=lender, parts=loan.parts)
        await self._ask(borrowed)

    async def _ask(
        self, asked: Mapping[int, Mapping[RateKey, store_pb2.RateShareRequest]]
    ) -> dict[int, tuple[int, dict[RateKey, store_pb2.RateShareState]]]:
        """The clock and the states of each shard that answers."""

        async def ask(number: int) -> store_pb2.ShareRatesResponse | None:
            request = store_pb2.ShareRatesRequest(shares=asked[number].values())
            answer, error = await outcome(
                lambda: self._shards.get(number).store.ask("ShareRates", request, TIMEOUT_MS), "ShareRates"
            )
            if error is not None:
                log.info("a shard takes no part in lending rates", shard=number, why=error.text)
            return answer

        answers = await asyncio.gather(*map(ask, asked))
        return {
            number: (answer.now_ms, dict(zip(asked[number], answer.shares, strict=True)))
            for number, answer in zip(asked, answers, strict=True)
            if answer is not None
        }


def _request(key: RateKey, places: Mapping[RateKey, tuple[int, ...]]) -> store_pb2.RateShareRequest:
    return store_pb2.RateShareRequest(group=key.group, topic=key.topic, shard_count=len(places[key]))
