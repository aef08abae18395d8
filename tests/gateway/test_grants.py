"""Matches of patterns, and the rights that follow from a user's grants."""

import pytest
from duetime_core.errors import InvalidArgument, PermissionDenied
from duetime_core.metadata.models import PATTERN_CHARS_MAX
from duetime_core.metadata.users import StoredGrant
from duetime_gateway.access.grants import ANSWERS_MAX, EVERYTHING, NOTHING, READ, Access, Kind, Right, check_pattern

from tests.gateway.people import grant


def access(*grants: str) -> Access:
    return Access("shop", map(grant, grants))


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("orders", "ORDERS", False),
        ("orders-*", "orders-eu", True),
        ("orders-*", "orders", False),
        ("orders-*", "orders_eu", False),
        ("o?ders", "orders", True),
        ("*", "anything", True),
        # All topics: no name at all.
        ("*", "", True),
        ("orders*", "", False),
        # System topics take the right to inspect.
        ("S*", "SCHEDULE_TOPIC_XXXX", False),
        ("SCHEDULE_TOPIC_XXXX", "SCHEDULE_TOPIC_XXXX", False),
        ("*", "DT_QUARANTINE", False),
        ("?*", "%DLQ%billing", False),
        ("*", "%DLQ%billing", True),
        ("%DLQ%bill*", "%DLQ%billing", True),
        ("%DLQ%bill*", "%RETRY%billing", False),
    ],
)
def test_pattern_matches_names(pattern: str, name: str, matches: bool) -> None:
    found = access(f"receive topic {pattern}")
    # Twice: the second answer is a remembered one.
    assert [found.may(Right.RECEIVE, Kind.TOPIC, name) for _ in range(2)] == [matches] * 2
    assert not found.may(Right.SEND, Kind.TOPIC, name)
    assert not found.may(Right.RECEIVE, Kind.GROUP, name)


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("*", "SCHEDULE_TOPIC_XXXX", True),
        ("DT_*", "DT_QUARANTINE", True),
        ("DT_QUARANTINE", "DT_CANCELLED", False),
        ("*", "orders", False),
        ("*", "%DLQ%billing", False),
        ("*", "", False),
    ],
)
def test_right_to_inspect_is_for_system_topics_alone(pattern: str, name: str, matches: bool) -> None:
    found = access(f"inspect topic {pattern}")
    assert found.may(READ, Kind.TOPIC, name) is matches
    assert not found.may(Right.SEND | Right.RECEIVE | Right.MANAGE, Kind.TOPIC, name)


@pytest.mark.parametrize("pattern", ["", "a b", "[a-z]", "a\n", "ä", "a" * (PATTERN_CHARS_MAX + 1), "a/b", "orders.*"])
def test_pattern_that_no_name_can_match_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgument):
        check_pattern(pattern)


def test_one_of_several_rights_is_enough() -> None:
    found = access("manage group billing")
    assert found.may(Right.RECEIVE | Right.MANAGE, Kind.GROUP, "billing")
    assert found.has(Right.MANAGE, Kind.GROUP)
    assert not found.has(Right.MANAGE, Kind.TOPIC)


def test_admin_may_do_everything_and_user_without_grants_nothing() -> None:
    for right in Right:
        for kind in Kind:
            assert access("admin").may(right, kind, "")
            assert EVERYTHING.may(right, kind, "orders")
            assert not NOTHING.may(right, kind, "orders")


def test_refusal_names_only_user_right_and_topic() -> None:
    with pytest.raises(PermissionDenied) as caught:
        access("send topic other").check(Right.SEND, Kind.TOPIC, "orders")
    assert caught.value.text == "user shop has no right to send for topic 'orders'"
    assert caught.value.reason == "RIGHT_MISSING"
    with pytest.raises(PermissionDenied, match="for all topics"):
        access("send topic other").check(Right.SEND, Kind.TOPIC, "")


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        ((), (), False),
        (("send topic a",), ("send topic a", "send topic b"), False),
        (("send topic a", "send topic b"), ("send topic a",), True),
        (("send topic a",), ("admin",), False),
        (("admin",), ("send topic *",), True),
    ],
)
def test_rights_that_are_missing_later_are_noticed(before: tuple[str, ...], after: tuple[str, ...], lost: bool) -> None:
    assert access(*before).lost(access(*after)) is lost


def test_grant_of_a_later_version_gives_nothing() -> None:
    found = Access("shop", [StoredGrant("fly", "topic", "*"), StoredGrant("send", "planet", "*")])
    assert not any(found.may(right, kind, "orders") for right in Right for kind in Kind)


def test_made_up_names_take_bounded_memory() -> None:
    found = access("send topic orders")
    for number in range(3 * ANSWERS_MAX):
        assert not found.may(Right.SEND, Kind.TOPIC, f"other-{number}")
    assert not found.may(Right.SEND, Kind.TOPIC, "x" * 1_000_000)
    assert len(found._answers) <= ANSWERS_MAX
    assert max(len(name) for _, _, name in found._answers) <= PATTERN_CHARS_MAX + 1
