"""Every end of a transaction, before and after a check, through a power cut and a restart: the table of the docs."""

import asyncio
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from tests.power_disk import PowerCut, PowerDisk
from tests.store.conftest import sent
from tests.store.running import Running
from tests.store.test_transaction_checks import INTERVAL_MS, TIMEOUT_MS, passes, report, take
from tests.store.transacting import (
    COMMIT,
    COMMITTED,
    OPEN,
    ROLLBACK,
    ROLLED_BACK,
    UNKNOWN,
    end,
    end_of,
    ids,
    listed,
    prepared,
)

NONE = UNKNOWN
POWER_CUT, RESTART = "power cut", "restart"

# Events: the end, whether a check was heard before it, and the next step. Then the expected result: the state, the
# number of times that readers see the message, and the number of the next check.
TABLE = [
    (COMMIT, False, POWER_CUT, COMMITTED, 1, None),
    (COMMIT, False, RESTART, COMMITTED, 1, None),
    (COMMIT, True, POWER_CUT, COMMITTED, 1, None),
    (COMMIT, True, RESTART, COMMITTED, 1, None),
    (ROLLBACK, False, POWER_CUT, ROLLED_BACK, 0, None),
    (ROLLBACK, False, RESTART, ROLLED_BACK, 0, None),
    (ROLLBACK, True, POWER_CUT, ROLLED_BACK, 0, None),
    (ROLLBACK, True, RESTART, ROLLED_BACK, 0, None),
    (NONE, False, POWER_CUT, OPEN, 0, 1),
    (NONE, False, RESTART, OPEN, 0, 1),
    (NONE, True, POWER_CUT, OPEN, 0, 2),
    (NONE, True, RESTART, OPEN, 0, 2),
]


async def stop(store: Running, disk: PowerDisk, how: str, root: Path) -> Path:
    """Returns the folder that the next process finds."""
    if how == RESTART:
        await store.__aexit__()
        return root
    disk.is_off = True
    # A dead process sends no answers and closes no files.
    with suppress(PowerCut):
        await store.__aexit__()
    disk.close_all()
    disk.lose()
    return Path(await asyncio.to_thread(shutil.copytree, root, root.with_name("after")))


async def seen(store: Running) -> list[str]:
    first, *others = (await store.pull()).messages
    assert first.id == "first"
    return [message.id for message in others]


@pytest.mark.parametrize(("decision", "checked", "how", "state", "times", "number"), TABLE)
async def test_transaction_agrees_with_earlier_answers(
    tmp_path: Path,
    decision: int,
    checked: bool,
    how: str,
    state: int,
    times: int,
    number: int | None,
) -> None:
    root = tmp_path / "store"
    disk = PowerDisk(root, random.Random(0))
    store = await Running(root, disk).__aenter__()
    await store.put(sent("first"))
    (one,) = await prepared(store, "m0")
    if checked:
        await passes(store, TIMEOUT_MS)
        assert [check.half.offset for check in await take(store)] == [one.offset]
        await report(store, heard=[one.offset])
    if decision != NONE:
        (result,) = await end(store, end_of(one, "m0", decision))
        assert (result.state, result.duplicate) == (state, False)
    now_ms = store.clock.now_ms()
    found = await stop(store, disk, how, root)

    async with Running(found) as again:
        again.clock.step_wall(now_ms - again.clock.now_ms())
        assert await seen(again) == ["m0"] * times
        assert ids(await listed(again)) == ["m0"] * (state == OPEN)
        await passes(again, TIMEOUT_MS + INTERVAL_MS)
        assert [check.checks + 1 for check in await take(again)] == ([] if number is None else [number])
        # A later end, by any caller: the first end counts, or the later one if the transaction is open.
        (result,) = await end(again, end_of(one, "m0", ROLLBACK if decision == COMMIT else COMMIT))
        assert (result.state, result.duplicate) == (COMMITTED if state == OPEN else state, state != OPEN)
        assert await seen(again) == ["m0"] * (1 if state == OPEN else times)
