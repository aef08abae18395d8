"""The rows by which members recognise each other as alive: each increments its own. See duetime_core.node.members.

Each function is part of the caller's transaction.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, cast

from sqlalchemy import CursorResult, Update, bindparam, delete, update
from sqlalchemy.orm import Session

from duetime_core.metadata.models import GatewayModel, SchedulerModel, table_of

MemberModel = type[SchedulerModel | GatewayModel]
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def beat(
    session: Session, model: MemberModel, me: str, told: Mapping[str, Any], first: Mapping[str, Any] = _NOTHING
) -> None:
    """Increments a member's heartbeat, and sets its values; `first` is set only with the first heartbeat."""
    counted = session.execute(_counting_up(model), {"me": me, **told})
    if not cast("CursorResult[Any]", counted).rowcount:
        # The first heartbeat, or other members removed this one as dead during a pause.
        session.add(model(member_id=me, heartbeat=1, **told, **first))
        session.flush()


@cache
def _counting_up(model: MemberModel) -> Update:
    """Also sets the columns passed at execution."""
    table = table_of(model)
    return update(table).where(table.c.member_id == bindparam("me")).values(heartbeat=table.c.heartbeat + 1)


def forget(session: Session, model: MemberModel, gone: Mapping[str, int]) -> None:
    """Removes members whose heartbeat has stopped at this number."""
    for member, heartbeat in gone.items():
        silent = (model.member_id == member) & (model.heartbeat == heartbeat)
        session.execute(delete(model).where(silent))
