"""Batches that are stored all or none, as users send them."""

from pathlib import Path

import pytest
from duetime.client.errors import InvalidArgument, InvalidMessage
from duetime.client.message import Message
from duetime.client.sending.batch import BATCH_BYTES_MAX, whole_batches
from duetime.client.sending.producer import AsyncProducer
from duetime_format.limits import SEND_COUNT_MAX
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.conftest import Gateway, real_store


@given(sizes=st.lists(st.integers(0, 900_000), max_size=30))
def test_splitting_keeps_order_and_every_batch_within_the_limits(sizes: list[int]) -> None:
    messages = [Message("orders", bytes(size), id=f"m{number}") for number, size in enumerate(sizes)]
    parts = list(whole_batches("orders", messages, None, "", split=True))
    assert [one for part in parts for one in part.ids] == [f"m{number}" for number in range(len(sizes))]
    assert all(part.size <= BATCH_BYTES_MAX and len(part.ids) <= SEND_COUNT_MAX for part in parts)
    assert len(list(whole_batches("orders", messages, None, "", split=False))) == 1


def test_splitting_fills_every_batch() -> None:
    half = bytes(BATCH_BYTES_MAX // 2 - 10_000)
    parts = whole_batches("orders", [half] * 5, None, "", split=True)
    assert [len(part.ids) for part in parts] == [2, 2, 1]


async def test_batch_is_stored_whole_or_refused_whole(tmp_path: Path) -> None:
    async with (
        real_store(tmp_path) as store,
        Gateway(tmp_path, {0: store.port}) as gateway,
        AsyncProducer(f"127.0.0.1:{gateway.node.port}") as producer,
    ):
        receipts = await producer.send_batch("orders", [b"a", Message("orders", b"b", "5m"), b"c"])
        assert len({one.queue for one in receipts}) == 1
        assert receipts[2].offset == receipts[0].offset + 1
        assert receipts[1].level is not None
        with pytest.raises(InvalidArgument) as caught:
            await producer.send_batch("orders", [b"a", Message("mail", b"b")])
        assert [one.field for one in caught.value.violations] == ["messages[1].topic"]
        with pytest.raises(InvalidMessage, match=r"messages\[1\]"):
            await producer.send_batch("orders", [b"a", Message("orders", b"b", "nonsense")])
        large = [bytes(3_000_000)] * 2
        with pytest.raises(InvalidArgument) as caught:
            await producer.send_batch("orders", large)
        assert caught.value.reason == "BATCH_TOO_LARGE"
        assert len(await producer.send_batch("orders", large, split=True)) == 2
