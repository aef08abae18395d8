"""Quiet connections give way when descriptors run short."""

import asyncio

import grpc
from duetime_core.limits.shedding import NEVER_CHECKS, OTHERS_CHECKS, QUIET_CHECKS, ConnectionShedder
from duetime_core.testing import FakeClock

from tests import fronts
from tests.core.test_traffic import DEADLINE_S, serving

pytestmark = fronts.both


async def test_connections_that_were_never_used_go_before_those_that_were() -> None:
    async with serving() as served:
        shedding = ConnectionShedder(served.traffic, FakeClock())
        shedding.start(served.server.port)
        shedding.stop()
        silent = [served.raw() for _ in range(3)]
        async with grpc.aio.insecure_channel(served.address) as channel:
            put = channel.unary_unary("/T/Put")
            assert await put(b"1", timeout=DEADLINE_S) == b"1"
            for _ in range(NEVER_CHECKS):
                shedding.shed(2)
            assert served.traffic.cut_count == 0
            shedding.shed(2)
            assert served.traffic.cut_count == 2
            assert [await asyncio.to_thread(raw.ended, DEADLINE_S) for raw in silent[:2]] == [True, True]
            for _ in range(QUIET_CHECKS - NEVER_CHECKS):
                shedding.shed(0)
            # One was never used, the other was, and is idle.
            shedding.shed(10)
            assert served.traffic.cut_count == 4
            await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
            assert await put(b"12", timeout=DEADLINE_S, wait_for_ready=True) == b"2"


async def test_connection_with_a_waiting_stream_stays_open() -> None:
    async with serving() as served, grpc.aio.insecure_channel(served.address) as channel:
        shedding = ConnectionShedder(served.traffic, FakeClock())
        shedding.start(served.server.port)
        shedding.stop()
        stream = channel.stream_stream("/T/Stream")()
        await stream.write(b"1")
        assert await stream.read() == b"1"
        for _ in range(QUIET_CHECKS + 2):
            shedding.shed(10)
        assert served.traffic.cut_count == 0
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF


async def test_files_that_are_no_connections_are_not_looked_for_every_second() -> None:
    async with serving(connections_max=20) as served:
        # Never started: this process's own descriptors are as many as earlier tests have left it.
        shedding = ConnectionShedder(served.traffic, FakeClock())
        looks: list[int] = []

        def share() -> int:
            looks.append(1)
            return 3

        shedding.share = share  # type: ignore[method-assign]
        for _ in range(OTHERS_CHECKS + 2):
            shedding._check_shares(500)
        # The first look and the one a minute later; then a look whenever there are many more.
        assert len(looks) == 2
        shedding._check_shares(497 + 18)
        assert len(looks) == 2
        shedding._check_shares(497 + 19)
        assert len(looks) == 3
