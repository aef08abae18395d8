"""The compiled encoder packs requests to prepare as the Python encoder encodes them, or leaves them to it."""

import random
from typing import Any

import pytest
from duetime.v1 import message_pb2
from duetime.v1 import transactions_pb2 as pb
from duetime_format import limits
from duetime_gateway.face.transactions import prepare_response
from duetime_gateway.packing.sends import MessageDrafts
from duetime_gateway.sending.encoding import DraftBatch, Encoder, half_properties
from duetime_gateway.sending.outcomes import SendOutcomes
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from tests.gateway.conftest import Gateway, TappedStore, message
from tests.gateway.test_admission import HOSTS
from tests.gateway.test_encoding_twin import ANY, FITTING, HOST, NOW_MS, SHARDS, assert_same, routes, rules, take
from tests.gateway.test_transactions import halves, prepare
from tests.twins import damaged

GROUP = "billing"
DISTINCT = st.lists(FITTING, min_size=1, max_size=5, unique_by=lambda one: (one.topic, one.id or object()))


def half_of(group: str, check_immunity_s: int) -> bytes | None:
    """As a gateway that knows one group."""
    return half_properties(group, check_immunity_s) if group == GROUP and 0 <= check_immunity_s < 100 else None


def take_half(data: bytes, shards: list[int], born_host: bytes = HOST, store_host: bytes = HOST) -> Any:
    return take(data, routes(shards, store_host), rules(), born_host, NOW_MS, False, half_of)


def reference(data: bytes, shards: list[int], born_host: bytes = HOST, store_host: bytes = HOST) -> DraftBatch:
    request = pb.PrepareRequest.FromString(data)
    half = half_of(request.group, request.check_immunity_s)
    assert half is not None
    batch = DraftBatch(MessageDrafts(request.messages), NOW_MS, born_host, half)
    known = routes(shards, store_host)
    indices = [number for number, one in enumerate(request.messages) if one.topic in known]
    if len(indices) < len(request.messages):
        batch.faults[-1] = NotImplementedError  # type: ignore[assignment]
    Encoder(rules()).encode(batch, indices, known)
    return batch


@given(DISTINCT, SHARDS, HOSTS, HOSTS, st.integers(0, 99))
def test_fitting_halves_are_packed_as_they_are_encoded(
    sent: list[message_pb2.Message],
    shards: list[int],
    born_host: bytes,
    store_host: bytes,
    check_immunity_s: int,
) -> None:
    request = pb.PrepareRequest(group=GROUP, messages=sent, check_immunity_s=check_immunity_s)
    data = request.SerializeToString()
    taken = take_half(data, shards, born_host, store_host)
    assert taken is not None
    assert (taken.count, taken.is_half) == (len(sent), True)
    assert_same(taken, reference(data, shards, born_host, store_host))


@given(st.lists(ANY, min_size=1, max_size=2), SHARDS)
def test_other_halves_are_packed_alike_or_left(sent: list[message_pb2.Message], shards: list[int]) -> None:
    data = pb.PrepareRequest(group=GROUP, messages=sent).SerializeToString()
    taken = take_half(data, shards)
    if taken is not None:
        assert_same(taken, reference(data, shards))


@given(st.lists(FITTING, min_size=1, max_size=3), st.randoms(use_true_random=False), st.integers(1, 4))
@example([message_pb2.Message(topic="orders", id="a")], random.Random(0), 1)
def test_damaged_requests_are_packed_alike_or_left(
    sent: list[message_pb2.Message], chance: random.Random, flips: int
) -> None:
    cut = damaged(pb.PrepareRequest(group=GROUP, messages=sent, check_immunity_s=7).SerializeToString(), chance, flips)
    taken = take_half(cut, [0, 0, 0, 0])
    if taken is None:
        return
    try:
        batch = reference(cut, [0, 0, 0, 0])
    except DecodeError:
        raise AssertionError("taken, and no PrepareRequest") from None
    assert_same(taken, batch)


@pytest.mark.parametrize(("group", "check_immunity_s"), [("other", 0), ("", 0), ("bíll", 0), (GROUP, -1), (GROUP, 100)])
def test_unusual_prepares_are_left_to_python(group: str, check_immunity_s: int) -> None:
    sent = [message_pb2.Message(topic="orders")]
    request = pb.PrepareRequest(group=group, messages=sent, check_immunity_s=check_immunity_s)
    assert take_half(request.SerializeToString(), [0]) is None


def test_space_for_a_commit_is_left() -> None:
    most = limits.PROPERTIES_BYTES_MAX - limits.HALF_BYTES_MAX
    for size, fits in ((most, True), (most + 1, False)):
        one = message_pb2.Message(topic="orders", id="a", properties={"p": "x" * (size - len("p=;UNIQ_KEY=a"))})
        data = pb.PrepareRequest(group=GROUP, messages=[one]).SerializeToString()
        assert (take_half(data, [0]) is not None) == fits
        assert bool(reference(data, [0]).faults) != fits


PLACES = st.tuples(st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 63) - 1))


@given(st.lists(PLACES, min_size=1, max_size=5), st.sampled_from(["x", "y" * 255, ""]))
def test_answer_is_the_one_of_single_results(places: list[tuple[int, int, int]], named: str) -> None:
    sent = [message_pb2.Message(topic="orders", id=named and named[:-1] + str(n)) for n in range(len(places))]
    taken = take_half(pb.PrepareRequest(group=GROUP, messages=sent).SerializeToString(), [(1 << 31) - 1])
    offsets, positions, checks = (list(column) for column in zip(*places, strict=True))
    ids, queues, levels, lanes, _ = taken.columns()
    none: Any = ((), {}, frozenset())
    outcomes = SendOutcomes(
        *(ids, [(1 << 31) - 1] * len(ids), queues, offsets, levels, checks, none[1], none[2], none[1], lanes),
        *(none[2], none[1], positions),
    )
    answer = taken.response([(offsets, checks, positions)])
    assert pb.PrepareResponse.FromString(answer) == pb.PrepareResponse.FromString(prepare_response(outcomes))


def test_answers_of_other_lengths_are_refused() -> None:
    data = pb.PrepareRequest(group=GROUP, messages=[message_pb2.Message(topic="orders")]).SerializeToString()
    for columns in (([1], [1], []), ([1], [], [1]), ([1, 2], [1], [1])):
        with pytest.raises(ValueError, match="part 0 has 1 records"):
            take_half(data, [0]).response([columns])


async def test_only_the_first_request_of_a_group_is_not_packed(
    tapped: Gateway, taps: list[TappedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = 0

    def encode(self: Encoder, batch: DraftBatch, *rest: Any) -> None:
        nonlocal encoded
        encoded += len(batch.drafts)
        original(self, batch, *rest)

    original = Encoder.encode
    monkeypatch.setattr(Encoder, "encode", encode)
    # All queues, so that every shard knows the topic afterwards.
    for number in range(3):
        sent = [message(b"%d" % number, delay_level=number, queue=queue) for queue in range(4)]
        results = await prepare(tapped, *sent, check_immunity_s=9)
        assert all(one.transaction_id and one.check_at_ms for one in results)
    assert encoded == 4
    stored = halves(taps)
    assert len(stored) == 12
    assert {one["CHECK_IMMUNITY_TIME_IN_SECONDS"] for _, one in stored.values()} == {"9"}
    assert tapped.metric("duetime_gateway_prepared_total", outcome="stored") == 12
