"""The compiled encoder gives the same result for a SendBatch as the Python encoder, or leaves it to Python."""

import random
from typing import Any

from duetime.v1 import gateway_pb2, message_pb2
from duetime_gateway.face.batches import BatchDrafts
from duetime_gateway.sending.encoding import DraftBatch, Encoder
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.test_admission import CLEAN, FIELD, HOSTS
from tests.gateway.test_encoding_twin import ANY, FITTING, HOST, NOW_MS, SHARDS, assert_same, routes, rules, take
from tests.twins import damaged

TOPIC = "orders"


def joined(message: message_pb2.Message, *, named: bool) -> message_pb2.Message:
    """The message as one of a batch: with the batch's topic or none, and no place of its own."""
    one = message_pb2.Message()
    one.CopyFrom(message)
    one.topic, one.sharding_key = TOPIC if named else "", ""
    one.ClearField("queue")
    return one


def distinct(messages: list[message_pb2.Message]) -> bool:
    named = [one.id for one in messages if one.id]
    return len(set(named)) == len(named)


MEMBERS = st.lists(st.builds(joined, FITTING, named=st.booleans()), min_size=1, max_size=5).filter(distinct)
REQUESTS = st.builds(
    gateway_pb2.SendBatchRequest,
    messages=MEMBERS,
    topic=st.just(TOPIC),
    queue=st.none() | st.integers(0, 3),
    sharding_key=st.just("") | CLEAN,
)
OTHERS = st.builds(
    gateway_pb2.SendBatchRequest,
    messages=st.lists(ANY | FITTING | st.builds(joined, ANY, named=st.booleans()), max_size=3),
    topic=st.sampled_from([TOPIC, "paid", "a|b", "unknown", ""]),
    queue=st.none() | st.integers(-1, 4),
    sharding_key=FIELD,
)


def take_batch(data: bytes, shards: list[int], born_host: bytes = HOST, store_host: bytes = HOST) -> Any:
    return take(data, routes(shards, store_host), rules(), born_host, NOW_MS, True)


def reference(data: bytes, shards: list[int], born_host: bytes = HOST, store_host: bytes = HOST) -> DraftBatch:
    """Raises: DecodeError."""
    drafts = BatchDrafts(gateway_pb2.SendBatchRequest.FromString(data))
    batch, encoder = DraftBatch(drafts, NOW_MS, born_host), Encoder(rules())
    assert not list(drafts.violations(is_lite=False)), "taken, though its messages say what only their batch may say"
    (topic,) = drafts.topics()
    known = routes(shards, store_host)
    encoder.choose_one(batch, drafts[0], known[topic])
    encoder.encode(batch, range(len(drafts)), known)
    return batch


@given(REQUESTS, SHARDS, HOSTS, HOSTS)
def test_fitting_batches_are_taken_as_the_encoder_takes_them(
    request: gateway_pb2.SendBatchRequest, shards: list[int], born_host: bytes, store_host: bytes
) -> None:
    data = request.SerializeToString()
    taken = take_batch(data, shards, born_host, store_host)
    assert taken is not None
    assert taken.count == len(request.messages)
    assert len(taken.parts) == 1
    assert_same(taken, reference(data, shards, born_host, store_host))


@given(OTHERS, SHARDS)
def test_other_batches_are_taken_alike_or_left(request: gateway_pb2.SendBatchRequest, shards: list[int]) -> None:
    data = request.SerializeToString()
    taken = take_batch(data, shards)
    if taken is not None:
        assert_same(taken, reference(data, shards))


@given(REQUESTS, st.randoms(use_true_random=False), st.integers(1, 4))
def test_damaged_batches_are_taken_alike_or_left(
    request: gateway_pb2.SendBatchRequest, chance: random.Random, flips: int
) -> None:
    cut = damaged(request.SerializeToString(), chance, flips)
    taken = take_batch(cut, [0, 0, 0, 0])
    if taken is None:
        return
    try:
        batch = reference(cut, [0, 0, 0, 0])
    except DecodeError:
        raise AssertionError("taken, and no SendBatchRequest") from None
    assert_same(taken, batch)


@given(REQUESTS, SHARDS)
def test_batch_fields_may_come_in_any_order(request: gateway_pb2.SendBatchRequest, shards: list[int]) -> None:
    head = gateway_pb2.SendBatchRequest()
    head.CopyFrom(request)
    head.ClearField("messages")
    alone = gateway_pb2.SendBatchRequest(messages=request.messages).SerializeToString()
    for data in (head.SerializeToString() + alone, alone + head.SerializeToString()):
        taken = take_batch(data, shards)
        assert taken is not None
        assert_same(taken, reference(data, shards))


def test_a_repeated_field_is_left_to_python() -> None:
    """The check saw the last one; earlier messages got the first, so properties could be forged."""
    forged = gateway_pb2.SendBatchRequest(sharding_key="k\x02DT_ENTRY\x011:0:5").SerializeToString()
    named = gateway_pb2.SendBatchRequest(topic=TOPIC).SerializeToString()
    member = gateway_pb2.SendBatchRequest(messages=[message_pb2.Message(body=b"x")]).SerializeToString()
    plain = gateway_pb2.SendBatchRequest(sharding_key="k").SerializeToString()
    assert take_batch(named + plain + member, [0, 0, 0, 0]) is not None
    for data in (named + forged + member + plain, named + forged + member, named + member + named + plain):
        assert take_batch(data, [0, 0, 0, 0]) is None
