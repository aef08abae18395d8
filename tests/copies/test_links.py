"""Streams between copies: bytes behind their messages, in order; strangers get a clear refusal."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from duetime.v1 import copies_pb2_grpc
from duetime_core.access.credentials import NO_CREDENTIALS
from duetime_core.clock import SystemClock
from duetime_core.rpc.serving import Server

from tests.twins import native

native("duetime_raft")

from duetime_store.copies import links  # noqa: E402  after the check for the wheel
from duetime_store.copies.directories import DirectoryGiver  # noqa: E402
from duetime_store.copies.links import (  # noqa: E402
    CopiesService,
    Heard,
    Identity,
    PeerLink,
    RemovedCopy,
    fetch,
)
from duetime_store.copies.roster import Roster  # noqa: E402
from duetime_store.copies.scanning import Damage  # noqa: E402
from duetime_store.copies.writes import Sending  # noqa: E402

OWN = Identity.of(7, 1, "127.0.0.1:1")
ROSTER = Roster((1, 2, 3), highest=3)
OTHER = Identity.of(7, 2, "127.0.0.1:2")
DEADLINE_S = 60
LOG = bytes(range(250)) * 40


class Receiver:
    """The server of copy 2; `heard` has its messages."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Heard] = asyncio.Queue()
        self.roster = ROSTER
        self.met: dict[int, str] = {}
        self.address = ""

    def read(self, damage: Damage) -> bytes:
        """It has the bytes up to 10,000."""
        return LOG[damage.position : damage.end] if damage.end <= len(LOG) else b""

    def meet(self, number: int, address: str) -> None:
        self.met[number] = address

    async def next(self) -> Heard:
        async with asyncio.timeout(DEADLINE_S):
            return await self.heard.get()

    @asynccontextmanager
    async def linked(self, own: Identity = OWN, to: int = 2) -> AsyncIterator[PeerLink]:
        """A stream to it."""
        link = PeerLink(own, to, self.address, NO_CREDENTIALS, SystemClock(), lambda number: None)
        task = asyncio.create_task(link.run())
        try:
            yield link
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def receiver(tmp_path: Path) -> AsyncIterator[Receiver]:
    found = Receiver()
    server = Server([links.SERVICE_NAME], 16)
    with ThreadPoolExecutor(1) as executor:
        giver = DirectoryGiver(tmp_path, lambda: None, executor)
        service = CopiesService(OTHER, lambda: found.roster, found.heard.put, found.meet, found.read, giver)
    copies_pb2_grpc.add_CopiesServicer_to_server(service, server.grpc)
    await server.start("127.0.0.1", 0)
    found.address = f"127.0.0.1:{server.port}"
    yield found
    await server.stop(0)


async def test_message_arrives_with_all_its_bytes_and_the_senders_clock(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "PIECE_BYTES", 1_000)
    payload = bytes(range(256)) * 20
    async with receiver.linked() as link:
        before = SystemClock().now_ms()
        for number in range(3):
            link.send(Sending(2, b"message %d" % number, payload[number:]))
        link.send(Sending(2, b""))
        for number in range(3):
            heard = await receiver.next()
            assert (heard.sender, heard.message, heard.payload) == (1, b"message %d" % number, payload[number:])
        heard = await receiver.next()
        assert (heard.message, heard.payload) == (b"", b"")
        assert before <= heard.sent_at_ms <= SystemClock().now_ms()


async def test_bytes_that_wait_are_bounded(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "WAITING_BYTES_MAX", 1_000)
    async with receiver.linked() as link:
        # None is taken before this test waits.
        link.send(Sending(2, b"one", bytes(5_000)))
        link.send(Sending(2, b"two", bytes(10)))
        assert (await receiver.next()).message == b"one"
        link.send(Sending(2, b"three"))
        assert (await receiver.next()).message == b"three"


async def test_range_is_fetched_in_pieces(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PIECE_BYTES", 1_000)
    for position, end, found in ((17, 9_000, LOG[17:9_000]), (0, 10_000, LOG), (17, 18, LOG[17:18])):
        assert await fetch(OWN, 2, receiver.address, NO_CREDENTIALS, Damage(position, end)) == found
    assert await fetch(OWN, 2, receiver.address, NO_CREDENTIALS, Damage(10_000, 10_001)) == b""
    # A copy of another group, or another one, gives nothing.
    assert await fetch(replace(OWN, group=8), 2, receiver.address, NO_CREDENTIALS, Damage(0, 10)) == b""
    assert await fetch(OWN, 3, receiver.address, NO_CREDENTIALS, Damage(0, 10)) == b""


STRANGERS = {
    "of another group": (replace(OWN, group=8), 2, "belongs to group 8, copy 2 to group 7"),
    "that means another copy": (OWN, 3, "this is copy 2 of the group, not copy 3"),
    "with the receiver's number": (replace(OWN, number=2), 2, "copy 2 is no other member"),
}


@pytest.mark.parametrize(("own", "to", "text"), STRANGERS.values(), ids=STRANGERS)
async def test_stranger_is_refused(receiver: Receiver, own: Identity, to: int, text: str) -> None:
    async with receiver.linked(own, to) as link:
        link.send(Sending(to, b"message"))
        await refused(link, text)
        assert receiver.heard.empty()


async def test_replaced_copy_is_awaited_at_the_address_of_its_successor(receiver: Receiver) -> None:
    receiver.roster = Roster((1, 2, 3), addresses={2: OTHER.address, 3: OTHER.address}, highest=3)
    async with receiver.linked(to=3) as link:
        link.send(Sending(3, b"message"))
        await refused(link, "copy 3 had the address of copy 2", "UNAVAILABLE")
        assert receiver.heard.empty()


async def test_second_process_with_a_number_is_refused_while_the_first_is_connected(receiver: Receiver) -> None:
    twin = replace(OWN, life=OWN.life ^ 1)
    async with receiver.linked() as link:
        link.send(Sending(2, b"first"))
        await receiver.next()
        async with receiver.linked(twin) as other:
            other.send(Sending(2, b"second"))
            await refused(other, "another process is connected as copy 1")
    async with receiver.linked(twin) as other:
        while receiver.heard.empty():
            other.send(Sending(2, b"second"))
            await asyncio.sleep(0.01)
        assert (await receiver.next()).message == b"second"


async def test_member_of_a_later_change_is_answered(receiver: Receiver) -> None:
    """The receiver may have been away while members were added, of which one leads."""
    async with receiver.linked(replace(OWN, number=4, address="127.0.0.1:4")) as link:
        link.send(Sending(2, b"message"))
        assert (await receiver.next()).sender == 4
    assert receiver.met == {4: "127.0.0.1:4"}


async def test_removed_copy_is_cut_off_and_ends(receiver: Receiver) -> None:
    link = PeerLink(OWN, 2, receiver.address, NO_CREDENTIALS, SystemClock(), lambda number: None)
    task = asyncio.create_task(link.run())
    link.send(Sending(2, b"first"))
    await receiver.next()
    receiver.roster = Roster((2, 3), highest=3)
    link.send(Sending(2, b"second"))
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(RemovedCopy, match="copy 1 was removed from its group"):
            await task
    assert receiver.heard.empty()


async def refused(link: PeerLink, text: str, status: str = "FAILED_PRECONDITION") -> None:
    async with asyncio.timeout(DEADLINE_S):
        while text not in link.trouble:  # noqa: ASYNC110  a stream of its own
            await asyncio.sleep(0.01)
    assert status in link.trouble
