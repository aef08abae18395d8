"""Users in both databases: changes that a follower reads, and their order."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from duetime_core.errors import AlreadyExists, FailedPrecondition, NotFound
from duetime_core.metadata import Database, upgrade
from duetime_core.metadata import users as table
from duetime_core.metadata.users import Changes, StoredGrant, StoredKey, StoredToken, UsersExhausted
from sqlalchemy import text

GRANT = StoredGrant("send", "topic", "orders*")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
async def database(request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    url = request.getfixturevalue(f"{'sqlite' if request.param == 'sqlite' else 'postgres'}_url")
    await asyncio.to_thread(upgrade, url)
    made = Database(url)
    await made.start()
    yield made
    await made.stop()


async def since(database: Database, version: int) -> Changes:
    return await database.run(lambda session: table.changes_since(session, version))


async def test_follower_reads_only_changes(database: Database) -> None:
    assert await since(database, 0) == Changes(0, None, {})
    for name in ("a", "b"):
        await database.run(lambda session, name=name: table.create_user(session, name, 1))
    first = await since(database, 0)
    assert (first.version, first.names, set(first.changed)) == (2, {"a", "b"}, {"a", "b"})
    await database.run(lambda session: table.add_grants(session, "a", [GRANT, GRANT]))
    second = await since(database, first.version)
    assert (second.version, set(second.changed), second.changed["a"].grants) == (3, {"a"}, [GRANT])
    await database.run(lambda session: table.delete_user(session, "b"))
    third = await since(database, second.version)
    assert (third.names, third.changed) == ({"a"}, {})
    assert (await since(database, third.version)).names is None


async def test_database_put_back_from_a_copy_is_read_as_a_whole(database: Database) -> None:
    await database.run(lambda session: table.create_user(session, "a", 1))
    found = await since(database, 1_000)
    assert (found.version, set(found.changed)) == (1, {"a"})


async def test_changes_at_once_have_an_order_that_no_reader_misses(database: Database) -> None:
    names = [f"user{number}" for number in range(20)]

    async def follow() -> set[str]:
        seen: set[str] = set()
        version = 0
        while len(seen) < len(names):
            changes = await since(database, version)
            version = changes.version
            seen |= set(changes.changed)
        assert version == len(names)
        return seen

    following = asyncio.ensure_future(follow())
    await asyncio.gather(
        *(database.run(lambda session, name=name: table.create_user(session, name, 1)) for name in names)
    )
    assert await asyncio.wait_for(following, 60) == set(names)


async def test_everything_of_a_user_goes_with_them(database: Database) -> None:
    def make(session: object) -> None:
        table.create_user(session, "a", 1)  # type: ignore[arg-type]
        table.add_token(session, "a", StoredToken("t" * 12, "hash", 1, 0))  # type: ignore[arg-type]
        table.add_key(session, StoredKey("K" * 24, "a", "sealed", 1))  # type: ignore[arg-type]
        table.add_grants(session, "a", [GRANT])  # type: ignore[arg-type]

    await database.run(make)
    await database.run(lambda session: table.delete_user(session, "a"))
    for name in ("user_tokens", "user_keys", "user_grants", "users"):
        assert await database.run(lambda session, name=name: session.scalar(text(f"SELECT count(*) FROM {name}"))) == 0


async def test_expired_tokens_make_room_and_others_keep_their_expiry(database: Database) -> None:
    def make(session: object) -> None:
        table.create_user(session, "a", 1)  # type: ignore[arg-type]
        for number, ends_at_ms in enumerate((0, 100, 5_000)):
            table.add_token(session, "a", StoredToken(f"token{number}", "hash", 1, ends_at_ms))  # type: ignore[arg-type]

    await database.run(make)
    await database.run(lambda session: table.add_token(session, "a", StoredToken("new", "hash", 1_000, 0)))
    await database.run(lambda session: table.end_others(session, "a", "new", 2_000))
    user = (await since(database, 0)).changed["a"]
    assert {token.id: token.expires_at_ms for token in user.tokens} == {"token0": 2_000, "token2": 2_000, "new": 0}


async def test_impossible_changes_of_users_are_rejected(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await database.run(lambda session: table.create_user(session, "a", 1))
    with pytest.raises(AlreadyExists):
        await database.run(lambda session: table.create_user(session, "a", 1))
    with pytest.raises(NotFound):
        await database.run(lambda session: table.add_grants(session, "b", [GRANT]))
    with pytest.raises(NotFound):
        await database.run(lambda session: table.delete_key(session, "K" * 24))
    monkeypatch.setattr(table, "USERS_MAX", 1)
    with pytest.raises(UsersExhausted):
        await database.run(lambda session: table.create_user(session, "b", 1))
    await database.run(lambda session: table.set_revoked(session, "a", revoked=True))
    with pytest.raises(FailedPrecondition):
        await database.run(lambda session: table.add_token(session, "a", StoredToken("t", "hash", 1, 0)))
    # A change that was refused counts nothing up.
    assert (await since(database, 0)).version == 2
