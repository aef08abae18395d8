"""Groups: made once, found by all within a second, and known while the database is away."""

import asyncio
import threading
from collections.abc import Callable

import pytest
from duetime.v1.consumer_pb2 import GROUP_START_LATEST, GROUP_START_TIME, Group
from duetime.v1.message_pb2 import LevelBackoff, RetryPolicy
from duetime_core.errors import AlreadyExists, NotFound, Unavailable
from duetime_core.metadata import Database, GroupModel, GroupTable, groups, upgrade
from duetime_core.rpc import retry_policy
from duetime_core.testing import FakeClock
from duetime_core.testing.clock import START_MS
from sqlalchemy.orm import Session

DEFAULT = RetryPolicy(max_attempts=17, levels=LevelBackoff())


class Two:
    """Two processes' views of one database."""

    def __init__(self, url: str) -> None:
        self.clock = FakeClock()
        self.database, self.other_database = Database(url), Database(url)
        self.groups, self.others = GroupTable(self.database, self.clock), GroupTable(self.other_database, self.clock)


@pytest.fixture
async def two(empty_database_url: str):
    await asyncio.to_thread(upgrade, empty_database_url)
    two = Two(empty_database_url)
    yield two
    await two.database.stop()
    await two.other_database.stop()


async def test_group_is_made_with_defaults_and_once(two: Two) -> None:
    assert await two.groups.find("billing") is None
    made = await two.groups.ensure("billing")
    assert made == Group(name="billing", retry=DEFAULT, created_at_ms=START_MS)
    two.clock.move(5)
    assert await two.others.ensure("billing") == made
    assert await two.groups.list() == [made]


async def test_group_that_starts_latest_starts_with_its_creation(two: Two) -> None:
    made = await two.groups.create(Group(name="late", start=GROUP_START_LATEST))
    assert (made.start_at_ms, made.created_at_ms) == (START_MS, START_MS)
    told = await two.groups.create(Group(name="later", start=GROUP_START_LATEST, start_at_ms=5))
    assert (told.start_at_ms, told.created_at_ms) == (5, START_MS)
    assert await two.others.create(Group(name="later", start=GROUP_START_LATEST, start_at_ms=6)) == told


async def test_group_is_made_again_only_as_it_is(two: Two) -> None:
    policy = retry_policy.parse("1s,5s,max=3")
    asked = Group(name="billing", start=GROUP_START_TIME, start_at_ms=7, ordered=True, retry=policy)
    made = await two.groups.create(asked)
    assert await two.others.create(asked) == made
    asked.start_at_ms = 8
    with pytest.raises(AlreadyExists, match=r"group billing exists with start TIME 7$"):
        await two.others.create(asked)
    with pytest.raises(AlreadyExists, match="with start TIME 7, ordered true, retry 1s,5s,max=3") as caught:
        await two.others.create(Group(name="billing"))
    assert caught.value.reason == "GROUP_EXISTS"


async def test_change_is_seen_elsewhere_within_a_second(two: Two) -> None:
    made = await two.groups.ensure("billing")
    assert await two.others.find("billing") is not None
    policy = retry_policy.parse("levels,max=4")
    changed = await two.groups.update("billing", policy)
    assert changed.retry.max_attempts == 4
    two.clock.move(groups.FRESH_MS - 1)
    assert await two.others.find("billing") == made
    two.clock.move(1)
    assert await two.others.find("billing") == changed


async def test_group_stays_the_same_object_until_it_changes(two: Two) -> None:
    made = await two.groups.ensure("billing")
    two.clock.move(groups.FRESH_MS)
    assert await two.groups.find("billing") is made
    assert await two.groups.update("billing", RetryPolicy(max_attempts=3)) is not made


async def test_deleted_group_is_deleted_everywhere_and_may_be_recreated(two: Two) -> None:
    await two.groups.ensure("billing")
    await two.others.find("billing")
    await two.groups.delete("billing")
    await two.groups.delete("billing")
    assert await two.groups.find("billing") is None
    two.clock.move(groups.FRESH_MS)
    assert await two.others.find("billing") is None
    with pytest.raises(NotFound, match="group billing does not exist") as caught:
        await two.others.get("billing")
    assert caught.value.reason == "GROUP_NOT_FOUND"
    with pytest.raises(NotFound):
        await two.others.update("billing", RetryPolicy())


async def test_groups_of_a_directory_are_adopted_beside_those_that_exist(two: Two) -> None:
    await two.groups.create(Group(name="b", ordered=True))
    broker = [Group(name="b"), Group(name="a", retry=RetryPolicy(max_attempts=4))]
    assert await two.groups.adopt(broker) == ["a"]
    assert await two.others.adopt(broker) == []
    listed = {group.name: (group.ordered, group.retry.max_attempts) for group in await two.groups.list()}
    assert listed == {"a": (False, 4), "b": (True, 17)}


async def test_groups_have_a_most(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "GROUPS_MAX", 2)
    assert await two.groups.adopt([Group(name=name) for name in "abc"]) == ["a", "b"]
    assert (await two.groups.ensure("a")).name == "a"
    with pytest.raises(groups.GroupsExhausted, match="2 groups exist; the limit is 2") as caught:
        await two.groups.ensure("c")
    assert (caught.value.reason, caught.value.retriable) == ("GROUPS_EXHAUSTED", False)


async def test_known_groups_work_without_the_database(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await two.groups.ensure("billing")

    def is_away() -> None:
        raise Unavailable("metadata database does not answer: gone", reason="METADATA_UNAVAILABLE")

    with monkeypatch.context() as patched:
        patched.setattr(two.database, "_check_standing", is_away)
        two.clock.move(10 * groups.FRESH_MS)
        assert await two.groups.find("billing") == made
        with pytest.raises(Unavailable):
            await two.groups.find("other")
    await two.others.delete("billing")
    two.clock.move(groups.FRESH_MS)
    assert await two.groups.find("billing") is None


async def test_slow_database_delays_no_known_group(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers use their known state; the look-up's result is known once it ends."""
    await two.groups.ensure("billing")
    await two.others.update("billing", RetryPolicy(max_attempts=3))
    two.clock.move(groups.FRESH_MS)
    slow, reading = threading.Event(), groups._reading

    def slowly(name: str) -> Callable[[Session], GroupModel | None]:
        def read(session: Session) -> GroupModel | None:
            assert slow.wait(60)
            return reading(name)(session)

        return read

    monkeypatch.setattr(groups, "_reading", slowly)
    found = await two.groups.find("billing")
    assert found is not None
    assert found.retry.max_attempts == 17
    slow.set()
    # The one thread of a SQLite database comes to this after it.
    await two.database.run(lambda session: None)
    async with asyncio.timeout(60):
        while (found := await two.groups.find("billing")) is None or found.retry.max_attempts != 3:
            two.clock.move(groups.FRESH_MS)
