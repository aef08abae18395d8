"""`duetime store members` on the processes of a shard."""

import asyncio
import json
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
        *(sys.executable, "-m", "duetime", "store", "members", *words, "--copies", trio.copies),
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
    assert await trio.leader() == to
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
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if not is_heard(await operator.describe(), others[0]):
                break
            await asyncio.sleep(0.1)
    error = await transfer(leader, 77, others[0])
    assert (error.reason, error.text) == ("COPY_BEHIND", f"copy {others[0]} does not answer the leader")


def is_heard(group: Group, number: int) -> bool:
    return any(member.heard for member in group.members if member.number == number)


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
