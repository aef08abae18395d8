"""`python -m duetime_core.health`, against real servers."""

import asyncio

import pytest
from duetime_core.health import main
from duetime_core.rpc.serving import Server

from tests import fronts

pytestmark = fronts.both


async def ask(*arguments: str) -> int:
    return await asyncio.to_thread(main, list(arguments))


async def test_health_check_follows_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(["sample"], calls_in_flight_max=8)
    await server.start("127.0.0.1", 0, front=fronts.current())
    address = f"127.0.0.1:{server.port}"
    try:
        assert await ask(address) == 0
        assert await ask(address, "--service", "nobody") == 1
        await server.report(serving=False)
        assert await ask(address) == 1
    finally:
        await server.stop(0)
    assert await ask(address) == 1
    assert capsys.readouterr().out.split() == ["SERVING", "NOT_FOUND", "NOT_SERVING", "UNAVAILABLE"]
