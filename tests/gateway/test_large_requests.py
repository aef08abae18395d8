"""Large requests beside small ones: they go in parts, and leave time for the others."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from duetime_core.clock import turn
from duetime_gateway.sending import sender
from duetime_gateway.sending.drafts import PackedRequest

from tests.gateway.conftest import Gateway, TappedStore, message, real_store, request
from tests.tap import WAIT_S
from tests.twins import compiled

MIB = 1024 * 1024


async def test_a_large_request_for_a_new_topic_is_taken_by_the_compiled_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled("duetime_gateway.packing._packing")
    taken: list[tuple[int, int]] = []
    begin_packed = sender.Sender._begin_packed

    async def noted(self: Any, packed: PackedRequest, *arguments: Any) -> sender.InFlightRequest:
        taken.extend(packed.parts)
        return await begin_packed(self, packed, *arguments)

    monkeypatch.setattr(sender.Sender, "_begin_packed", noted)
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}) as gateway:
        results = await gateway.send(*(message(bytes(3 * MIB), topic="new", queue=0) for _ in range(3)))
    assert [one.offset for one in results] == [0, 1, 2]
    assert taken == [(0, 1)] * 3


@pytest.mark.parametrize("beside", [False, True])
async def test_after_a_large_request_others_have_as_long(
    tmp_path: Path, tap: TappedStore, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    rests: list[float] = []
    monkeypatch.setattr(sender.Reservation, "close_after", lambda self, seconds: (rests.append(seconds), self.close()))
    async with Gateway(tmp_path, {0: tap.port}) as gateway:
        await gateway.send(message())
        tap.hold("PutStream")
        large = gateway.stub.Send(request(message(bytes(2 * MIB))), timeout=WAIT_S)
        await tap.until_waiting("PutStream", 1)
        if beside:
            small = gateway.stub.Send(request(message()), timeout=WAIT_S)
            async with asyncio.timeout(WAIT_S):
                while gateway.node.parts.shards.get(0).batcher._waiting_count < 1:
                    await turn()
        tap.release()
        await large
        if beside:
            await small
    assert len(rests) == beside


async def test_messages_that_are_dear_to_encode_are_so_in_steps(
    tmp_path: Path, tap: TappedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "STEP_S", 0.0)
    turns = 0

    async def counted() -> None:
        nonlocal turns
        turns += 1
        await turn()

    monkeypatch.setattr(sender, "turn", counted)
    async with Gateway(tmp_path, {0: tap.port}) as gateway:
        await gateway.send(message())
        properties = {f"name{n}": "value" for n in range(150)}
        results = await gateway.send(*(message(b"%d" % n, properties=properties) for n in range(200)))
        assert not any(one.HasField("fault") for one in results)
        assert [one.body for one in tap.records[1:]] == [b"%d" % n for n in range(200)]
        assert turns == 6
