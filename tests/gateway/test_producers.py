"""Groups of producers are made known, and remembered."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from duetime.v1 import transactions_pb2 as pb
from duetime_core.clock import SystemClock
from duetime_core.errors import Unavailable
from duetime_core.metadata import Database
from duetime_gateway.transactions.producers import ProducerGroups

from tests.gateway.conftest import Gateway, TappedStore, error_of, message, new_database
from tests.gateway.test_transactions import halves, prepare
from tests.tap import WAIT_S


@asynccontextmanager
async def producer_groups(path: Path, **options: int) -> AsyncIterator[ProducerGroups]:
    file = path / "meta.db"
    if not file.exists():
        file.write_bytes(new_database())
    database = Database(f"sqlite:///{file}")
    await database.start()
    groups = ProducerGroups(database, SystemClock(), **options)
    try:
        async with asyncio.TaskGroup() as tasks:
            groups.start(tasks)
            yield groups
            groups.stop()
    finally:
        await database.stop()


async def test_group_is_known_to_all_once_it_was_made_known(tmp_path: Path) -> None:
    async with producer_groups(tmp_path) as first, producer_groups(tmp_path) as second:
        assert not await second.find("billing", "shop", 5_000)
        await asyncio.gather(*(one.ensure("billing", "shop", 5_000) for one in (first, second, first)))
        assert await second.find("billing", "shop", 5_000)
        assert not await second.find("shipping", "shop", 5_000)


async def left(path: Path, names: str) -> str:
    """The groups that are still registered."""
    async with producer_groups(path) as groups:
        return "".join([name for name in names if await groups.find(name, "shop", 5_000)])


async def test_caller_with_half_of_all_groups_loses_its_oldest(tmp_path: Path) -> None:
    async with producer_groups(tmp_path, groups_max=6) as groups:
        await groups.ensure("a", "bank", 5_000)
        for name in "bcdefg":
            await groups.ensure(name, "shop", 5_000)
    assert await left(tmp_path, "abcdefg") == "aefg"


async def test_caller_with_the_most_groups_makes_room_for_others(tmp_path: Path) -> None:
    async with producer_groups(tmp_path, groups_max=6) as groups:
        for caller, names in {"bank": "ab", "shop": "cde", "mill": "f", "farm": "g", "port": "h", "post": "i"}.items():
            for name in names:
                await groups.ensure(name, caller, 5_000)
    # The shop had the most, then the bank, then the shop again.
    assert await left(tmp_path, "abcdefghi") == "befghi"


async def test_many_groups_of_one_round_make_room_by_the_same_rule(tmp_path: Path) -> None:
    async with producer_groups(tmp_path, groups_max=6) as groups:
        for name, caller in (("a", "bank"), ("b", "shop"), ("c", "shop"), ("d", "shop")):
            await groups.ensure(name, caller, 5_000)
        await asyncio.gather(*(groups.ensure(name, caller, 5_000) for name, caller in (("e", "shop"), ("f", "mill"))))
        await asyncio.gather(*(groups.ensure(name, name, 5_000) for name in "gh"))
    assert await left(tmp_path, "abcdefgh") == "adefgh"


async def test_prepares_of_known_groups_work_without_the_database(tapped: Gateway, taps: list[TappedStore]) -> None:
    await prepare(tapped, message())
    with sqlite3.connect(tapped.root / "meta.db") as database:
        assert database.execute("SELECT name FROM producer_groups").fetchall() == [("billing",)]
        database.execute("DROP TABLE producer_groups")
    assert not (await prepare(tapped, message()))[0].HasField("fault")
    request = pb.PrepareRequest(messages=[message()], group="shipping")
    error = await error_of(tapped.stub.Prepare(request, timeout=WAIT_S))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "metadata" in (error.details() or "")
    assert len(halves(taps)) == 2


async def test_question_that_takes_too_long_is_an_error(tmp_path: Path) -> None:
    async with producer_groups(tmp_path) as groups:
        with pytest.raises(Unavailable, match="within 0 ms"):
            await groups.ensure("billing", "shop", 0)
