"""Retry policies as text: the server's own table, lists, and the policy of a handler and of a message."""

from datetime import timedelta
from typing import Any

import pytest
from duetime import InvalidArgument, InvalidMessage, Message, to_proto
from duetime.client.retry_policy import handler_policy, message_policy
from duetime.v1.message_pb2 import IntervalBackoff, RetryPolicy

from tests.core.test_retry_policy import REFUSED, UNDERSTOOD


@pytest.mark.parametrize(("text", "policy"), UNDERSTOOD)
def test_the_sdk_and_the_server_read_the_same(text: str, policy: RetryPolicy) -> None:
    assert message_policy(text) == policy
    assert handler_policy(text, None) == policy


@pytest.mark.parametrize("text", [text for text, _ in REFUSED])
def test_the_sdk_and_the_server_refuse_the_same(text: str) -> None:
    with pytest.raises(InvalidMessage, match="retry: "):
        message_policy(text)
    with pytest.raises(InvalidArgument, match="backoff: "):
        handler_policy(text, None)


def test_a_backoff_may_be_a_list_of_lengths() -> None:
    policy = handler_policy(["500ms", "2s", timedelta(minutes=1)], 5)
    assert policy == RetryPolicy(max_attempts=5, intervals=IntervalBackoff(delays_ms=[500, 2_000, 60_000]))


@pytest.mark.parametrize("backoff", [[], ["soon"], ["13h"], ["1s"] * 65, ["-1s"], [1]])
def test_a_list_that_is_no_backoff_is_refused(backoff: list[str | float]) -> None:
    with pytest.raises(InvalidArgument, match="backoff: "):
        handler_policy(backoff, None)


@pytest.mark.parametrize("max_attempts", [0, -1, 1_001, 2.5, "3"])
def test_max_attempts_has_limits(max_attempts: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"max_attempts: .* is not .*within 1 and 1000"):
        handler_policy(None, max_attempts)


def test_max_attempts_is_set_once() -> None:
    assert handler_policy("levels,max=3", 3) == message_policy("levels,max=3")
    with pytest.raises(InvalidArgument, match="is 4, and max=3 in the backoff; give one"):
        handler_policy("levels,max=3", 4)


def test_a_handler_without_a_policy_leaves_it_to_the_group() -> None:
    assert handler_policy(None, None) is None


def test_a_message_has_its_policy_in_its_wire_form() -> None:
    assert to_proto(Message("orders", b"x", retry="1s,5s,max=3")).retry == message_policy("1s,5s,max=3")
    assert not to_proto(Message("orders", b"x")).HasField("retry")
