"""Keeps a gateway's quotas up to date: reads them, reports the use here, and takes this gateway's shares.

    every second:  use here ──▶ database: this gateway's row, a heartbeat
                   quotas, rows of other live gateways ──▶ shares; pending messages ──▶ counts

Without quotas this is one short read every two seconds. While the database is unavailable, quotas and shares are kept.
"""

import asyncio
from collections.abc import Iterator

from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError
from duetime_core.node.members import MemberWatch
from duetime_core.telemetry.defects import outcome
from duetime_core.telemetry.logs import sparing

from duetime_gateway.metrics import QuotaFigure as Figure
from duetime_gateway.metrics import QuotaMetrics
from duetime_gateway.quotas.book import QuotaBook, QuotaPage, used_of
from duetime_gateway.quotas.limits import Limits, QuotaOwner
from duetime_gateway.quotas.pending import PendingCounts
from duetime_gateway.quotas.quotas import Quotas

log = sparing()

PERIOD_MS, IDLE_MS = 1_000, 2_000
# A gateway whose heartbeat stops for this time is dead; the others take over its shares.
LIVE_MS = 3_000
# Quotas with metrics of their own.
SHOWN_MAX = 200


class QuotaKeeper:
    """The loop, and the calls that set quotas."""

    def __init__(
        self, quotas: Quotas, book: QuotaBook, counts: PendingCounts, clock: Clock, metrics: QuotaMetrics
    ) -> None:
        self._quotas = quotas
        self._book = book
        self._counts = counts
        self._clock = clock
        self._metrics = metrics
        self._watch = MemberWatch(book.me, lease_ms=LIVE_MS, tick_ms_max=2 * PERIOD_MS)
        self._is_member = False
        self._lock = asyncio.Lock()
        metrics.follow(self._figures)

    async def run(self) -> None:
        while True:
            await self._clock.sleep(PERIOD_MS if self._quotas.active else IDLE_MS)
            await self.exchange()

    async def exchange(self) -> None:
        """Exchanges use and quotas with the database; on failure the old ones are kept. Never raises."""
        async with self._lock:
            _, error = await outcome(self._exchange, "quotas")
        if error is not None:
            self._metrics.exchanges.labels("failed").inc()
            if self._quotas.active:
                log.warning("cannot read quotas: the last ones are kept", why=error.text)
        else:
            self._metrics.exchanges.labels("done").inc()

    async def _exchange(self) -> None:
        used = self._quotas.roll()
        page = await self._book.exchange(used if self._is_member else None)
        if page.limits and not self._is_member:
            self._is_member = True
            page = await self._book.exchange(used)
        elif self._is_member and not page.limits:
            await self.leave()
        self._quotas.set(page.limits)
        await self._share(page)
        await self._counts.refresh()

    async def _share(self, page: QuotaPage) -> None:
        heartbeats = {member: beat for member, (beat, _) in page.gateways.items()}
        live, dead = self._watch.observe(heartbeats, self._clock.monotonic_ms())
        others = {
            member: used_of(told)
            for member, (_, told) in page.gateways.items()
            if member in live and member != self._book.me
        }
        self._quotas.share(others)
        if dead:
            await self._book.forget({member: heartbeats[member] for member in dead})

    def _figures(self) -> Iterator[Figure]:
        """Figures for metrics, of the first quotas by name."""
        used = self._quotas.used()
        for of in sorted(used)[:SHOWN_MAX]:
            for name in Limits.__slots__:
                limit = getattr(self._quotas.limits[of], name)
                if limit and not name.startswith(("burst", "per_")):
                    yield Figure(of.kind, of.name, name, limit, used[of][name], self._quotas.refused[of][name])

    async def refresh(self) -> None:
        """Reads the quotas and the use at other gateways. Raises: Unavailable."""
        async with self._lock:
            await self._exchange()

    async def set(self, of: QuotaOwner, limits: Limits) -> None:
        """Raises: Unavailable, QuotasExhausted."""
        await self._book.set(of, limits)
        await self.exchange()

    async def remove(self, of: QuotaOwner) -> None:
        """Raises: Unavailable."""
        await self._book.remove(of)
        await self.exchange()

    async def leave(self) -> None:
        """Returns the shares to the other gateways at once, if the database is available. Never raises."""
        if self._is_member:
            self._is_member = False
            try:
                await self._book.leave()
            except DueTimeError as error:
                log.info("cannot return quota shares", why=error.text)
