"""Ownership of a lane: calls that count as polling, when a lane is orphaned, and which scheduler gives way."""

from duetime_store.lanes.attendance import Attendance, WaitingPull

WITHIN_MS = 1_000


def asked(attendance: Attendance, scheduler: str, at_ms: float, *, has_lease: bool) -> None:
    """A pull of the head that returns immediately."""
    asking = WaitingPull(scheduler, bytes([0]), has_lease)
    attendance.begin(asking, at_ms)
    attendance.end(asking, bytes([0]), at_ms)


def unasked_ms(attendance: Attendance, now_ms: float, appended: int = 0) -> float:
    return attendance.unasked_ms(bytes([appended]), now_ms, since_ms=100)


def test_lane_never_polled_is_unasked_since_the_store_started() -> None:
    assert unasked_ms(Attendance(), 5_000) == 4_900


def test_a_pull_of_the_head_counts_as_long_as_it_waits_and_from_its_end_on() -> None:
    attendance = Attendance()
    asking = WaitingPull("a", bytes([3]), True)
    attendance.begin(asking, 1_000)
    assert unasked_ms(attendance, 9_000, appended=3) == 0
    assert attendance.served_by(9_000, 0) == "a"
    attendance.end(asking, bytes([3]), 9_000)
    assert unasked_ms(attendance, 9_500, appended=3) == 500
    assert attendance.served_by(9_500, 1_000) == "a"
    assert attendance.served_by(99_000, 1_000) == ""


def test_a_pull_past_a_put_counts_once_the_put_has_come() -> None:
    attendance = Attendance()
    asking = WaitingPull("a", bytes([3]), True)
    attendance.begin(asking, 1_000)
    assert unasked_ms(attendance, 9_000, appended=2) == 8_900
    assert unasked_ms(attendance, 9_000, appended=3) == 0
    attendance.end(asking, bytes([2]), 9_000)
    assert unasked_ms(attendance, 9_000, appended=2) == 8_900


def test_a_put_counts_as_long_as_it_is_under_way() -> None:
    attendance = Attendance()
    attendance.begin_put()
    assert unasked_ms(attendance, 60_000) == 0
    attendance.end_put(60_000)
    assert unasked_ms(attendance, 60_700) == 700


def test_a_lane_just_given_away_is_not_orphaned() -> None:
    attendance = Attendance()
    attendance.give("a", 5_000)
    assert unasked_ms(attendance, 5_400) == 400


def test_a_stand_in_stays_until_one_with_a_lease_asks() -> None:
    attendance = Attendance()
    attendance.give("a", 0)
    asked(attendance, "b", 100, has_lease=False)
    assert not attendance.is_to_leave("a", 200, WITHIN_MS)
    asked(attendance, "b", 300, has_lease=True)
    assert attendance.is_to_leave("a", 400, WITHIN_MS)
    # One that asked long ago is no reason.
    assert not attendance.is_to_leave("a", 5_000, WITHIN_MS)


def test_the_later_stand_in_stays_and_the_earlier_one_leaves() -> None:
    attendance = Attendance()
    attendance.give("a", 0)
    attendance.give("b", 5_000)
    asked(attendance, "b", 5_100, has_lease=False)
    asked(attendance, "a", 5_200, has_lease=False)
    assert attendance.is_to_leave("a", 5_300, WITHIN_MS)
    assert not attendance.is_to_leave("b", 5_300, WITHIN_MS)


def test_dead_stand_in_is_replaced() -> None:
    attendance = Attendance()
    attendance.give("a", 0)
    assert not attendance.is_to_leave("b", 9_000, WITHIN_MS)
    assert attendance.is_to_leave("a", 9_100, WITHIN_MS)


def test_a_pull_that_waits_keeps_its_schedulers_place() -> None:
    attendance = Attendance()
    attendance.begin(WaitingPull("owner", bytes([0]), True), 0)
    assert attendance.is_to_leave("a", 30_000, WITHIN_MS)
