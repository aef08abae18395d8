"""Quotas in the metadata database, and what gateways tell each other there of their use."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from duetime_core.metadata import Database, GatewayModel, QuotaModel, table_of
from duetime_core.metadata.heartbeats import beat, forget
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from duetime_gateway.quotas.limits import QUOTAS_MAX, Limits, Of, QuotasExhausted, parse
from duetime_gateway.quotas.meters import Use

# Of a gateway's use, the users and topics that are told of: those that ask for most.
TOLD_MAX = 4_096
_GATEWAYS, _QUOTAS = table_of(GatewayModel).c, table_of(QuotaModel).c
_READ_GATEWAYS = select(_GATEWAYS.member_id, _GATEWAYS.heartbeat, _GATEWAYS.use)
_READ_QUOTAS = select(_QUOTAS.kind, _QUOTAS.name, _QUOTAS.limits)


class Page(NamedTuple):
    """What the database says. `gateways`: heartbeat and use of each that keeps quotas."""

    limits: dict[Of, Limits]
    gateways: dict[str, tuple[int, str]]


class Book:
    """Of one gateway, which is known as `me`."""

    def __init__(self, database: Database, me: str) -> None:
        self._database = database
        self.me = me
        # The quotas as they were read, and what they say: most are the same a second later.
        self._parsed: dict[str, Limits] = {}

    async def exchange(self, used: Mapping[Of, Use] | None) -> Page:
        """Tells what is used here, and reads quotas and what others have told. None: this gateway uses nothing.

        Raises:
            Unavailable: the database does not answer.
        """
        told = None if used is None else told_of(used)
        rows, gateways = await self._database.run(lambda session: self._exchange(session, told))
        self._parsed = {text: self._parsed.get(text) or parse(text) for _, _, text in rows}
        return Page({Of(kind, name): self._parsed[text] for kind, name, text in rows}, gateways)

    def _exchange(self, session: Session, told: str | None) -> tuple[list[Any], dict[str, tuple[int, str]]]:
        gateways: dict[str, tuple[int, str]] = {}
        if told is not None:
            beat(session, GatewayModel, self.me, {"use": told})
            gateways = {member: (number, use) for member, number, use in session.execute(_READ_GATEWAYS)}
        return [tuple(row) for row in session.execute(_READ_QUOTAS)], gateways

    async def forget(self, gone: Mapping[str, int]) -> None:
        """Removes gateways whose heartbeat has stood still at this number. Raises: Unavailable."""
        await self._database.run(lambda session: forget(session, GatewayModel, gone))

    async def leave(self) -> None:
        """This gateway uses nothing any more. Raises: Unavailable."""
        await self._database.run(
            lambda session: session.execute(delete(GatewayModel).where(GatewayModel.member_id == self.me))
        )

    async def set(self, of: Of, limits: Limits) -> None:
        """Raises: Unavailable, QuotasExhausted."""

        def work(session: Session) -> None:
            row = session.get(QuotaModel, tuple(of))
            if row is not None:
                row.limits = limits.text()
                return
            if (session.scalar(select(func.count()).select_from(QuotaModel)) or 0) >= QUOTAS_MAX:
                raise QuotasExhausted(f"there are {QUOTAS_MAX} quotas, the most: remove some")
            session.add(QuotaModel(kind=of.kind, name=of.name, limits=limits.text()))

        await self._database.run(work)

    async def remove(self, of: Of) -> None:
        """Idempotent. Raises: Unavailable."""
        own = (QuotaModel.kind == of.kind) & (QuotaModel.name == of.name)
        await self._database.run(lambda session: session.execute(delete(QuotaModel).where(own)))


def told_of(used: Mapping[Of, Use]) -> str:
    """JSON: {"user": {"a": [messages a second, ...]}, ...}."""
    most = sorted(used.items(), key=lambda one: one[1], reverse=True)[:TOLD_MAX]
    told: dict[str, dict[str, list[float]]] = {}
    for of, use in most:
        told.setdefault(of.kind, {})[of.name] = [round(value, 2) for value in use]
    return json.dumps(told)


def used_of(told: str) -> dict[Of, Use]:
    """As `told_of` gave it; what a newer version has added is left out."""
    found: Mapping[str, Mapping[str, list[Any]]] = json.loads(told)
    return {Of(kind, name): Use(*use[:5]) for kind, names in found.items() for name, use in names.items()}
