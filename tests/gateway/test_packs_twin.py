"""The compiled encoder gives the same result for a pack as the Python encoder, or leaves it to Python."""

import random
from typing import Any

import pytest
from duetime.client.sending.stream import REQUESTS_UNDER_WAY_MAX
from duetime.v1 import gateway_pb2, message_pb2
from duetime_core.errors import InvalidArgument
from duetime_format.levels import DELAY_MS_MAX
from duetime_gateway.packing.packs import NUMBER_MAX, PackDrafts, ranges_of
from duetime_gateway.sending.encoding import DraftBatch, Encoder
from duetime_gateway.sending.outcomes import SendOutcomes
from google.protobuf.message import DecodeError
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.gateway.test_admission import FIELD, HOSTS
from tests.gateway.test_encoding_twin import HOST, NOW_MS, SHARDS, assert_same, routes, rules
from tests.twins import compiled, damaged

take = compiled("duetime_gateway.packing._packs").take

PREFIX = "7F0000014D2A9C0FF1E3"
BODIES = st.lists(st.binary(max_size=32), min_size=1, max_size=6)


def request_of(bodies: list[bytes], **fields: Any) -> gateway_pb2.SendRequest:
    given = {name: value for name, value in fields.items() if value is not None}
    pack = gateway_pb2.Pack(sizes=[len(body) for body in bodies], bodies=b"".join(bodies), **given)
    return gateway_pb2.SendRequest(packs=[pack])


FITTING = st.builds(
    request_of,
    BODIES,
    topic=st.sampled_from(["orders", "paid"]),
    tags=st.sampled_from(["", "new", "a b"]),
    delay_level=st.none() | st.integers(0, 3),
    # The last of several counts.
    delay_ms=st.none() | st.sampled_from([0, 1, 1_000, 5_000, DELAY_MS_MAX]),
    deliver_at_ms=st.none() | st.sampled_from([0, 1, NOW_MS + DELAY_MS_MAX]),
    id_prefix=st.sampled_from(["", PREFIX, "a", "x" * 243]),
    # Within a block of 256, over its end, and at the last number.
    first_number=st.sampled_from([0, 254, 255, 256, NUMBER_MAX - 5]),
    born_at_ms=st.sampled_from([0, 1, NOW_MS]),
)
# Packs with separate prefixes, or all with one: then ids may be equal, or continue from pack to pack.
SEVERAL = st.lists(FITTING, min_size=2, max_size=4).map(
    lambda requests: gateway_pb2.SendRequest(packs=[pack for request in requests for pack in request.packs])
)
OTHERS = st.builds(
    request_of,
    st.lists(st.binary(max_size=8), max_size=3),
    topic=st.sampled_from(["orders", "a|b", "unknown", ""]),
    tags=FIELD,
    delay_level=st.none() | st.integers(-1, 5),
    delay_ms=st.none() | st.sampled_from([-1, 0, 1, DELAY_MS_MAX + 1]),
    deliver_at_ms=st.none() | st.sampled_from([-1, NOW_MS + DELAY_MS_MAX + 60_001]),
    id_prefix=FIELD | st.just("x" * 244),
    first_number=st.sampled_from([-1, 0, NUMBER_MAX, NUMBER_MAX + 1]),
    born_at_ms=st.sampled_from([-1, 0]),
)


def take_pack(data: bytes, shards: list[int], born_host: bytes = HOST, store_host: bytes = HOST) -> Any:
    return take(data, routes(shards, store_host), rules(), born_host, NOW_MS)


def reference(data: bytes, shards: list[int], born_host: bytes = HOST, store_host: bytes = HOST) -> DraftBatch:
    """Raises: DecodeError, InvalidArgument."""
    request = gateway_pb2.SendRequest.FromString(data)
    drafts = PackDrafts(request.packs)
    batch, encoder = DraftBatch(drafts, NOW_MS, born_host), Encoder(rules())
    encoder.encode(batch, range(len(drafts)), routes(shards, store_host))
    return batch


@given(FITTING, SHARDS, HOSTS, HOSTS)
def test_fitting_packs_are_taken_as_the_encoder_takes_them(
    request: gateway_pb2.SendRequest, shards: list[int], born_host: bytes, store_host: bytes
) -> None:
    data = request.SerializeToString()
    taken = take_pack(data, shards, born_host, store_host)
    assert taken is not None
    assert taken.count == len(request.packs[0].sizes)
    assert_same(taken, reference(data, shards, born_host, store_host))


@given(OTHERS, SHARDS)
def test_other_packs_are_taken_alike_or_left(request: gateway_pb2.SendRequest, shards: list[int]) -> None:
    data = request.SerializeToString()
    taken = take_pack(data, shards)
    if taken is not None:
        assert_same(taken, reference(data, shards))


@given(SEVERAL, SHARDS)
def test_several_packs_are_taken_alike_unless_ids_are_equal_or_made(
    request: gateway_pb2.SendRequest, shards: list[int]
) -> None:
    data = request.SerializeToString()
    taken, expected = take_pack(data, shards), reference(data, shards)
    if taken is None:
        assert expected.repeats or not all(pack.id_prefix for pack in request.packs)
    else:
        assert_same(taken, expected)


def test_packs_as_many_as_a_stream_has_under_way_are_taken_together() -> None:
    packs = [request_of([b"a", b"b"], topic="orders", id_prefix=PREFIX, first_number=4_096 * n) for n in range(17)]
    joined = gateway_pb2.SendRequest(packs=[pack for request in packs[:16] for pack in request.packs])
    taken = take_pack(joined.SerializeToString(), [0, 0, 0, 0])
    assert taken.count == 32
    assert REQUESTS_UNDER_WAY_MAX == 16
    joined.packs.extend(packs[16].packs)
    assert take_pack(joined.SerializeToString(), [0, 0, 0, 0]) is None


@given(FITTING | SEVERAL, st.randoms(use_true_random=False), st.integers(1, 4))
def test_damaged_packs_are_taken_alike_or_left(
    request: gateway_pb2.SendRequest, chance: random.Random, flips: int
) -> None:
    cut = damaged(request.SerializeToString(), chance, flips)
    taken = take_pack(cut, [0, 0, 0, 0])
    if taken is None:
        return
    try:
        batch = reference(cut, [0, 0, 0, 0])
    except (DecodeError, InvalidArgument):
        raise AssertionError("taken, and no pack") from None
    assert_same(taken, batch)


@given(FITTING | SEVERAL, SHARDS, st.integers(0, 1 << 40), st.randoms(use_true_random=False))
def test_ranges_are_those_of_the_results_one_by_one(
    request: gateway_pb2.SendRequest, shards: list[int], first: int, chance: random.Random
) -> None:
    taken = take_pack(request.SerializeToString(), shards)
    assume(taken is not None)
    ids, queues, levels, lanes, parts = taken.columns()
    answers: list[tuple[list[int], list[int], tuple[int, ...]]] = []
    for _, count in taken.parts:
        # Now and then an offset is skipped, as where another message came between.
        offsets = [first + number + (number > 2) * chance.randint(0, 1) for number in range(count)]
        answers.append((offsets, [NOW_MS + 5] * count if any(lanes) else [], ()))
    given_out = [iter(offsets) for offsets, _, _ in answers]
    outcomes = SendOutcomes(
        ids,
        [taken.parts[part][0] for part in parts],
        queues,
        [next(given_out[part]) for part in parts],
        levels,
        [NOW_MS + 5 if lane else 0 for lane in lanes],
        {},
        frozenset(),
        {},
        lanes,
        frozenset(),
        {},
        (),
    )
    response = gateway_pb2.SendResponse.FromString(taken.response(answers))
    assert list(response.ranges) == ranges_of(outcomes)
    assert sum(one.count for one in response.ranges) == len(ids)


def test_answers_that_are_not_those_of_the_parts_are_refused() -> None:
    taken = take_pack(request_of([b"a", b"b"], topic="orders").SerializeToString(), [0, 0, 0, 0])
    with pytest.raises(ValueError, match="has 2 records, and 1 offsets"):
        taken.response([([0], [], ())])
    with pytest.raises(ValueError, match="0 answers for 1 parts"):
        taken.response([])


def test_pack_beside_messages_is_left_to_python() -> None:
    request = request_of([b"a"], topic="orders")
    request.messages.append(message_pb2.Message(topic="orders"))
    assert take_pack(request.SerializeToString(), [0]) is None
    assert take_pack(b"\x1a", [0]) is None
    assert take_pack(b"", [0]) is None
