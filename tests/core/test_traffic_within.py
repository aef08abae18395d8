"""Answers within the process: those whose reader is behind count, like those of connections."""

import asyncio

from duetime_core.limits.traffic import Traffic, TrafficLimits
from duetime_core.within.flow import FLOW_BYTES_MAX
from duetime_core.within.rpc import Rpc
from duetime_core.within.server import PEER, InProcessContext

PART_BYTES = FLOW_BYTES_MAX // 4


async def test_answer_counts_while_its_reader_is_behind() -> None:
    traffic, peer = Traffic(TrafficLimits(), None), f"{PEER}1"
    rpc = Rpc(asyncio.get_running_loop(), "/T/Stream", (), None, one_answer=False)
    context = InProcessContext(rpc, peer, None)
    for _ in range(3):
        await traffic.write(peer, context, bytes(PART_BYTES))
        assert traffic.answers.shares.used == 0
    writing = asyncio.ensure_future(traffic.write(peer, context, bytes(PART_BYTES)))
    await asyncio.sleep(0)
    assert not writing.done()
    assert traffic.answers.shares.used == PART_BYTES
    assert len(await rpc.take_answer()) == PART_BYTES
    await writing
    assert traffic.answers.shares.used == 0
    traffic.stop()
