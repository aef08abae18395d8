"""The gatekeeper by itself, on a clock of its own and with a database that fails to order."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from duetime_core.access import principal
from duetime_core.errors import DueTimeError, PermissionDenied, Unauthenticated, Unavailable
from duetime_core.metadata.users import Changes, StoredToken, StoredUser
from duetime_core.testing import FakeClock
from duetime_gateway.access import permit, verifying
from duetime_gateway.access.book import STALE_MS, UserBook
from duetime_gateway.access.gatekeeper import AccessGatekeeper
from duetime_gateway.access.grants import Kind, Right
from duetime_gateway.access.metrics import AccessMetrics
from duetime_gateway.access.tokens import TokenParts, hash_of, new_token
from duetime_gateway.face.permissions import RULES
from prometheus_client import CollectorRegistry

from tests.gateway.people import grant, shown

SEND, PULL, HEALTH = "/duetime.v1.Gateway/Send", "/duetime.v1.Gateway/Pull", "/grpc.health.v1.Health/Check"
KEEP_MS = 60_000


@dataclass
class FakeDatabase:
    """Users in memory."""

    users: dict[str, StoredUser] = field(default_factory=dict)
    version: int = 0
    away: bool = False
    reads: int = 0

    async def run(self, work: Callable[[Any], Any]) -> Changes:
        self.reads += 1
        if self.away:
            raise Unavailable("away", reason="METADATA_UNAVAILABLE")
        return Changes(self.version, frozenset(self.users), dict(self.users))

    def put(self, name: str, *grants: str, ends_at_ms: int = 0, token: TokenParts | None = None) -> TokenParts:
        token = token or new_token()
        stored = StoredToken(token.id, hash_of(token.secret), 1, ends_at_ms)
        self.users[name] = StoredUser(name, False, 1, [stored], list(map(grant, grants)))
        self.version += 1
        return token


class Context:
    """Of a call."""

    def __init__(self, metadata: Any) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> Any:
        return self._metadata

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


class Door:
    """A gatekeeper with the parts that it needs."""

    def __init__(self) -> None:
        self.clock, self.database, self.registry = FakeClock(), FakeDatabase(), CollectorRegistry()
        metrics = AccessMetrics(self.registry)
        self.book = UserBook(self.database, self.clock, metrics, KEEP_MS)  # type: ignore[arg-type]
        self.gatekeeper = AccessGatekeeper(self.book, RULES, self.clock, metrics)

    async def call(self, token: object, method: str = SEND, body: Any = None) -> Any:
        """A call as the border makes it."""
        try:
            await self.gatekeeper.admit(method, Context(shown(token) if token else ()))
            return await body() if body else (principal.current().name, permit.current())
        except asyncio.CancelledError:
            reason = self.gatekeeper.ended()
            if reason is None:
                raise
            raise reason from None
        finally:
            self.gatekeeper.left()

    def start(self, token: object, body: Any = None, method: str = SEND) -> "asyncio.Task[Any]":
        return asyncio.get_running_loop().create_task(self.call(token, method, body))

    async def reason(self, token: object, method: str = SEND) -> str:
        with pytest.raises(DueTimeError) as caught:
            await self.start(token, method=method)
        return caught.value.reason

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"duetime_gateway_{name}", labels) or 0.0

    async def pass_time(self, length_ms: float) -> None:
        """Advances the clock by seconds, each with the time that the book needs to reload."""
        for _ in range(int(length_ms / 1_000)):
            await self.clock.advance(1_000)
            await self.read()

    async def read(self) -> None:
        """Returns once the book was read, or could not be."""
        try:
            await self.book.refresh()
        except Unavailable:
            return


@asynccontextmanager
async def door() -> AsyncIterator[Door]:
    made = Door()
    async with asyncio.TaskGroup() as tasks:
        loops = [tasks.create_task(made.book.follow()), tasks.create_task(made.gatekeeper.watch())]
        try:
            yield made
        finally:
            for loop in loops:
                loop.cancel()


async def test_call_is_made_in_the_name_of_its_user_and_with_their_rights() -> None:
    async with door() as made:
        token = made.database.put("shop", "send topic orders")
        name, access = await made.start(token)
        assert name == "shop"
        assert access.may(Right.SEND, Kind.TOPIC, "orders")
        assert not access.may(Right.SEND, Kind.TOPIC, "other")
    assert principal.current() is principal.NOBODY


async def test_each_refusal_has_its_reason_and_is_counted() -> None:
    async with door() as made:
        token = made.database.put("shop", "send topic orders")
        await made.read()
        other = new_token()
        assert await made.reason(None) == "TOKEN_MISSING"
        assert await made.reason(other) == "TOKEN_INVALID"
        assert await made.reason(f"dt_{token.id}_{other.secret}") == "TOKEN_INVALID"
        assert await made.reason("no token of ours") == "TOKEN_INVALID"
        assert await made.reason("x" * 30_000) == "TOKEN_INVALID"
        assert await made.reason(token, PULL) == "RIGHT_MISSING"
        assert await made.reason(token, "/duetime.v1.Gateway/Unheard") == "RIGHT_MISSING"
        assert made.metric("refused_total", reason="token_invalid") == 4
        assert made.metric("refused_total", reason="right_missing") == 2
        # Nothing is kept of those that were refused.
        assert made.metric("passes") == 1


async def test_methods_for_anybody_need_no_token() -> None:
    async with door() as made:
        name, access = await made.start(None, method=HEALTH)
        assert name == ""
        assert not access.may(Right.SEND, Kind.TOPIC, "orders")


async def test_unknown_tokens_have_the_book_read_together() -> None:
    async with door() as made:
        await made.read()
        before = made.database.reads
        asked = [made.start(new_token()) for _ in range(50)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(one, Unauthenticated) for one in answers)
        assert made.database.reads - before <= 2


async def test_token_counts_until_it_ends_and_a_running_call_is_to_call_again() -> None:
    async with door() as made:
        old = made.database.put("shop", "send topic orders", ends_at_ms=made.clock.now_ms() + 5_000)
        running = made.start(old, body=asyncio.Event().wait)
        await made.start(old)
        await made.pass_time(4_000)
        await made.start(old)
        assert not running.done()
        await made.pass_time(2_000)
        assert await made.reason(old) == "TOKEN_EXPIRED"
        with pytest.raises(Unavailable) as caught:
            await running
        assert caught.value.reason == "TOKEN_EXPIRED"
        assert made.metric("calls_ended_total", reason="token_expired") == 1


async def test_last_rights_hold_for_a_while_without_the_database_and_then_nothing_does() -> None:
    async with door() as made:
        token = made.database.put("shop", "send topic orders")
        await made.start(token)
        running = made.start(token, body=asyncio.Event().wait)
        made.database.away = True
        await made.pass_time(STALE_MS + 1_000)
        await made.start(token)
        assert made.metric("stale_calls_total") == 1
        assert made.metric("rights_age_seconds") > STALE_MS / 1_000
        assert await made.reason(new_token()) == "RIGHTS_UNKNOWN"
        await made.pass_time(KEEP_MS - STALE_MS)
        assert await made.reason(token) == "RIGHTS_UNKNOWN"
        with pytest.raises(Unavailable):
            await running
        made.database.away = False
        await made.pass_time(1_000)
        await made.start(token)
        assert made.metric("rights_age_seconds") < 2


async def test_all_are_refused_before_users_are_read() -> None:
    made = Door()
    token = made.database.put("shop", "admin")
    assert await made.reason(token) == "RIGHTS_UNKNOWN"


async def test_another_users_change_costs_no_hash_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with door() as made:
        token = made.database.put("shop", "send topic orders")
        await made.start(token)
        running = made.start(token, body=asyncio.Event().wait)
        monkeypatch.setattr(verifying, "fits", lambda *_: pytest.fail("hashed again"))
        made.database.put("other", "admin")
        await made.pass_time(2_000)
        name, _ = await made.start(token)
        assert name == "shop"
        assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_rights_that_were_taken_hold_for_the_next_call() -> None:
    async with door() as made:
        token = made.database.put("shop", "send topic orders")
        await made.start(token)
        made.database.put("shop", "receive topic orders", token=token)
        await made.pass_time(1_000)
        with pytest.raises(PermissionDenied):
            await made.start(token)
