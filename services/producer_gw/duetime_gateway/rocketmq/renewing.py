"""Renews leases of push consumers: they request no length, so the gateway that gave a lease renews it while its client
is alive.

    given for 60 s ──▶ renewed when 20 s are left ──▶ ... at most 3 h
        │ acknowledged, forwarded, or made visible later: no longer renewed
        └ its client gone or silent for 30 s: expires, or is returned at once if the client announced its end

If a client moves to another gateway, it is silent here, and its old leases expire within a minute and a half. If this
gateway dies, they expire within a minute.
"""

from collections.abc import Iterable, Sequence

from duetime_core.clock import Clock
from duetime_core.telemetry.defects import outcome
from duetime_core.telemetry.logs import sparing

from duetime_gateway.consuming.leases import LeaseRouter
from duetime_gateway.queries import Extension, LeaseStatus
from duetime_gateway.rocketmq.clients import Client, Clients
from duetime_gateway.rocketmq.metrics import RocketMQMetrics

log = sparing()

LEASE_MS = 60_000
RENEWED_BEFORE_MS = 20_000
KEPT_MS_MAX = 3 * 3_600_000
PERIOD_MS = 5_000
# Receipts per call.
RENEWED_AT_ONCE = 1_024


class _Batch:
    """The leases of one receive."""

    __slots__ = ("client", "ends_ms", "group", "receipts", "until_ms")

    def __init__(self, client: Client, group: str, receipts: Iterable[bytes], now_ms: float) -> None:
        self.client = client
        self.group = group
        # Unfinished ones.
        self.receipts = set(receipts)
        self.until_ms = now_ms + LEASE_MS
        self.ends_ms = now_ms + KEPT_MS_MAX


class Renewals:
    """All leases that this gateway renews."""

    def __init__(self, leases: LeaseRouter, clients: Clients, clock: Clock, metrics: RocketMQMetrics) -> None:
        self._leases = leases
        self._clients = clients
        self._clock = clock
        self._metrics = metrics
        self._by_receipt: dict[bytes, _Batch] = {}
        # Batches in the order of their receives.
        self._batches: dict[_Batch, None] = {}

    def add(self, client: Client, group: str, receipts: Sequence[bytes]) -> None:
        """Adds new leases."""
        batch = _Batch(client, group, receipts, self._clock.monotonic_ms())
        self._batches[batch] = None
        self._by_receipt.update(dict.fromkeys(receipts, batch))
        self._count()

    def forget(self, receipts: Iterable[bytes]) -> None:
        """Stops renewing these receipts; unknown ones are ignored."""
        for receipt in receipts:
            batch = self._by_receipt.pop(receipt, None)
            if batch is not None:
                batch.receipts.discard(receipt)
                if not batch.receipts:
                    self._batches.pop(batch, None)
        self._count()

    async def give_back(self, client: Client, remaining_ms: float | None) -> None:
        """Returns all leases of a client, without counting attempts."""
        groups: dict[str, list[bytes]] = {}
        for batch in self._batches:
            if batch.client is client:
                groups.setdefault(batch.group, []).extend(batch.receipts)
        for group, receipts in groups.items():
            self.forget(receipts)
            for first in range(0, len(receipts), RENEWED_AT_ONCE):
                part = receipts[first : first + RENEWED_AT_ONCE]
                extension = Extension(group, part, 0, not_attempted=True)
                _, error = await outcome(lambda one=extension: self._leases.extend(one, remaining_ms), "give back")  # type: ignore[misc]
                if error is not None:
                    log.warning("cannot return the leases of a departed client", group=group, why=error.text)

    async def run(self) -> None:
        """Renews leases periodically until cancelled."""
        while True:
            await self._clock.sleep(PERIOD_MS)
            await self.renew()
            self._clients.forget_silent()

    async def renew(self) -> None:
        """Runs one round."""
        now_ms = self._clock.monotonic_ms()
        due: dict[str, list[_Batch]] = {}
        for batch in list(self._batches):
            if batch.until_ms - now_ms > RENEWED_BEFORE_MS:
                continue
            if batch.until_ms <= now_ms or now_ms >= batch.ends_ms or not self._clients.is_alive(batch.client):
                self.forget(list(batch.receipts))
            else:
                due.setdefault(batch.group, []).append(batch)
        for group, batches in due.items():
            await self._renew(group, batches)

    async def _renew(self, group: str, batches: Sequence[_Batch]) -> None:
        receipts = [receipt for batch in batches for receipt in batch.receipts]
        for first in range(0, len(receipts), RENEWED_AT_ONCE):
            part = receipts[first : first + RENEWED_AT_ONCE]
            asked_ms = self._clock.monotonic_ms()
            extension = Extension(group, part, LEASE_MS)
            statuses, error = await outcome(lambda one=extension: self._leases.extend(one, None), "renew")  # type: ignore[misc]
            if error is not None:
                # The next round tries again while they last.
                log.warning("cannot renew leases", group=group, why=error.text)
                continue
            ended = [one for one, status in zip(part, statuses or (), strict=False) if status != LeaseStatus.OK]
            self.forget(ended)
            for batch in {self._by_receipt[one] for one in part if one in self._by_receipt}:
                batch.until_ms = asked_ms + LEASE_MS

    def _count(self) -> None:
        self._metrics.renewed.set(len(self._by_receipt))
