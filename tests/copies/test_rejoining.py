"""A copy whose directory is lost: the same process on an empty one takes its place, under a new number."""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from duetime.v1 import members_pb2
from duetime_core.access.credentials import NO_CREDENTIALS
from duetime_core.errors import DueTimeError
from duetime_core.node.settings import parse_stores
from duetime_store.copies.statefile import StateFile, has_state
from duetime_store.files.disk import Disk
from duetime_store.offline.members import CALL_S, Group, Operator

from tests.copies.kills import Run, compare, leader_killed, run_kinds
from tests.copies.processes import DEADLINE_S, Trio
from tests.seeds import seed
from tests.twins import native

native("duetime_raft")

pytestmark = pytest.mark.timeout(600)
LIFE = 5


@pytest.fixture
async def trio(tmp_path: Path) -> AsyncIterator[Trio]:
    async with Trio(tmp_path, rejoins=True) as running:
        yield running


def operator(trio: Trio) -> Operator:
    return Operator(parse_stores(trio.copies), NO_CREDENTIALS)


async def group_of(trio: Trio) -> Group:
    """The group as its leader knows it. Starts copies again that have ended to follow."""
    async with asyncio.timeout(2 * DEADLINE_S):
        while True:
            with suppress(DueTimeError):
                group = await operator(trio).describe()
                if group.leader == group.number:
                    return group
            for number, process in list(trio.processes.items()):
                if process.returncode is not None:
                    await trio.start(number)
            await asyncio.sleep(0.05)


def at(group: Group, address: str) -> list[tuple[int, bool]]:
    """Numbers of the members with an address, and whether they vote."""
    voter = members_pb2.COPY_ROLE_VOTER
    return [(member.number, member.role == voter) for member in group.members if member.address == address]


async def voter_at(trio: Trio, number: int) -> int:
    """The number under which a lost copy votes; waits until it alone has its address."""
    async with asyncio.timeout(2 * DEADLINE_S):
        while True:
            match at(await group_of(trio), trio.address_of(number)):
                case [(current, True)] if current != trio.current.get(number, number):
                    trio.current[number] = current
                    return current
            await asyncio.sleep(0.05)


async def whole(trio: Trio) -> None:
    """Returns once all copies vote and are heard: the group can lose one."""
    async with asyncio.timeout(2 * DEADLINE_S):
        while True:
            members = (await group_of(trio)).members
            if len(members) == 3 and all(one.heard and one.role == members_pb2.COPY_ROLE_VOTER for one in members):
                return
            await asyncio.sleep(0.05)


async def lose(trio: Trio, number: int) -> None:
    await whole(trio)
    await trio.kill(number)
    shutil.rmtree(trio.data(number))


async def follower_lost(run: Run) -> None:
    """Under its new number it is needed for a majority, and then leads or elects."""
    trio, leader = run.trio, await run.trio.leader()
    lost, other = run.dice.sample([number for number in trio.processes if number != leader], 2)
    await lose(trio, lost)
    await run.progress(list(run.ledger.acknowledged))
    await trio.start(lost)
    await voter_at(trio, lost)
    await run.joined(leader, lost)
    await trio.kill(other)
    await run.progress(list(run.ledger.acknowledged))
    await trio.start(other)
    await run.joined(leader, other)
    await leader_killed(run)


async def test_each_copy_may_be_lost_in_turn(tmp_path: Path) -> None:
    print(f"DUETIME_TEST_SEED={seed()}")
    async with Trio(tmp_path, rejoins=True) as trio:
        await run_kinds(trio, random.Random(seed()), [follower_lost])
        await trio.revive()
        # Each address, also those with founding numbers that no member has any more.
        for number in trio.numbers:
            await lose(trio, number)
            await trio.start(number)
            assert await voter_at(trio, number) > 3
        await trio.describe()
        await trio.caught_up()
    assert compare(trio) > 0


async def test_copy_killed_while_it_rejoins_begins_again_or_continues(trio: Trio, tmp_path: Path) -> None:
    leader = await trio.leader()
    lost = next(number for number in trio.numbers if number != leader)
    await lose(trio, lost)
    root = trio.data(lost)

    async def joins() -> bool:
        return any(number > 3 for number, _ in at(await group_of(trio), trio.address_of(lost)))

    async def has_number() -> bool:
        return root.exists() and has_state(root)

    async def votes() -> bool:
        return any(votes for number, votes in at(await group_of(trio), trio.address_of(lost)) if number > 3)

    for moment in (joins, has_number, votes):
        await trio.start(lost)
        async with asyncio.timeout(DEADLINE_S):
            while not await moment():  # noqa: ASYNC110  another process
                await asyncio.sleep(0.005)
        await trio.kill(lost)
    await trio.start(lost)
    current = await voter_at(trio, lost)
    file = StateFile(Disk(), root)
    assert (file.state.id, file.state.configured) == (current, lost)
    file.close()


async def test_number_of_an_attempt_that_wrote_nothing_is_not_used_again(trio: Trio) -> None:
    """Its directory may have voted: the next process can't know that."""
    leader = await trio.leader()
    lost = next(number for number in trio.numbers if number != leader)
    await lose(trio, lost)
    assert await attempt(trio, lost) == 4
    assert [number for number, _ in at(await group_of(trio), trio.address_of(lost))] == [lost, 4]
    await trio.start(lost)
    assert await voter_at(trio, lost) == 5
    group = await group_of(trio)
    assert sorted(member.number for member in group.members) == sorted({1, 2, 3, 5} - {lost})
    assert group.highest_number == 5


async def rejoin(group: Group, address: str, life: int = LIFE) -> int:
    """The answer of the leader to a process."""
    request = members_pb2.RejoinMemberRequest(group=77, address=address, life=life)
    leader = next(member.address for member in group.members if member.number == group.leader)
    caller = Operator({}, NO_CREDENTIALS)
    answer = await caller.call(group.leader, leader, lambda stub: stub.RejoinMember(request, timeout=CALL_S))
    return int(answer.number)


async def attempt(trio: Trio, number: int) -> int:
    """The number that the process gets in a lost copy's place, before it ends."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            # The leader has not noticed the loss yet, or has changed.
            with suppress(DueTimeError):
                if found := await rejoin(await group_of(trio), trio.address_of(number)):
                    return found
            await asyncio.sleep(0.05)


async def test_address_in_use_and_unknown_one_are_refused(trio: Trio) -> None:
    refusals = {trio.address_of(number): ("COPY_REFUSED", "still answers") for number in trio.numbers}
    refusals |= {"127.0.0.1:1": ("COPY_UNKNOWN", "no copy of the group has"), "a": ("COPY_REFUSED", "HOST:PORT")}
    for address, (reason, text) in refusals.items():
        async with asyncio.timeout(2 * DEADLINE_S):
            while True:
                # The leader may change, or may not hear a copy of a busy machine: another process asks again.
                error = await refusal(await group_of(trio), address, random.getrandbits(62))
                if error is not None and error.reason == reason and text in error.text:
                    break
                await asyncio.sleep(0.05)


async def refusal(group: Group, address: str, life: int) -> DueTimeError | None:
    try:
        await rejoin(group, address, life)
    except DueTimeError as error:
        return error
    return None
