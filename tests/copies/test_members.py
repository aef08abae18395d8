"""`duetime store members` on the processes of a shard."""

import asyncio
import json
import os
import shutil
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from duetime.v1 import members_pb2
from duetime_core.access.credentials import NO_CREDENTIALS
from duetime_core.errors import DueTimeError
from duetime_core.node.settings import parse_stores
from duetime_store.offline.members import CALL_S, Group, Operator

from tests.copies.processes import DEADLINE_S, Trio
from tests.twins import native

native("duetime_raft")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def trio(tmp_path: Path) -> AsyncIterator[Trio]:
    async with Trio(tmp_path) as running:
        yield running


async def command(trio: Trio, *words: str) -> tuple[int, str]:
    """Exit code and output of `duetime store members`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "duetime", "store", "members", *words),
        env={**os.environ, "DUETIME_STORE_COPIES": trio.copies},
        stdout=PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(DEADLINE_S):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def listed(trio: Trio) -> dict[str, Any]:
    code, output = await command(trio, "list", "--json")
    assert code == 0, output
    found: dict[str, Any] = json.loads(output)
    return found


async def test_leadership_is_listed_and_handed_over(trio: Trio) -> None:
    leader = await trio.leader()
    found = await listed(trio)
    assert (found["group"], found["leader"], found["answered_by"]) == (77, leader, leader)
    assert [member["number"] for member in found["members"]] == [1, 2, 3]
    assert {member["role"] for member in found["members"]} == {"leader", "voter"}
    assert [member["address"] for member in found["members"]] == list(parse_stores(trio.copies).values())
    assert all(abs(member["clock_ahead_ms"]) < 60_000 for member in found["members"])
    to = next(number for number in trio.numbers if number != leader)
    code, output = await command(trio, "transfer", str(to))
    assert code == 0, output
    assert f"copy {to} leads" in output
    await trio.leads(to)
    # A repeated command finds it done.
    code, output = await command(trio, "transfer", str(to), "--json")
    assert (code, json.loads(output)["leader"]) == (0, to)


async def test_impossible_handovers_are_refused(trio: Trio) -> None:
    leader = await trio.leader()
    others = [number for number in trio.numbers if number != leader]
    code, output = await command(trio, "transfer", "9")
    assert (code, "the group has no copy 9: its copies are [1, 2, 3]" in output) == (1, True), output
    addresses = parse_stores(trio.copies)
    operator = Operator(addresses, NO_CREDENTIALS)

    async def transfer(at: int, group: int, to: int) -> DueTimeError:
        request = members_pb2.TransferLeadershipRequest(group=group, to=to)
        with pytest.raises(DueTimeError) as refused:
            await operator.call(at, addresses[at], lambda stub: stub.TransferLeadership(request, timeout=CALL_S))
        return refused.value

    error = await transfer(others[0], 77, others[1])
    assert (error.reason, error.metadata["leader"]) == ("NOT_LEADER", str(leader))
    assert "copy of group 77, not of 78" in (await transfer(leader, 78, others[0])).text
    await trio.kill(others[0])
    await unheard(operator, leader, others[0])
    error = await transfer(leader, 77, others[0])
    assert (error.reason, error.text) == ("COPY_BEHIND", f"copy {others[0]} does not answer the leader")


async def unheard(operator: Operator, leader: int, number: int) -> None:
    """Returns once the leader no longer hears the copy."""

    def is_unheard(group: Group) -> bool:
        return group.number == leader and not any(one.heard for one in group.members if one.number == number)

    async with asyncio.timeout(DEADLINE_S):
        while not is_unheard(await operator.describe()):  # noqa: ASYNC110  another process
            await asyncio.sleep(0.1)


async def test_any_copy_answers_without_a_leader(trio: Trio) -> None:
    leader = await trio.leader()
    (one, two) = (number for number in trio.numbers if number != leader)
    await trio.kill(leader)
    await trio.kill(one)
    found = await listed(trio)
    assert found["answered_by"] == two
    assert {member["behind"] for member in found["members"]} == {None}
    await trio.kill(two)
    code, output = await command(trio, "list")
    assert (code, f"copy {two} at" in output) == (1, True), output


async def test_lost_copy_is_replaced(trio: Trio) -> None:
    leader = await trio.leader()
    lost, other = (number for number in trio.numbers if number != leader)
    await trio.kill(lost)
    trio.data(lost).rename(trio.root / "kept")
    assert await ended(trio, lost) == 1, "an empty directory with an old number was accepted"
    new = await trio.prepare(lost)
    replace = ("replace", str(lost), str(new), trio.address_of(new))
    for _ in range(2):
        code, output = await command(trio, *replace, "--json")
        assert code == 0, output
        members = json.loads(output)["members"]
        assert {member["number"] for member in members} == {leader, other, new}
        assert {member["role"] for member in members} == {"leader", "voter"}
    await trio.caught_up()
    # The removed copy ends.
    shutil.rmtree(trio.data(lost))
    (trio.root / "kept").rename(trio.data(lost))
    await trio.revive()
    assert await ended(trio, lost) == 1, "a removed copy went on"


async def ended(trio: Trio, number: int) -> int:
    """Starts a copy that is refused; returns its exit code."""
    await trio.start(number)
    process = trio.processes.pop(number)
    async with asyncio.timeout(DEADLINE_S):
        return await process.wait()


async def test_changes_that_would_end_a_group_are_refused(trio: Trio) -> None:
    leader = await trio.leader()
    (one, two) = (number for number in trio.numbers if number != leader)
    refusals = {
        ("add", str(one), "127.0.0.1:1"): "cannot be added: the next number is 4",
        ("add", "4", trio.address_of(one)): f"copy {one} has the address",
        ("replace", str(leader), "4", "127.0.0.1:1"): f"copy {leader} leads: transfer leadership",
        ("replace", "9", "10", "127.0.0.1:1"): "the group has no copy 9",
        ("replace", "9", str(one), trio.address_of(one)): "the group has no copy 9",
        ("replace", str(one), str(one), trio.address_of(one)): f"does not replace copy {one}: give a number",
        ("replace", str(one), str(two), trio.address_of(two)): f"does not replace copy {one}: remove copy {one}",
        ("add", "4", "127.0.0.1"): "'127.0.0.1' is not HOST:PORT",
        ("remove", str(leader)): f"copy {leader} leads: transfer leadership",
        ("remove", "9"): "the group has no copy 9",
    }
    for words, text in refusals.items():
        code, output = await command(trio, *words)
        assert (code, text in output) == (1, True), output
    code, output = await command(trio, "list", "--copies", f"{leader}=127.0.0.1:{trio.ports[leader]}")
    assert (code, "is not a copy's port for the others" in output) == (1, True), output
    await trio.kill(one)
    await unheard(Operator(parse_stores(trio.copies), NO_CREDENTIALS), leader, one)
    code, output = await command(trio, "remove", str(two))
    assert (code, f"copies [{leader}] alone answer" in output) == (1, True), output
    code, output = await command(trio, "remove", str(one))
    assert code == 0, output
    assert [member["number"] for member in (await listed(trio))["members"]] == sorted((leader, two))
