"""Shares of a limit."""

from duetime_core.limits.shares import Shares
from hypothesis import given
from hypothesis import strategies as st


def test_one_holder_gets_its_share_and_no_more() -> None:
    shares: Shares[str] = Shares(100, share=50, little=5)
    assert shares.room("a") == 50
    shares.take("a", 50)
    assert shares.room("a") == 0
    assert shares.room("b") == 40


def test_the_last_tenth_is_for_small_holders() -> None:
    shares: Shares[str] = Shares(100, share=50, little=5)
    shares.take("a", 50)
    shares.take("b", 40)
    assert shares.room("b") == 0
    assert shares.room("c") == 5
    shares.take("c", 5)
    assert shares.room("c") == 0
    assert shares.room("d") == 5


def test_returned_share_is_available_again() -> None:
    shares: Shares[str] = Shares(10, share=10, little=1)
    shares.take("a", 9)
    assert not shares.may_take("a", 1)
    assert shares.refused_count == 1
    shares.give("a", 9)
    assert shares.used == shares.held("a") == 0
    assert shares.room("a") == 9


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 40)), max_size=60))
def test_no_holder_exceeds_its_share_and_newcomers_find_some(wanted: list[tuple[str, int]]) -> None:
    shares: Shares[str] = Shares(100, share=30, little=2)
    for key, amount in wanted:
        if amount <= shares.room(key):
            shares.take(key, amount)
    assert shares.used <= 100
    assert all(shares.held(key) <= 30 for key in "abcdef")
    # The last tenth has room for five hosts with few calls.
    assert shares.room("new") >= 2 or sum(0 < shares.held(key) <= 2 for key in "abcdef") > 3
