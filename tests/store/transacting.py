"""Half messages and their ends, as gateways send them to a shard."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from duetime.v1 import message_pb2, store_pb2, transactions_pb2
from duetime_format import record
from duetime_format.names import HALF_TOPIC
from duetime_format.properties import encode_properties
from duetime_format.record import Record, with_crc_mark
from duetime_store.transactions.ending import EndResults, RequestedEnds, Result, TransactionResolver

from tests.store.running import Running

COMMIT, ROLLBACK, UNKNOWN = (
    transactions_pb2.DECISION_COMMIT,
    transactions_pb2.DECISION_ROLLBACK,
    transactions_pb2.DECISION_UNKNOWN,
)
OPEN, COMMITTED, ROLLED_BACK, GIVEN_UP = (
    transactions_pb2.TRANSACTION_STATE_OPEN,
    transactions_pb2.TRANSACTION_STATE_COMMITTED,
    transactions_pb2.TRANSACTION_STATE_ROLLED_BACK,
    transactions_pb2.TRANSACTION_STATE_GIVEN_UP,
)


def half(
    message_id: str, *, topic: str = "orders", queue: int = 0, group: str = "g", body: bytes = b"body", **more: str
) -> bytes:
    """A half record as a gateway sends it."""
    properties = {"TAGS": "paid", "UNIQ_KEY": message_id, **more, "REAL_TOPIC": topic, "REAL_QID": str(queue)}
    properties |= {"TRAN_MSG": "true", "PGROUP": group, "__transactionId__": message_id}
    named = {name: value for name, value in properties.items() if value}
    return record.encode(Record(HALF_TOPIC, 0, body, with_crc_mark(encode_properties(named))))


async def prepare(store: Running, *records: bytes) -> store_pb2.PrepareRecordsResponse:
    request = store_pb2.PrepareRecordsRequest(records=b"".join(records))
    return await store.stub.Prepare(request, timeout=60)


async def prepared(store: Running, *ids: str, **options: Any) -> list[store_pb2.Half]:
    """Halves of messages that have just been prepared."""
    response = await prepare(store, *[half(one, **options) for one in ids])
    assert not response.statuses, response
    places = zip(response.offsets, response.positions, strict=True)
    return [store_pb2.Half(offset=offset, position=position) for offset, position in places]


class HalfEnd(NamedTuple):
    """The end of a half message."""

    half: store_pb2.Half
    message_id: str
    decision: int


def end_of(one: store_pb2.Half, message_id: str, decision: int = COMMIT) -> HalfEnd:
    return HalfEnd(one, message_id, decision)


def ends_of(group: str, ends: Sequence[HalfEnd], *, given_up: bool = False) -> store_pb2.EndTransactionsRequest:
    """As a gateway sends them."""
    return store_pb2.EndTransactionsRequest(
        group=group,
        offsets=[one.half.offset for one in ends],
        positions=[one.half.position for one in ends],
        message_ids=[one.message_id.encode() for one in ends],
        decisions=[one.decision for one in ends],  # type: ignore[misc]
        given_up=given_up,
    )


def results_of(ids: Sequence[str], answer: store_pb2.EndTransactionsResponse) -> list[Result]:
    """The columns of shard 0, one by one."""
    results = []
    offsets, queues, topic_of = (
        list(column) or [-1] * len(ids) for column in (answer.offsets, answer.queues, answer.topic_of)
    )
    assert len(answer.states) == len(offsets) == len(queues) == len(topic_of) == len(ids)
    for index, (message_id, state) in enumerate(zip(ids, answer.states, strict=True)):
        result = Result(state=state)
        if index in answer.others:
            assert answer.others[index].state == state
            result = answer.others[index]
        elif offsets[index] >= 0:
            result.topic = answer.topics[topic_of[index]]
            sent = message_pb2.SendResult(message_id=message_id, queue=queues[index], offset=offsets[index])
            result.sent.CopyFrom(sent)
        assert result.state or result.HasField("fault")
        results.append(result)
    return results


def staged_ends(
    ending: TransactionResolver, group: str, ends: Sequence[HalfEnd], *, given_up: bool = False
) -> list[Result]:
    """Results that hold once all of it is durable."""
    asked = RequestedEnds(ends_of(group, ends, given_up=given_up))
    answer = EndResults(len(ends))
    ending.stage(asked, answer, range(len(ends)))
    return results_of([one.message_id for one in ends], answer.response())


async def end(store: Running, *ends: HalfEnd, group: str = "g", given_up: bool = False) -> list[Result]:
    answer = await store.stub.EndTransactions(ends_of(group, ends, given_up=given_up), timeout=60)
    return results_of([one.message_id for one in ends], answer)


async def get(store: Running, one: store_pb2.Half | None = None, message_id: str = "") -> store_pb2.GetHalfResponse:
    return await store.stub.GetTransaction(store_pb2.GetHalfRequest(half=one, message_id=message_id), timeout=60)


async def listed(store: Running, **request: Any) -> list[store_pb2.HalfTransaction]:
    """All pages."""
    found: list[store_pb2.HalfTransaction] = []
    asked = transactions_pb2.ListTransactionsRequest(**request)
    while True:
        page = await store.stub.ListTransactions(asked, timeout=60)
        found += page.halves
        asked.page_token = page.next_page_token
        if not page.next_page_token:
            return found


def ids(halves: list[store_pb2.HalfTransaction]) -> list[str]:
    return [one.transaction.message_id for one in halves]
