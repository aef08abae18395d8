"""Transactions on a full disk, and in a log whose front is deleted."""

import errno
from pathlib import Path

import pytest
from duetime_format import halves, record
from duetime_store.writing.halves import HalfResolutions
from duetime_store.writing.halves import end as stage_end

from tests.store.conftest import sent
from tests.store.test_disk_faults import FULL, Sick, reason_of
from tests.store.test_retention import Shard
from tests.store.transacting import (
    COMMITTED,
    GIVEN_UP,
    ROLLBACK,
    ROLLED_BACK,
    end,
    end_of,
    get,
    half,
    ids,
    listed,
    prepare,
    prepared,
)


async def test_ends_work_on_a_full_disk(tmp_path: Path) -> None:
    async with Sick(tmp_path / "store") as store:
        halves_of = await prepared(store, "m0", "m1", "m2")
        store.disk.fail("pwritev", errno.ENOSPC, times=1)
        results = await end(store, end_of(halves_of[0], "m0"), end_of(halves_of[1], "m1", ROLLBACK))
        assert [(one.state, one.duplicate) for one in results] == [(COMMITTED, False), (ROLLED_BACK, False)]
        assert await reason_of(prepare(store, half("later"))) == FULL
        assert await reason_of(store.put(sent("later"))) == FULL
        assert ids(await listed(store)) == ["m2"]
        assert [message.id for message in (await store.pull()).messages] == ["m0"]


async def test_refused_end_leaves_the_transaction_open(tmp_path: Path) -> None:
    async with Sick(tmp_path / "store") as store:
        (one,) = await prepared(store, "m0")
        store.disk.fail("pwritev", errno.ENOSPC, times=2)
        assert await reason_of(end(store, end_of(one, "m0"))) == FULL
        assert ids(await listed(store)) == ["m0"]
        store.disk.mend()
        (result,) = await end(store, end_of(one, "m0", ROLLBACK))
        assert (result.state, result.duplicate) == (ROLLED_BACK, False)


@pytest.mark.parametrize("without", [None, "", "checkpoint", "consumequeue"])
async def test_open_ones_outlive_their_segment(tmp_path: Path, without: str | None) -> None:
    async with Shard(tmp_path / "store") as store:
        names = ["open", "late", "committed", "rolled-back"]
        halves_of = await prepared(store, *names)
        await end(store, end_of(halves_of[2], names[2]), end_of(halves_of[3], names[3], ROLLBACK))
        await store.fill(2_000)
        await store.expire()
        assert store.node.store.log.min_position > 0
        if without is not None:
            await store.restart(without)
        assert ids(await listed(store)) == ["open", "late"]
        found = await get(store, halves_of[0])
        assert found.half.half.position > halves_of[0].position
        # End it by the first position, and by the new one.
        (result,) = await end(store, end_of(halves_of[0], "open"))
        assert (result.state, result.duplicate) == (COMMITTED, False)
        moved = (await get(store, halves_of[1])).half.half
        (result,) = await end(store, end_of(moved, "late", ROLLBACK))
        assert (result.state, result.duplicate) == (ROLLED_BACK, False)
        results = await end(store, *[end_of(one, name) for one, name in zip(halves_of, names, strict=True)])
        if without in ("checkpoint", "consumequeue"):
            # The units of the other two are deleted, and so are their records.
            assert [one.fault.reason for one in results] == ["", "", *["TRANSACTION_NOT_FOUND"] * 2]
            return
        states = [COMMITTED, ROLLED_BACK, COMMITTED, ROLLED_BACK]
        assert [(one.state, one.duplicate) for one in results] == [(state, True) for state in states]
        # The real message has left with its segment.
        assert (results[2].topic, results[2].sent.message_id, results[2].sent.offset) == ("", "committed", 0)


async def test_given_up_outlives_its_segment_as_long_as_its_copy(tmp_path: Path) -> None:
    async with Shard(tmp_path / "store") as store:
        (one,) = await prepared(store, "m0")
        await store.fill(1_500)
        found = record.decode((await get(store, one)).record)
        decided = HalfResolutions([one.offset], [halves.GIVEN_UP], [halves.given_up(found, 15)])
        stage_end(store.node.store, decided, lambda _: None)
        await store.put(sent("behind", topic="noise"))
        await store.expire()
        assert ids(await listed(store, state=GIVEN_UP)) == ["m0"]
        assert (await get(store, one)).half.half.position > one.position
        (result,) = await end(store, end_of(one, "m0"), given_up=True)
        assert (result.state, result.duplicate) == (COMMITTED, False)
        assert not await listed(store, state=GIVEN_UP)
        assert [message.id for message in (await store.pull()).messages] == ["m0"]
