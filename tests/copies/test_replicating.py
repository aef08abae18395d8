"""`duetime store replicate`: a directory of one copy becomes the first of a group; a copy leaves a lost majority."""

import json
import signal
import sys
from asyncio import create_subprocess_exec, timeout
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import pytest
from duetime.v1 import gateway_pb2, store_pb2
from duetime_core.access.credentials import NO_CREDENTIALS
from duetime_core.errors import DueTimeError
from duetime_core.node.settings import parse_stores
from duetime_store.copies.roster import Roster
from duetime_store.copies.statefile import FILE, RaftState, StateFile
from duetime_store.files.disk import Disk
from duetime_store.offline.members import Operator
from duetime_store.offline.replicating import replicate

from tests.copies.kills import compare, entries_of
from tests.copies.processes import DEADLINE_S, LEVELS, Trio
from tests.store.conftest import sent
from tests.store.running import Running
from tests.twins import native

native("duetime_raft")

pytestmark = pytest.mark.timeout(300)


def running(root: Path) -> Running:
    return Running(root, delay_levels=LEVELS)


async def kept(trio: Trio) -> list[str]:
    """Bodies of the messages in `orders`, queue 0."""
    request = gateway_pb2.PullRequest(topic="orders", max_count=100)
    found = await trio.stub.Pull(request, timeout=DEADLINE_S, wait_for_ready=True)
    return [message.body.decode() for message in found.messages]


async def put(trio: Trio, body: bytes) -> None:
    request = store_pb2.PutRequest(records=sent(body.decode(), body=body))
    await trio.stub.Put(request, timeout=DEADLINE_S, wait_for_ready=True)


async def replicated(*words: str) -> tuple[int, str]:
    """Exit code and output of the command."""
    process = await create_subprocess_exec(
        *(sys.executable, "-m", "duetime", "store", "replicate", *words), stdout=PIPE, stderr=STDOUT
    )
    async with timeout(DEADLINE_S):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_shard_with_one_copy_becomes_a_group(tmp_path: Path) -> None:
    trio = Trio(tmp_path, members=1)
    async with running(trio.data(1)) as alone:
        await alone.put(sent("first", body=b"first"), sent("later", level=1))
    words = (str(trio.data(1)), "--group", "77", "--number", "1", "--address", trio.address_of(1))
    for _ in range(2):
        code, output = await replicated(*words, "--json")
        assert (code, json.loads(output)["index"]) == (0, 1), output
    async with trio:
        assert await kept(trio) == ["first"]
        await put(trio, b"second")
        new = await trio.prepare()
        async with timeout(DEADLINE_S):
            await Operator(parse_stores(trio.copies), NO_CREDENTIALS).add(new, trio.address_of(new), 0, print)
        await put(trio, b"third")
        assert await kept(trio) == ["first", "second", "third"]
        await trio.caught_up()
    assert compare(trio) > 4


async def test_copy_leaves_a_group_whose_majority_is_lost(tmp_path: Path) -> None:
    async with Trio(tmp_path) as trio:
        await put(trio, b"first")
        for number in trio.numbers:
            await trio.kill(number, signal.SIGKILL)
    lasts = {number: entries_of(trio.data(number))[1][-1].index for number in trio.numbers}
    best = max(lasts, key=lambda number: lasts[number])
    alone = Trio(tmp_path, members=3)
    address = alone.address_of(best)
    words = (str(trio.data(best)), "--group", "78", "--number", str(best), "--address", address)
    code, output = await replicated(*words)
    assert (code, "is copy" in output) == (1, True), output
    code, output = await replicated(*words, "--new-group", "--json")
    found = json.loads(output)
    assert (code, found["index"], found["former"]["kept"]) == (0, lasts[best] + 1, lasts[best])
    assert found["former"]["committed"] <= lasts[best]
    alone.peer_ports, alone.numbers, alone.group = {best: alone.peer_ports[best]}, [best], "78"
    async with alone:
        assert await kept(alone) == ["first"]
        await put(alone, b"second")
        assert await kept(alone) == ["first", "second"]


async def test_other_directories_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"

    def refused(text: str, *, address: str = "127.0.0.1:1", is_new_group: bool = False) -> None:
        with pytest.raises(DueTimeError, match=text):
            replicate(root, 77, 1, address, is_new_group=is_new_group)

    refused("is not a directory")
    assert not root.exists()
    root.mkdir()
    refused("has no log")
    async with running(root) as alone:
        await alone.put(sent("first"))
        refused("in use by another process")
    refused("no copy of a group: leave out", is_new_group=True)
    (root / "abort").touch()
    refused("was not stopped in good order")
    refused("'9821' is not HOST:PORT", address="9821")
    assert not (root / FILE).exists()
    (root / "abort").unlink()
    StateFile(Disk(), root, RaftState(77, 2, Roster((1, 2, 3)))).close()
    refused("is copy 2 of group 77 already")
    refused("a new group needs a new number", is_new_group=True)


async def test_mark_of_an_interrupted_run_is_the_point(tmp_path: Path) -> None:
    async with running(tmp_path) as alone:
        await alone.put(sent("first"))
    made = replicate(tmp_path, 77, 1, "127.0.0.1:1")
    (tmp_path / FILE).unlink()
    assert replicate(tmp_path, 77, 1, "127.0.0.1:1") == made
    (tmp_path / FILE).unlink()
    with pytest.raises(DueTimeError, match="has entries of group 77"):
        replicate(tmp_path, 78, 1, "127.0.0.1:1")
