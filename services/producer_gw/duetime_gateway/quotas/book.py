"""Quotas in the metadata database, and the use that gateways report to each other there."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from duetime_core.metadata import Database, GatewayModel, QuotaModel, table_of
from duetime_core.metadata.heartbeats import beat, forget
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from duetime_gateway.quotas.limits import QUOTAS_MAX, Limits, QuotaOwner, QuotasExhausted, parse
from duetime_gateway.quotas.meters import Use

# Users and topics that a gateway reports: those with the highest demand.
TOLD_MAX = 4_096
_GATEWAYS, _QUOTAS = table_of(GatewayModel).c, table_of(QuotaModel).c
_READ_GATEWAYS = select(_GATEWAYS.member_id, _GATEWAYS.heartbeat, _GATEWAYS.use)
_READ_QUOTAS = select(_QUOTAS.kind, _QUOTAS.name, _QUOTAS.limits)


class QuotaPage(NamedTuple):
    """The database's content. `gateways`: heartbeat and use of each gateway that keeps quotas."""

    limits: dict[QuotaOwner, Limits]
    gateways: dict[str, tuple[int, str]]


class QuotaBook:
    """The database's side of one gateway, which is known as `me`."""

    def __init__(self, database: Database, me: str) -> None:
        self._database = database
        self.me = me
        # Parsed limits by text: most are unchanged a second later.
        self._parsed: dict[str, Limits] = {}

    async def exchange(self, used: Mapping[QuotaOwner, Use] | None) -> QuotaPage:
        """Reports this gateway's use; reads quotas and the use of others. None: this gateway uses nothing.

        Raises:
            Unavailable: the database does not answer.
        """
        told = None if used is None else told_of(used)
        rows, gateways = await self._database.run(lambda session: self._exchange(session, told))
        self._parsed = {text: self._parsed.get(text) or parse(text) for _, _, text in rows}
        return QuotaPage({QuotaOwner(kind, name): self._parsed[text] for kind, name, text in rows}, gateways)

    def _exchange(self, session: Session, told: str | None) -> tuple[list[Any], dict[str, tuple[int, str]]]:
        gateways: dict[str, tuple[int, str]] = {}
        if told is not None:
            beat(session, GatewayModel, self.me, {"use": told})
            gateways = {member: (number, use) for member, number, use in session.execute(_READ_GATEWAYS)}
        return [tuple(row) for row in session.execute(_READ_QUOTAS)], gateways

    async def forget(self, gone: Mapping[str, int]) -> None:
        """Removes gateways whose heartbeat has stopped at this number. Raises: Unavailable."""
        await self._database.run(lambda session: forget(session, GatewayModel, gone))

    async def leave(self) -> None:
        """Removes this gateway's row. Raises: Unavailable."""
        await self._database.run(
            lambda session: session.execute(delete(GatewayModel).where(GatewayModel.member_id == self.me))
        )

    async def set(self, of: QuotaOwner, limits: Limits) -> None:
        """Raises: Unavailable, QuotasExhausted."""

        def work(session: Session) -> None:
            row = session.get(QuotaModel, tuple(of))
            if row is not None:
                row.limits = limits.text()
                return
            if (session.scalar(select(func.count()).select_from(QuotaModel)) or 0) >= QUOTAS_MAX:
                raise QuotasExhausted(f"there are {QUOTAS_MAX} quotas, the limit: remove some")
            session.add(QuotaModel(kind=of.kind, name=of.name, limits=limits.text()))

        await self._database.run(work)

    async def remove(self, of: QuotaOwner) -> None:
        """Idempotent. Raises: Unavailable."""
        own = (QuotaModel.kind == of.kind) & (QuotaModel.name == of.name)
        await self._database.run(lambda session: session.execute(delete(QuotaModel).where(own)))


def told_of(used: Mapping[QuotaOwner, Use]) -> str:
    """JSON: {"user": {"a": [messages a second, ...]}, ...}."""
    most = sorted(used.items(), key=lambda one: one[1], reverse=True)[:TOLD_MAX]
    told: dict[str, dict[str, list[float]]] = {}
    for of, use in most:
        told.setdefault(of.kind, {})[of.name] = [round(value, 2) for value in use]
    return json.dumps(told)


def used_of(told: str) -> dict[QuotaOwner, Use]:
    """Inverse of `told_of`; additions of newer versions are ignored."""
    found: Mapping[str, Mapping[str, list[Any]]] = json.loads(told)
    return {QuotaOwner(kind, name): Use(*use[:5]) for kind, names in found.items() for name, use in names.items()}
