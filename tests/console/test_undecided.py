"""Transactions as the console shows them."""

import re

import pytest
from duetime.v1 import gateway_pb2, message_pb2, transactions_pb2

from tests.console.test_messages import SCRIPT, Desk, desk

__all__ = ["desk"]


async def prepared(desk: Desk, *ids: str, group: str = "shop", topic: str = "orders") -> list[str]:
    messages = [message_pb2.Message(topic=topic, id=each, body=SCRIPT.encode()) for each in ids]
    answer = await desk.stub.Prepare(transactions_pb2.PrepareRequest(group=group, messages=messages), timeout=60)
    return [each.transaction_id for each in answer.results]


@pytest.fixture
async def open_ones(desk: Desk) -> list[str]:
    return await prepared(desk, "a", "b")


async def test_empty_list_explains_transactions(desk: Desk) -> None:
    assert "No transaction is open" in await desk.text("/transactions")


async def test_undecided_transactions_are_found(desk: Desk, open_ones: list[str]) -> None:
    await prepared(desk, "c", group="bank")
    for query, found in (
        ("", "abc"),
        ("group=bank", "c"),
        ("topic=bills", ""),
        ("state=given-up", ""),
        ("state=open", "abc"),
        ("older=1m", ""),
    ):
        text = await desk.text(f"/transactions?{query}")
        assert "".join(re.findall(r'class="mono"[^>]*>(\w)<', text)) == found, query
    assert 'id="older-note" role="alert"' in await desk.text("/transactions?older=soon", 422)


@pytest.mark.parametrize(
    ("act", "word", "state"), [("commit", "committed", "stored"), ("roll-back", "rolled back", "")]
)
async def test_transaction_is_ended_once(desk: Desk, open_ones: list[str], act: str, word: str, state: str) -> None:
    text = await desk.text("/transactions")
    (page,) = re.findall(r'href="(/transactions/[^"]+)">a<', text)
    text = await desk.text(page)
    assert ">Commit<" in text
    assert "&lt;script&gt;" in text
    assert "<script>alert" not in text
    answer = await desk.browser.post(page, {"act": act}, page="/transactions")
    assert answer.headers["location"] == f"{page}?told=now"
    text = await desk.text(answer.headers["location"])
    assert f"The transaction is {word}." in text
    assert ">Commit<" not in text
    other = "commit" if act == "roll-back" else "roll-back"
    answer = await desk.browser.post(page, {"act": other}, page="/transactions")
    assert f"the transaction was {word} before" in await desk.text(answer.headers["location"])
    if state:
        found = await desk.stub.GetMessage(gateway_pb2.GetMessageRequest(id="a", topic="orders"), timeout=60)
        assert found.state == gateway_pb2.MESSAGE_STATE_STORED
    assert (await desk.browser.post(page, {"act": "perhaps"}, page="/transactions")).status_code == 400


async def test_message_id_of_two_topics_needs_the_topic(desk: Desk, open_ones: list[str]) -> None:
    await prepared(desk, "a", topic="bills")
    assert "is known in the topics bills, orders" in await desk.text("/transactions/a", 400)
    page = "/transactions/a?topic=orders"
    assert ">Commit<" in await desk.text(page)
    answer = await desk.browser.post(page, {"act": "roll-back"}, page="/transactions")
    assert "The transaction is rolled back." in await desk.text(answer.headers["location"])
    assert ">Commit<" in await desk.text("/transactions/a?topic=bills")


async def test_missing_transaction_is_reported(desk: Desk) -> None:
    await desk.text("/transactions/nowhere", 404)
