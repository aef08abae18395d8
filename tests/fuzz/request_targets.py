"""Input from clients: requests in the compiled readers and the Python, filters, tokens, texts; and answers to them."""

from collections.abc import Callable
from typing import Any

import grpc
from duetime.client.errors import DueTimeError, from_status
from duetime.client.message import delay_ms
from duetime.v1 import gateway_pb2, message_pb2
from duetime_core.errors import InvalidArgument
from duetime_core.rpc.decoding import decode
from duetime_format import columns, levels, names, policy
from duetime_format.admission import topic_violations
from duetime_gateway.face.batches import BatchDrafts
from duetime_gateway.packing import ends
from duetime_gateway.packing.packs import PackDrafts
from duetime_gateway.packing.sends import MessageDrafts
from duetime_gateway.pending import tokens as pending_tokens
from duetime_gateway.rules import filter_violations, group_violations
from duetime_gateway.sending.encoding import DraftBatch, Encoder
from duetime_gateway.transactions import names as transaction_names
from duetime_gateway.transactions import tokens as transaction_tokens
from duetime_store.reading.filters import Filter
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from tests.fuzz.seeds import BATCHES, ENDS, NOW_MS, PACKS, RESTORED, SENDS
from tests.fuzz.target import in_python, outcome, target
from tests.gateway.test_encoding_twin import HOST, assert_same, routes, rules, take
from tests.gateway.test_packs_twin import take as take_pack

SHARDS = [0, 3, 0, 1]
KNOWN = set(routes(SHARDS))
TOPICS = [b"orders", b"paid", b"unknown", b"%RETRY%g", b"SCHEDULE_TOPIC_XXXX"]


def encoded(drafts: Any, known: Callable[[Any], bool], *, one_queue: bool = False) -> DraftBatch:
    """A request by the Python encoder, which judges each message and refuses none by an error."""
    batch, encoder, ways = DraftBatch(drafts, NOW_MS, HOST), Encoder(rules()), routes(SHARDS)
    indices = [index for index in range(len(drafts)) if known(drafts[index].topic)]
    if len(indices) < len(drafts):
        batch.faults[-1] = InvalidArgument([])
    if one_queue and indices:
        encoder.choose_one(batch, drafts[0], ways[drafts[0].topic])
    encoder.encode(batch, indices, ways)
    return batch


def is_known(topic: str) -> bool:
    return topic in KNOWN


@target(SENDS, TOPICS, cost=2)
def sends(data: bytes) -> None:
    taken = take(data, routes(SHARDS), rules(), HOST, NOW_MS)
    request, refused = outcome(lambda: decode(gateway_pb2.SendRequest.FromString, data), InvalidArgument)
    assert taken is None or refused is None
    if request is None:
        return
    batch = encoded(MessageDrafts(request.messages), is_known)
    if taken is not None:
        assert_same(taken, batch)


def pack_of(data: bytes) -> PackDrafts:
    """Raises: InvalidArgument."""
    request = decode(gateway_pb2.SendRequest.FromString, data)
    return PackDrafts(request.packs)


@target(PACKS, TOPICS, cost=2)
def packs(data: bytes) -> None:
    taken = take_pack(data, routes(SHARDS), rules(), HOST, NOW_MS)
    request, refused = outcome(lambda: decode(gateway_pb2.SendRequest.FromString, data), InvalidArgument)
    drafts, _ = outcome(lambda: PackDrafts(request.packs), InvalidArgument) if request else (None, 0)
    assert taken is None or (refused is None and drafts is not None)
    if drafts is None:
        return
    batch = encoded(drafts, is_known)
    if taken is not None:
        assert_same(taken, batch)


@target(BATCHES, TOPICS, cost=2)
def batches(data: bytes) -> None:
    taken = take(data, routes(SHARDS), rules(), HOST, NOW_MS, True)
    request, refused = outcome(lambda: decode(gateway_pb2.SendBatchRequest.FromString, data), InvalidArgument)
    assert taken is None or refused is None
    if request is None:
        return
    drafts = BatchDrafts(request)
    violations = list(drafts.violations(is_lite=False))
    if violations or not len(drafts) or not is_known(request.topic):
        assert taken is None
        return
    batch = encoded(drafts, is_known, one_queue=True)
    if taken is not None:
        assert_same(taken, batch)


@target(ENDS, [b"1.2.3.x", b"billing"])
def ends_of_transactions(data: bytes) -> None:
    assert outcome(lambda: ends.read(data), InvalidArgument) == outcome(lambda: ends.read_each(data), InvalidArgument)


SQL = [
    b"color = 'red' AND size > 5",
    b"a BETWEEN 1 AND 5 OR NOT (b IN ('x', 'y''z') AND c IS NOT NULL)",
    b"price >= 1e2 AND ok = TRUE AND -5 < a",
    b"x IS NULL or y NOT IN ('a')",
]
SQL_WORDS = (
    b"( ",
    b") ",
    b" AND ",
    b" OR ",
    b" NOT ",
    b" BETWEEN ",
    b" IN ",
    b"''",
    b" IS NULL",
    b"9" * 40,
    b"1e400",
    b"size",
)


@target(SQL, SQL_WORDS, cost=5)
def filters_by_sql(data: bytes) -> None:
    text = data.decode(errors="replace")
    found, _ = outcome(lambda: Filter.parse("", text), InvalidArgument)
    if found is None:
        return
    sizes = [len(RESTORED), len(RESTORED)]
    passing = found.passing(RESTORED * 2, sizes).tolist()
    assert passing == in_python(columns, "_twin", lambda: found.passing(RESTORED * 2, sizes).tolist())
    assert len(set(passing)) == 1


@target([b"paid || new", b"*", b""], [b"||", b"|", b" "])
def filters_by_tags(data: bytes) -> None:
    text = data.decode(errors="surrogateescape") if len(data) % 2 else data.decode(errors="replace")
    if not text.isprintable():
        text = text.encode(errors="replace").decode()
    list(filter_violations(text, text))
    found, _ = outcome(lambda: Filter.parse(text), InvalidArgument)
    if found is not None:
        found.match(b"TAGS\x01paid\x02")


PENDING = pending_tokens.encode(
    7, {0: pending_tokens.ShardCursor(b"abc", pending_tokens.PendingPosition(5, 1, 2)), 3: pending_tokens.ShardCursor()}
)


def _sealed_token(data: bytes) -> bytes:
    return data[:-4] + pending_tokens.crc32(data[:-4]).to_bytes(4, "big")


@target([PENDING], seal=_sealed_token)
def tokens_of_pending(data: bytes) -> None:
    found, _ = outcome(lambda: pending_tokens.decode(data, 7, (0, 3)), InvalidArgument)
    if found is not None:
        assert pending_tokens.decode(pending_tokens.encode(7, found), 7, (0, 3)) == found if found else True


TRANSACTIONS = transaction_tokens.encode(7, transaction_tokens.TransactionCursor(0, "abc")).encode()


def _sealed_text(data: bytes) -> bytes:
    shard, _, token = data.decode(errors="replace").rpartition(".")[2].partition("|")
    return transaction_tokens.encode(7, transaction_tokens.TransactionCursor(shard, token)).encode()  # type: ignore[arg-type]


@target([TRANSACTIONS, "1.00000007.00000000.\N{SUPERSCRIPT TWO}.x".encode(), b"1.2.3.x"], seal=_sealed_text)
def tokens_and_names_of_transactions(data: bytes) -> None:
    text = data.decode(errors="replace")
    found, _ = outcome(lambda: transaction_tokens.decode(text, 7, (0, 3)), InvalidArgument)
    assert found is None or transaction_tokens.decode(transaction_tokens.encode(7, found), 7, (0, 3)) == found
    name = transaction_names.parse(text)
    assert name is None or transaction_names.parse(transaction_names.text_of(name)) == name


TEXTS = [
    b"exponential:1s..10m,factor=2,jitter=0.1,max=5",
    b"levels",
    b"1s,5s,30s,max=3",
    b"10m",
    b"1s 5s 10s",
    b"orders|%x",
]


@target(TEXTS, [b"factor=nan", b"jitter=inf", b"max=", b"1e999", b"ms", b".."])
def texts_of_people(data: bytes) -> None:
    text = data.decode(errors="replace")
    made = message_pb2.RetryPolicy()
    _, refused = outcome(lambda: policy.fill(made, text), ValueError)
    if refused is None:
        assert not policy.faults(made)
        again = message_pb2.RetryPolicy()
        policy.fill(again, policy.render(made))
    outcome(lambda: levels.DelayLevels.parse(text), ValueError)
    outcome(lambda: delay_ms(text), ValueError)
    list(topic_violations("topic", text))
    list(group_violations("group", text))
    names.is_name(text)


DETAIL = any_pb2.Any()
DETAIL.Pack(error_details_pb2.ErrorInfo(reason="MESSAGE_INVALID"))
STATUS = status_pb2.Status(code=3, message="wrong", details=[DETAIL]).SerializeToString()


class Failed:
    """A call that ended with these bytes as the details of its status."""

    def __init__(self, details: bytes) -> None:
        self._details = details

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.INVALID_ARGUMENT

    def details(self) -> str:
        return "wrong"

    def trailing_metadata(self) -> tuple[tuple[str, bytes]]:
        return (("grpc-status-details-bin", self._details),)


@target([STATUS])
def statuses_of_a_server(data: bytes) -> None:
    assert isinstance(from_status(Failed(data), "server:9800"), DueTimeError)  # type: ignore[arg-type]
