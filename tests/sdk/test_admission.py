"""Clients judge messages by the rules of gateways, as far as these hold for every server."""

import pytest
from duetime import InvalidMessage, Message, to_proto
from duetime.client.admission import NAMES, check
from duetime_format.admission import Draft, Terms, violations
from hypothesis import given

from tests.gateway.test_admission import DRAFTS, NOW_MS


def fields_of(draft: Draft) -> dict[str, object]:
    """As `wire_fields` makes them: without those that have their defaults."""
    plain = Draft(draft.topic)
    always = {"topic", "body", "id", "born_at_ms"}
    names = Draft.__slots__
    return {n: getattr(draft, n) for n in names if n in always or getattr(draft, n) != getattr(plain, n)}


@given(DRAFTS)
def test_cheap_test_of_the_client_passes_no_fault(draft: Draft) -> None:
    if not 0 <= draft.delay_ms <= 5_000 or draft.born_at_ms < 0 or (draft.deliver_at_ms or 0) < 0:
        # The client has refused these before, or never makes them.
        return
    expected = [NAMES.get(one.field, one.field) for one in violations(draft, None, Terms(None, NOW_MS))]
    try:
        check(fields_of(draft))
        found = []
    except InvalidMessage as error:
        found = [one.field for one in error.violations]
    assert found == expected


def test_all_faults_of_a_message_are_named_at_once() -> None:
    bad = Message("a b", b"x", tags="a|b", key="order 42", queue=70_000, level=-1)
    with pytest.raises(InvalidMessage) as raised:
        to_proto(bad)
    assert raised.value.reason == "MESSAGE_INVALID"
    assert str(raised.value) == (
        "topic: 'a b' holds characters other than [%|a-zA-Z0-9_-]; tags: 'a|b' holds |, which separates the tags of a "
        "filter; keys[0]: 'order 42' holds a blank or a control character; queue: 70000 is not within 0 and 1023; "
        "level: -1 is below 0; levels are 1 to 256, 0 is none"
    )


def test_keys_of_another_type_are_left_whole() -> None:
    message = Message("orders", b"x", keys=iter(["a", "b"]))  # type: ignore[arg-type]
    assert list(to_proto(message).keys) == ["a", "b"]
