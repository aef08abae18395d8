"""Behaviour peculiar to calls within a process."""

import asyncio
from contextlib import suppress

import grpc
from duetime_core.rpc.serving import make_channel
from duetime_core.within.channel import Channel
from duetime_core.within.flow import FLOW_BYTES_MAX
from duetime_core.within.places import places

from tests.core.reaching import DEADLINE_S, Served, free_port, made


async def test_within_a_process_nothing_listens_by_default() -> None:
    for listen in (False, True):
        with free_port() as port, places([f"127.0.0.1:{port}"], listen=listen):
            served = Served(port)
            await served.start()
            try:
                async with grpc.aio.insecure_channel(served.address) as outside:
                    state = asyncio.create_task(outside.channel_ready())
                    done, _ = await asyncio.wait({state}, timeout=DEADLINE_S if listen else 0.3)
                    state.cancel()
                    assert bool(done) == listen
                    if listen:
                        assert await served.method("Unary", outside)(b"hello", timeout=DEADLINE_S) == b"hello"
                assert await served.call("Unary", b"hello") == [b"hello"]
            finally:
                await served.channel.close()
                await served.server.stop(0)
                with suppress(asyncio.CancelledError):
                    await state


async def test_another_event_loop_reaches_the_address_by_its_socket() -> None:
    def elsewhere(address: str) -> bool:
        async def look() -> bool:
            async with make_channel(address) as channel:
                return isinstance(channel, Channel)

        return asyncio.run(look())

    with free_port() as port, places([f"127.0.0.1:{port}"]):
        address = f"127.0.0.1:{port}"
        assert isinstance(make_channel(address), Channel)
        assert not await asyncio.to_thread(elsewhere, address)


async def test_a_call_has_its_servers_variables_and_not_its_callers() -> None:
    from contextvars import ContextVar

    who: ContextVar[str] = ContextVar("who", default="nobody")
    async with made("within") as served:
        told: list[str] = []

        async def act(request: bytes, context: object) -> bytes:
            told.append(who.get())
            return request

        served.servicer._act = act  # type: ignore[method-assign]
        who.set("the server")
        await served.start()
        who.set("the caller")
        await served.call("Unary", b"hello")
        assert told == ["the server"]


async def test_messages_past_the_window_wait_with_their_writer() -> None:
    async with made("within") as served:
        await served.start()
        call = served.method("Stream")(timeout=DEADLINE_S)
        await call.write(b"wait")
        await served.servicer.waiting.acquire()
        await call.write(bytes(FLOW_BYTES_MAX // 2))
        writing = asyncio.create_task(call.write(bytes(FLOW_BYTES_MAX // 2)))
        await asyncio.wait({writing}, timeout=0.05)
        assert not writing.done()
        served.servicer.release.set()
        await writing
        call.cancel()


async def test_an_unreferenced_call_is_cancelled() -> None:
    async with made("within") as served:
        await served.start()
        call = served.begin("UnaryStream", b"wait", timeout=DEADLINE_S)
        assert await call.read() == b"wait"
        await served.servicer.waiting.acquire()
        del call
        async with asyncio.timeout(DEADLINE_S):
            await served.servicer.cancelled.acquire()
