"""Pages merged from shards' pages, page tokens, and buckets added up: the pure parts."""

from dataclasses import dataclass, field

import pytest
from duetime.v1 import message_pb2
from duetime.v1 import pending_pb2 as pb
from duetime_core.errors import InvalidArgument
from duetime_gateway.pending import listing
from duetime_gateway.pending.counting import add_up
from duetime_gateway.pending.listing import merge
from duetime_gateway.pending.tokens import PendingPosition, ShardCursor, decode, encode
from hypothesis import given
from hypothesis import strategies as st

CURSORS = {
    3: ShardCursor(b"abc", PendingPosition(1_700_000_000_000, 1_000, 5)),
    7: ShardCursor(b""),
    0: ShardCursor(b"x" * 300),
}


@dataclass
class Shard:
    """Its messages are (due, lane, entry); of each page only those with an odd entry pass the filter."""

    places: list[PendingPosition] = field(default_factory=list)

    def page(self, cursor: ShardCursor, count: int) -> pb.ListPendingResponse:
        after = int(cursor.token) if cursor.token else -1
        left = sorted(place for place in self.places if _rank(place) > after)
        response = pb.ListPendingResponse(seen_count=len(left[:count]))
        for due_at_ms, lane, entry in left[:count]:
            if entry % 2:
                message = message_pb2.StoredMessage(due_at_ms=due_at_ms, offset=entry)
                response.messages.add(message=message, lane=lane)
        if len(left) > count:
            response.next_page_token = b"%d" % _rank(left[count - 1])
            response.due_at_ms = left[count - 1].due_at_ms
        return response


def _rank(place: PendingPosition) -> int:
    return place.due_at_ms << 40 | place.lane << 20 | place.entry


PLACES = st.lists(
    st.builds(PendingPosition, st.integers(1, 9), st.integers(1, 3), st.integers(0, 30)), max_size=30, unique=True
)


@given(
    st.lists(PLACES, min_size=1, max_size=3),
    st.integers(1, 7),
    st.integers(1, 9),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_all_are_listed_once_in_due_order(
    lists: list[list[PendingPosition]], count: int, page: int, chance: object, cancels: bool
) -> None:
    shards = {number: Shard(list(places)) for number, places in enumerate(lists)}
    cursors = dict.fromkeys(shards, ShardCursor())
    listed: list[tuple[int, PendingPosition]] = []
    gone: set[tuple[int, PendingPosition]] = set()
    rounds = 0
    while cursors:
        rounds += 1
        assert rounds <= 1_000, "no end"
        answers = {number: shards[number].page(cursor, chance.randint(1, page)) for number, cursor in cursors.items()}
        response, cursors = merge(answers, cursors, count)
        assert len(response.messages) <= count
        listed += [
            (one.shard, PendingPosition(one.message.due_at_ms, one.lane, one.message.offset))
            for one in response.messages
        ]
        cursors = decode(encode(1, cursors), 1, shards) if cursors else {}
        for number, shard in shards.items():
            if cancels and shard.places and chance.random() < 0.3:  # type: ignore[attr-defined]
                place = shard.places.pop(chance.randrange(len(shard.places)))  # type: ignore[attr-defined]
                gone.add((number, place))
    assert [place.due_at_ms for _, place in listed] == sorted(place.due_at_ms for _, place in listed)
    assert len(set(listed)) == len(listed)
    wanted = {(number, place) for number, places in enumerate(lists) for place in places if place.entry % 2}
    assert wanted - gone <= set(listed) <= wanted


def test_a_page_bounds_its_bytes() -> None:
    answer = pb.ListPendingResponse()
    for entry in range(3):
        answer.messages.add(message=message_pb2.StoredMessage(due_at_ms=5, offset=entry, body=bytes(90)), lane=1)
    response, left = merge({0: answer}, {0: ShardCursor()}, 10, 100)
    assert len(response.messages) == 1
    assert left == {0: ShardCursor(b"", PendingPosition(5, 1, 0))}


def test_tokens_come_back_as_they_were() -> None:
    assert decode(encode(77, CURSORS), 77, [0, 3, 7, 9]) == CURSORS
    assert encode(77, {}) == b""


@pytest.mark.parametrize(
    ("token", "digest", "shards", "text"),
    [
        (encode(1, CURSORS), 2, [0, 3, 7], "belongs to another filter"),
        (encode(1, CURSORS), 1, [0, 3], r"names shards outside the filter: \[7\]"),
        (b"", 1, [0], "was not returned by ListPending"),
        (b"\0\0\0\0", 1, [0], "was not returned by ListPending"),
        (encode(1, CURSORS)[:-1], 1, [0, 3, 7], "was not returned by ListPending"),
    ],
)
def test_tokens_are_checked(token: bytes, digest: int, shards: list[int], text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"page_token: {text}"):
        decode(token, digest, shards)


@given(st.integers(0, len(encode(1, CURSORS)) - 1), st.integers(1, 255))
def test_a_damaged_token_is_refused(at: int, flip: int) -> None:
    data = bytearray(encode(1, CURSORS))
    data[at] ^= flip
    with pytest.raises(InvalidArgument, match="page_token: was not returned by ListPending"):
        decode(bytes(data), 1, CURSORS.keys())


def test_a_later_version_is_named() -> None:
    data = b"\x02" + encode(1, CURSORS)[1:-4]
    data += listing.crc32(data).to_bytes(4, "big")
    with pytest.raises(InvalidArgument, match="page_token: has version 2; this gateway reads 1"):
        decode(data, 1, CURSORS.keys())


WIDTHS = (1_000, 60_000, 3_600_000, 86_400_000)


@given(st.lists(st.lists(st.tuples(st.integers(0, 200_000_000), st.sampled_from(WIDTHS), st.integers(1, 5)))))
def test_buckets_never_overlap_and_keep_their_sum(shards: list[list[tuple[int, int, int]]]) -> None:
    answers = {}
    for number, buckets in enumerate(shards):
        answers[number] = pb.BacklogResponse(pending_count=sum(count for _, _, count in buckets))
        for at_ms, width_ms, count in buckets:
            answers[number].buckets.add(due_from_ms=at_ms // width_ms * width_ms, width_ms=width_ms, count=count)
    found = add_up(answers)
    assert sum(one.count for one in found.buckets) == found.pending_count
    end_ms = 0
    for one in found.buckets:
        assert one.due_from_ms >= end_ms
        end_ms = one.due_from_ms + one.width_ms
