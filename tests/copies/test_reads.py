"""A leader that was stopped and cut off gives no old state when it continues: others lead, and it has not heard."""

import asyncio
import signal
from pathlib import Path

import grpc
import pytest
from duetime.v1 import gateway_pb2, pending_pb2, store_pb2, store_pb2_grpc

from tests.copies.processes import DEADLINE_S
from tests.copies.relays import RelayedTrio
from tests.store.conftest import sent
from tests.twins import native

native("duetime_raft")


@pytest.mark.timeout(300)
async def test_leader_that_was_cut_off_answers_no_read(tmp_path: Path) -> None:
    async with RelayedTrio(tmp_path, {}) as trio:
        await put(trio, "A")
        leader, channel = await connected(trio)
        old, process = store_pb2_grpc.StoreStub(channel), trio.processes[leader]
        trio.cut([way for way in trio.relays if leader in way])
        process.send_signal(signal.SIGSTOP)
        try:
            await put(trio, "B")
            # They wait in the socket of the stopped process.
            reads = asyncio.gather(*calls(old), return_exceptions=True)
        finally:
            process.send_signal(signal.SIGCONT)
        answers = await reads
        codes = [answer.code() if isinstance(answer, grpc.aio.AioRpcError) else answer for answer in answers]
        assert codes == [grpc.StatusCode.UNAVAILABLE] * len(answers)
        async with asyncio.timeout(DEADLINE_S):
            assert await process.wait() == 1, "a deposed leader went on"
        trio.heal()
        await channel.close()


def calls(old: store_pb2_grpc.StoreStub) -> list[grpc.aio.UnaryUnaryCall]:
    """Reads whose right answers have B, the only message but one."""
    by_id = gateway_pb2.GetMessageRequest(id="B", topic="orders")
    latest = gateway_pb2.SearchOffsetRequest(topic="orders", latest=True)
    after = gateway_pb2.PullRequest(topic="orders", offset=2)
    cancel = pending_pb2.CancelRequest(messages=[pending_pb2.PendingRef(message_id="B", topic="orders")])
    return [
        old.GetMessage(by_id, timeout=DEADLINE_S),
        old.SearchOffset(latest, timeout=DEADLINE_S),
        old.Pull(after, timeout=DEADLINE_S),
        old.Cancel(cancel, timeout=DEADLINE_S),
        old.ListQueues(store_pb2.ListQueuesRequest(), timeout=DEADLINE_S),
        old.Backlog(pending_pb2.BacklogRequest(), timeout=DEADLINE_S),
    ]


async def put(trio: RelayedTrio, message_id: str) -> None:
    """Stores a message at any leader; a repeated call has the first one's result."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            request = store_pb2.PutRequest(records=sent(message_id))
            try:
                await trio.stub.Put(request, timeout=DEADLINE_S, wait_for_ready=True)
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise
            else:
                return


async def connected(trio: RelayedTrio) -> tuple[int, grpc.aio.Channel]:
    """The copy that leads, and a connection that outlives a stop of its process: it sends no pings."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            leader = await trio.leader()
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{trio.ports[leader]}")
            latest = gateway_pb2.SearchOffsetRequest(topic="orders", latest=True)
            try:
                answer = await store_pb2_grpc.StoreStub(channel).SearchOffset(latest, timeout=DEADLINE_S)
            except grpc.aio.AioRpcError:
                await channel.close()
                # Another copy is about to lead.
                await trio.revive()
            else:
                assert answer.offset == 1
                return leader, channel
