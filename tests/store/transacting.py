"""Half messages and their ends, as gateways send them to a shard."""

from typing import Any

from duetime.v1 import store_pb2, transactions_pb2
from duetime_format import record
from duetime_format.names import HALF_TOPIC
from duetime_format.properties import encode_properties
from duetime_format.record import Record, with_crc_mark

from tests.store.test_service import Running

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
    return await store.stub.Prepare(request, timeout=30)


async def prepared(store: Running, *ids: str, **options: Any) -> list[store_pb2.Half]:
    """Halves of messages that have just been prepared."""
    response = await prepare(store, *[half(one, **options) for one in ids])
    assert not response.statuses, response
    places = zip(response.offsets, response.positions, strict=True)
    return [store_pb2.Half(offset=offset, position=position) for offset, position in places]


def end_of(one: store_pb2.Half, message_id: str, decision: int = COMMIT) -> store_pb2.HalfEnd:
    return store_pb2.HalfEnd(half=one, message_id=message_id, decision=decision)  # type: ignore[arg-type]


async def end(
    store: Running, *ends: store_pb2.HalfEnd, group: str = "g", given_up: bool = False
) -> list[transactions_pb2.EndTransactionResult]:
    request = store_pb2.EndTransactionsRequest(group=group, ends=ends, given_up=given_up)
    return list((await store.stub.EndTransactions(request, timeout=60)).results)


async def get(store: Running, one: store_pb2.Half | None = None, message_id: str = "") -> store_pb2.GetHalfResponse:
    return await store.stub.GetTransaction(store_pb2.GetHalfRequest(half=one, message_id=message_id), timeout=10)


async def listed(store: Running, **request: Any) -> list[store_pb2.HalfTransaction]:
    """All pages."""
    found: list[store_pb2.HalfTransaction] = []
    asked = transactions_pb2.ListTransactionsRequest(**request)
    while True:
        page = await store.stub.ListTransactions(asked, timeout=10)
        found += page.halves
        asked.page_token = page.next_page_token
        if not page.next_page_token:
            return found


def ids(halves: list[store_pb2.HalfTransaction]) -> list[str]:
    return [one.transaction.message_id for one in halves]
