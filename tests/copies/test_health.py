"""The health of a copy, as a supervisor asks for it: a copy that follows is ready, one without a leader is not."""

import asyncio
from pathlib import Path

from duetime_core.health import health_of

from tests.copies.processes import DEADLINE_S, Trio
from tests.twins import native

native("duetime_raft")


async def test_copy_is_ready_while_it_knows_a_leader(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    try:
        await trio.start(1)
        await becomes(trio, 1, "NOT_SERVING")
        assert await health(trio, 1, "liveness") == "SERVING"
        await asyncio.gather(trio.start(2), trio.start(3))
        for number in trio.numbers:
            await becomes(trio, number, "SERVING")
        leader = await trio.leader()
        one, two = (number for number in trio.numbers if number != leader)
        await trio.kill(leader)
        await trio.kill(one)
        await becomes(trio, two, "NOT_SERVING")
        assert await health(trio, two, "liveness") == "SERVING"
    finally:
        for number in list(trio.processes):
            await trio.kill(number)


async def health(trio: Trio, number: int, service: str = "") -> str:
    return await asyncio.to_thread(health_of, f"127.0.0.1:{trio.probe_ports[number]}", service)


async def becomes(trio: Trio, number: int, expected: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await health(trio, number) != expected:  # noqa: ASYNC110  another process
            await asyncio.sleep(0.05)
