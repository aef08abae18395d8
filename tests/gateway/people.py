"""Users of a test's metadata database, and their tokens."""

import secrets
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import grpc
from duetime_core.access.sealing import Seal
from duetime_core.metadata import Database, upgrade
from duetime_core.metadata import users as table
from duetime_gateway.access.grants import ADMIN, admin_grant
from duetime_gateway.access.signatures import sign
from duetime_gateway.access.tokens import TokenParts, hash_of, new_token
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from sqlalchemy.orm import Session

T = TypeVar("T")
Metadata = tuple[tuple[str, str], ...]
DATE_TIME = "20261125T120000Z"


def shown(token: object) -> Metadata:
    """A call's metadata with this token."""
    return (("authorization", f"Bearer {token}"),)


def signed(access_key: str, secret: str) -> Metadata:
    """A call's metadata as RocketMQ's clients sign it."""
    said = f"MQv2-HMAC-SHA1 Credential={access_key}/x, SignedHeaders=x-mq-date-time, "
    signature = sign(secret, DATE_TIME).upper()
    return (("x-mq-date-time", DATE_TIME), ("authorization", f"{said}Signature={signature}"))


class Showing:
    """A channel whose calls all show a token."""

    def __init__(self, channel: grpc.aio.Channel, token: object) -> None:
        self._channel = channel
        self._metadata = shown(token)

    def __getattr__(self, kind: str) -> Any:
        """`unary_unary` and its like."""

        def method(*args: Any, **options: Any) -> Any:
            return partial(getattr(self._channel, kind)(*args, **options), metadata=self._metadata)

        return method


def grant(text: str) -> table.StoredGrant:
    """`send topic orders*`, or `admin`."""
    if text == ADMIN:
        return admin_grant()
    right, kind, pattern = text.split()
    return table.StoredGrant(right, kind, pattern)


class People:
    """Changes users as `duetime users` does, each change a transaction."""

    def __init__(self, url: str) -> None:
        upgrade(url)
        self._database = Database(url)

    async def __aenter__(self) -> "People":
        await self._database.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._database.stop()

    async def change(self, work: Callable[[Session], T]) -> T:
        return await self._database.run(work)

    async def add(self, name: str, *grants: str, expires_at_ms: int = 0) -> TokenParts:
        """A user with these rights, and a token."""
        token = new_token()
        stored = table.StoredToken(token.id, hash_of(token.secret), 1, expires_at_ms)

        def work(session: Session) -> None:
            table.create_user(session, name, 1)
            table.add_token(session, name, stored)
            table.add_grants(session, name, map(grant, grants))

        await self.change(work)
        return token

    async def add_key(self, name: str, secrets_key: str) -> tuple[str, str]:
        """A user's access key and its secret."""
        access_key, secret = secrets.token_hex(12), secrets.token_hex(16)
        stored = table.StoredKey(access_key, name, Seal(secrets_key).close(access_key, secret), 1)
        await self.change(lambda session: table.add_key(session, stored))
        return access_key, secret

    async def give(self, name: str, grants: Iterable[str]) -> None:
        await self.change(lambda session: table.add_grants(session, name, map(grant, grants)))

    async def take(self, name: str, text: str) -> None:
        await self.change(lambda session: table.remove_grant(session, name, grant(text)))

    async def revoke(self, name: str) -> None:
        await self.change(lambda session: table.set_revoked(session, name, revoked=True))


def reason_of(error: Any) -> str:
    """Of a status with ErrorInfo."""
    for detail in rpc_status.from_call(error).details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return str(info.reason)
    return ""
