"""Assignment of lanes to schedulers: tables of the pure decisions."""

import pytest
from duetime_core.node.members import MemberWatch
from duetime_scheduler.sharing import LeaseRow, claims, held, share_out
from hypothesis import given
from hypothesis import strategies as st

LANES = [(0, 1), (0, 2), (0, 3), (1, 1)]


def rows(*owners: str) -> list[LeaseRow]:
    return [LeaseRow(shard, level, owner, 7, paused=False) for (shard, level), owner in zip(LANES, owners, strict=True)]


@pytest.mark.parametrize(
    ("live", "targets"),
    [
        (["a"], "aaaa"),
        (["a", "b"], "abab"),
        (["b", "a"], "abab"),
        (["c", "a", "b"], "abca"),
        (["a", "b", "c", "d", "e"], "abcd"),
    ],
)
def test_lanes_in_order_go_to_members_in_order(live: list[str], targets: str) -> None:
    assert share_out(reversed(LANES), live) == dict(zip(LANES, targets, strict=True))


@given(
    st.sets(st.tuples(st.integers(0, 3), st.integers(1, 18)), max_size=72),
    st.sets(st.text(min_size=1, max_size=4), min_size=1, max_size=9),
)
def test_every_lane_has_one_living_owner_and_shares_are_even(lanes: set[tuple[int, int]], live: set[str]) -> None:
    targets = share_out(lanes, live)
    assert targets.keys() == lanes
    shares = [list(targets.values()).count(member) for member in live]
    assert sum(shares) == len(lanes)
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize(
    ("owners", "live", "me", "claimed"),
    [
        # Nobody's lanes: each takes its share.
        (["", "", "", ""], "a", "a", [(0, 1), (0, 2), (0, 3), (1, 1)]),
        (["", "", "", ""], "ab", "b", [(0, 2), (1, 1)]),
        # A newcomer takes its share from a living owner.
        (["a", "a", "a", "a"], "ab", "b", [(0, 2), (1, 1)]),
        # The owner itself takes nothing more, and gives nothing up.
        (["a", "a", "a", "a"], "ab", "a", []),
        # A dead member's lanes go to those who are left.
        (["a", "b", "a", "b"], "a", "a", [(0, 2), (1, 1)]),
        (["a", "x", "a", "x"], "ab", "b", [(0, 2), (1, 1)]),
        # A member that is gone without trace counts as dead.
        (["", "gone", "", "b"], "b", "b", [(0, 1), (0, 2), (0, 3)]),
        # All is as it should be.
        (["a", "b", "a", "b"], "ab", "a", []),
    ],
)
def test_claims(owners: list[str], live: str, me: str, claimed: list[tuple[int, int]]) -> None:
    assert [row.key for row in claims(rows(*owners), live, me)] == claimed


def test_held_lanes_follow_the_rows_at_any_target() -> None:
    assert held(rows("a", "b", "a", ""), "a") == {(0, 1), (0, 3)}


@given(
    st.lists(st.sampled_from(["", "a", "b", "c", "dead"]), min_size=4, max_size=4),
    st.sets(st.sampled_from("abc"), min_size=1),
)
def test_claims_end_once_all_have_claimed(owners: list[str], live: set[str]) -> None:
    taken = {row.key: member for member in live for row in claims(rows(*owners), live, member)}
    after = [
        LeaseRow(row.shard, row.level, taken.get(row.key, row.owner), row.epoch + 1, paused=False)
        for row in rows(*owners)
    ]
    assert all(claims(after, live, member) == [] for member in live)
    assert {row.owner for row in after} <= live


def watch() -> MemberWatch:
    return MemberWatch("me", lease_ms=3_000, tick_ms_max=1_000)


def test_member_seen_for_the_first_time_is_alive() -> None:
    assert watch().observe({"me": 1, "other": 5}, 0) == ({"me", "other"}, set())


def test_member_that_is_silent_for_the_lease_is_dead() -> None:
    watching = watch()
    seen = [watching.observe({"me": tick, "other": 5}, tick * 500) for tick in range(7)]
    assert [dead for _, dead in seen] == [set()] * 6 + [{"other"}]
    assert seen[-1][0] == {"me"}


def test_member_that_moves_again_is_alive_again() -> None:
    watching = watch()
    for tick in range(7):
        watching.observe({"me": tick, "other": 5}, tick * 500)
    assert watching.observe({"me": 7, "other": 6}, 3_500) == ({"me", "other"}, set())


def test_heartbeat_that_moves_backwards_is_a_sign_of_life_too() -> None:
    """A member that restarted under its old name counts from 1 again."""
    watching = watch()
    for tick in range(6):
        watching.observe({"me": tick, "other": 50}, tick * 500)
    assert watching.observe({"me": 6, "other": 1}, 3_000) == ({"me", "other"}, set())


def test_scheduler_that_slept_counts_the_others_as_live() -> None:
    watching = watch()
    watching.observe({"me": 1, "other": 5}, 0)
    live, dead = watching.observe({"me": 2, "other": 5}, 3_600_000)
    assert (live, dead) == ({"me", "other"}, set())


def test_member_never_takes_itself_for_dead() -> None:
    watching = watch()
    for tick in range(20):
        live, dead = watching.observe({"me": 1, "other": tick}, tick * 1_000)
    assert (live, dead) == ({"me", "other"}, set())


def test_member_that_left_is_forgotten() -> None:
    watching = watch()
    watching.observe({"me": 1, "other": 5}, 0)
    assert watching.observe({"me": 2}, 500) == ({"me"}, set())
    assert watching.observe({"me": 3, "other": 5}, 1_000) == ({"me", "other"}, set())
