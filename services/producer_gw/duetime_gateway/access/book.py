"""The book: a copy of all users in memory, read once a second, kept for a while if the database is unavailable.

    users_version ── one number a second ──▶ changed users ──▶ the book ──▶ the gatekeeper ends calls

A gateway holds every user, so calls by known users and calls with nonexistent tokens need no database. A token missing
from the book triggers one immediate read for all waiting calls: it may be new.
"""

import asyncio
from functools import lru_cache

import structlog
from duetime_core.clock import Clock, SystemClock
from duetime_core.errors import Unavailable
from duetime_core.metadata import Database
from duetime_core.metadata.users import Changes, StoredGrant, StoredKey, StoredToken, StoredUser, changes_since

from duetime_gateway.access.grants import GROUP_PREFIX, Access
from duetime_gateway.access.metrics import AccessMetrics

log = structlog.get_logger()

PERIOD_MS = 1_000
# Minimum between two reads, regardless of the number of unknown tokens.
GAP_MS = 50
# Age at which the book is reported as out of date.
STALE_MS = 10_000
# Longest wait for the database by a call with an unknown token.
WAIT_S = 3.0
# Users whose rights are cached.
ACCESSES_MAX = 4_096
# Measures the database's load, so it is never a test's clock.
_CLOCK = SystemClock()


class UserBook:
    """See the module."""

    def __init__(self, database: Database, clock: Clock, metrics: AccessMetrics, keep_ms: int) -> None:
        """`keep_ms`: time for which the last read stays valid while the database is unavailable."""
        self._database = database
        self._clock = clock
        self._metrics = metrics
        self._keep_ms = keep_ms
        self._users: dict[str, StoredUser] = {}
        self._tokens: dict[str, tuple[StoredUser, StoredToken]] = {}
        self._keys: dict[str, StoredKey] = {}
        # Version of the users at the last read; 0: never read.
        self._version = 0
        # Number of changes of the book. Conclusions from the book hold until it changes.
        self.edition = 0
        self._read_at_ms: float | None = None
        self.is_stale = False
        self._change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Reads started; callers, each with the first read that serves it; a future that starts the next read at once.
        self._begun = 0
        self._waiting: list[tuple[int, asyncio.Future[bool]]] = []
        self._wanted: asyncio.Future[None] | None = None
        metrics.age.set_function(lambda: self._age_ms() / 1000.0)

    async def follow(self) -> None:
        """Reads changes until cancelled."""
        while True:
            self._begun += 1
            number, self._wanted = self._begun, asyncio.get_running_loop().create_future()
            self._settle(number, await self._read())
            await _CLOCK.sleep(GAP_MS)
            await self._clock.wait_for(self._wanted, PERIOD_MS - GAP_MS)

    async def refresh(self) -> None:
        """Returns once the book includes every change made before this call. Raises: Unavailable."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._begun + 1, done))
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)
        await asyncio.wait({done}, timeout=WAIT_S)
        if not (done.done() and done.result()):
            done.cancel()
            raise _unread("the metadata database is unavailable, and the token is not cached")

    async def _read(self) -> bool:
        try:
            changes = await self._database.run(lambda session: changes_since(session, self._version))
        except Unavailable:
            self._note_age()
            return False
        self._read_at_ms = self._clock.monotonic_ms()
        self._take(changes)
        self._note_age()
        return True

    def _settle(self, number: int, was_read: bool) -> None:
        waiting, self._waiting = self._waiting, []
        for wanted, done in waiting:
            if wanted > number:
                self._waiting.append((wanted, done))
            elif not done.done():
                done.set_result(was_read)

    def _take(self, changes: Changes) -> None:
        self._version = changes.version
        if changes.names is None and self.edition:
            return
        if changes.names is not None:
            kept = {name: user for name, user in self._users.items() if name in changes.names}
            self._users = kept | dict(changes.changed)
        self._tokens = {token.id: (user, token) for user in self._users.values() for token in user.tokens}
        self._keys = {key.access_key: key for user in self._users.values() for key in user.keys}
        self._metrics.users.set(len(self._users))
        self.edition += 1
        self._change.set_result(None)
        self._change = asyncio.get_running_loop().create_future()

    async def changed(self, edition: int, wait_ms: float) -> None:
        """Returns when the edition differs from the given one, or after `wait_ms`."""
        if self.edition == edition:
            await self._clock.wait_for(self._change, wait_ms)

    def _note_age(self) -> None:
        stale = self._age_ms() > STALE_MS
        if stale and not self.is_stale:
            log.warning("rights are out of date", age_ms=int(min(self._age_ms(), self._keep_ms)), kept_ms=self._keep_ms)
        elif self.is_stale and not stale:
            log.info("rights are up to date again")
        self.is_stale = stale

    def _age_ms(self) -> float:
        return float("inf") if self._read_at_ms is None else self._clock.monotonic_ms() - self._read_at_ms

    def check(self) -> None:
        """Raises: Unavailable: the book was never read, or is older than `keep_ms`."""
        if self.is_stale and self._age_ms() > self._keep_ms:
            text = f"the metadata database has been unavailable for {self._keep_ms} ms, as long as rights are kept"
            raise _unread(text)
        if not self.edition:
            raise _unread("the metadata database has not answered yet")

    # --- lookups ----------------------------------------------------------------------------------------------------

    def token(self, token_id: str) -> tuple[StoredUser, StoredToken] | None:
        """A token and its user; None: unknown id."""
        return self._tokens.get(token_id)

    def key(self, access_key: str) -> StoredKey | None:
        """An access key with its sealed secret and its user; None: unknown key."""
        return self._keys.get(access_key)

    def access_of(self, name: str, groups: tuple[str, ...] = ()) -> Access | None:
        """The rights of a user, including those of the given identity-provider groups.

        None: the user is revoked or unknown.
        """
        user = self._users.get(name)
        if user is not None and user.revoked:
            return None
        known = [self._users[one] for group in groups if (one := GROUP_PREFIX + group) in self._users]
        if user is None and not known:
            return None
        own = () if user is None else user.grants
        return _access(name, frozenset(own).union(*(group.grants for group in known if not group.revoked)))


@lru_cache(ACCESSES_MAX)
def _access(name: str, grants: frozenset[StoredGrant]) -> Access:
    """The rights, cached: all tokens of a user share them."""
    return Access(name, grants)


def _unread(text: str) -> Unavailable:
    return Unavailable(f"cannot check the caller's rights: {text}", reason="RIGHTS_UNKNOWN")
