"""Room for bytes: shorter where there is less, in turn where it is waited for."""

import asyncio

import pytest
from duetime_core.clock import SystemClock
from duetime_core.errors import Overloaded
from duetime_core.limits.room import Reservation, Room

CLOCK = SystemClock()


def reserve(room: Room, peer: str, wanted: int, least: int) -> Reservation:
    return Reservation(room, peer, room.left(peer, wanted, least))


def make(limit: int = 100) -> Room:
    return Room(limit, share=60, little=10, what="answers", reason="ANSWERS_EXHAUSTED")


def test_reservation_is_limited_by_the_capacity() -> None:
    room = make()
    with reserve(room, "a", 50, 5) as first, reserve(room, "a", 50, 5) as second:
        assert (first.size, second.size) == (50, 10)
        with pytest.raises(Overloaded) as refused:
            reserve(room, "a", 50, 5)
        assert refused.value.reason == "ANSWERS_EXHAUSTED"
        assert refused.value.retriable
        assert "60 belong to this connection; its limit is 60" in refused.value.text
    assert room.shares.used == 0


def test_many_connections_of_one_host_leave_room_to_others() -> None:
    room = Room(6_400, share=3_200, little=100, what="answers", reason="ANSWERS_EXHAUSTED", by_host=True)
    greedy = [reserve(room, f"ipv4:10.0.0.1:{port}", 100, 100) for port in range(32)]
    with pytest.raises(Overloaded):
        reserve(room, "ipv4:10.0.0.1:99", 1, 1)
    with reserve(room, "ipv4:10.0.0.2:1", 6_400, 1) as large:
        assert large.size == 6_400 - 3_200 - 640 - 320
        with reserve(room, "ipv4:10.0.0.3:1", 100, 100) as little:
            assert little.size == 100
    for one in greedy:
        one.close()
    # A connection leaves the last tenth of its host's share to others of the host.
    with reserve(room, "ipv4:10.0.0.1:1", 6_400, 1) as large, reserve(room, "ipv4:10.0.0.1:2", 100, 100):
        assert large.size == 3_200 - 320
    assert room.shares.used == 0


def test_larger_answer_is_rejected_without_capacity() -> None:
    room = make()
    with reserve(room, "a", 50, 5) as reserved:
        reserved.check(60)
        with pytest.raises(Overloaded):
            reserved.check(61)


def test_full_share_leaves_a_reserve_for_unreserved_answers() -> None:
    room = make()
    with reserve(room, "a", 60, 5):
        room.shares.take("a", 10)
        room.check("a")
        room.shares.take("a", 1)
        with pytest.raises(Overloaded):
            room.check("a")


async def test_room_that_is_left_for_later_stays_taken_until_then() -> None:
    room = make()
    first = await room.wait("a", 60, CLOCK, 0)
    first.close_after(0.01)
    assert room.shares.used == 60
    second = await room.wait("b", 60, CLOCK, 10_000)
    assert (first.size, second.size, room.shares.used) == (0, 60, 60)
    first.close()
    second.close_after(3_600)
    second.close()
    assert room.shares.used == 0


async def test_waiting_callers_get_room_in_turn_and_small_ones_at_once() -> None:
    room = make()
    first = await room.wait("a", 60, CLOCK, 0)
    second = asyncio.ensure_future(room.wait("b", 60, CLOCK, 10_000))
    third = asyncio.ensure_future(room.wait("c", 60, CLOCK, 10_000))
    await asyncio.sleep(0)
    small = await room.wait("d", 10, CLOCK, 0)
    small.close()
    assert not second.done()
    first.close()
    (await second).close()
    (await third).close()
    assert room.shares.used == 0


async def test_timed_out_waiter_is_refused_and_leaves_its_turn() -> None:
    room = make()
    first = await room.wait("a", 60, CLOCK, 0)
    with pytest.raises(Overloaded):
        await room.wait("b", 60, CLOCK, 1)
    waiting = asyncio.ensure_future(room.wait("c", 60, CLOCK, 10_000))
    await asyncio.sleep(0)
    waiting.cancel()
    # It has the room before it knows that it is cancelled, and gives it back.
    first.close()
    assert room.shares.held("c") == 60
    await asyncio.gather(waiting, return_exceptions=True)
    (await room.wait("d", 60, CLOCK, 0)).close()
    assert room.shares.refused_count == 1


def test_reservation_keeps_the_size_of_its_answer() -> None:
    room = make()
    with Reservation(room, "a", 50) as one:
        one.keep(20)
        assert room.shares.used == 20
        # Received bytes count despite any reservation.
        one.keep(70)
        assert (one.size, room.shares.held("a")) == (70, 70)
    assert room.shares.used == 0
