"""Several handlers of one topic, each for a tag."""

import threading
from typing import Any

import pytest
from duetime import Consumer, InvalidArgument, LeasedMessage

from tests.sdk.consuming import consuming, nothing, until
from tests.sdk.groups import Groups

pytestmark = pytest.mark.usefixtures("quick")


async def fill(groups: Groups, topic: str, *tags: str) -> None:
    """A message for each tag, with the tag as its body."""
    await groups.make_topic(topic, 1)
    for n, tag in enumerate(tags):
        await groups.put(topic, tag.encode(), ids=f"id-{n}-%d", tags=tag)


async def test_each_handler_gets_its_tag_through_one_subscription(groups: Groups, topic: str, group: str) -> None:
    await fill(groups, topic, "a", "b", "c", "", "b")
    consumer = Consumer(groups.address, group=group)
    seen: list[tuple[str, str, bool]] = []

    def note(handler: str, message: LeasedMessage) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        seen.append((handler, message.tags, in_main))

    @consumer.handler(topic, tag="a")
    async def of_a(message: LeasedMessage) -> None:
        note("a", message)

    @consumer.handler(topic, tag="b")
    def of_b(message: LeasedMessage) -> None:
        note("b", message)

    @consumer.handler(topic)
    async def of_rest(message: LeasedMessage) -> None:
        note("rest", message)

    async with consuming(consumer):
        await groups.until(lambda: len(groups.bodies("ack")) == 5)
    assert sorted(seen) == [("a", "a", True), *[("b", "b", False)] * 2, ("rest", "", True), ("rest", "c", True)]
    assert {request.tags for request in groups.receives} == {""}
    assert groups.stream_count <= 1


async def test_each_handler_has_its_own_policy(groups: Groups, topic: str, group: str) -> None:
    await fill(groups, topic, "a", "b")
    consumer = Consumer(groups.address, group=group)

    async def fail(message: LeasedMessage) -> None:
        raise ValueError(message.tags)

    consumer.handler(topic, tag="a", max_attempts=3, backoff="5s")(fail)
    consumer.handler(topic, tag="b", max_attempts=7)(fail)
    async with consuming(consumer):
        await groups.until(lambda: len(groups.bodies("nack")) == 2)
    policies = {nack.error.message: request.policy for request in groups.nacks for nack in request.nacks}
    assert (policies["a"].max_attempts, list(policies["a"].intervals.delays_ms)) == (3, [5_000])
    assert (policies["b"].max_attempts, list(policies["b"].intervals.delays_ms)) == (7, [])
    # An expired lease has no handler: the most generous policy applies.
    assert {request.max_attempts for request in groups.receives} == {7}


async def test_number_of_the_group_applies_beside_a_handler_without_one(groups: Groups, topic: str, group: str) -> None:
    await fill(groups, topic, "a")
    consumer = Consumer(groups.address, group=group)
    consumer.handler(topic, tag="a", max_attempts=3)(nothing)
    consumer.handler(topic, tag="b")(nothing)
    async with consuming(consumer):
        await groups.until(lambda: bool(groups.bodies("ack")))
    assert {request.max_attempts for request in groups.receives} == {0}


@pytest.mark.parametrize(("unhandled", "end", "kind"), [("retry", "nack", "LookupError"), ("reject", "dead", "Reject")])
async def test_message_with_an_unknown_tag_is_retried_or_rejected(
    groups: Groups, topic: str, group: str, unhandled: Any, end: str, kind: str
) -> None:
    await fill(groups, topic, "other")
    consumer = Consumer(groups.address, group=group, unhandled=unhandled)
    consumer.handler(topic, tag="b", max_attempts=3)(nothing)
    consumer.handler(topic, tag="a")(nothing)
    async with consuming(consumer):
        await groups.until(lambda: groups.bodies(end) == [b"other"])
    ((request,), (nack,)) = groups.nacks, groups.nacks[0].nacks
    text = f"no handler of {topic} is for 'other': there are a, b"
    assert (nack.error.type, nack.error.message) == (kind, text)
    assert not request.HasField("policy")


async def test_retry_finds_its_handler_by_its_tag(groups: Groups, topic: str, group: str) -> None:
    await fill(groups, topic, "a", "b")
    consumer = Consumer(groups.address, group=group)
    attempts: list[tuple[str, int]] = []

    @consumer.handler(topic, tag="a", backoff="1s")
    async def fail_once(message: LeasedMessage) -> None:
        attempts.append((message.tags, message.attempt))
        if message.attempt == 1:
            raise ValueError

    consumer.handler(topic, tag="b")(nothing)
    async with consuming(consumer):
        await until(lambda: consumer.stats.retried == 1)
        await groups.advance("2s")
        await groups.until(lambda: len(groups.bodies("ack")) == 2)
    assert attempts == [("a", 1), ("a", 2)]


async def test_each_handler_has_its_own_timeout(groups: Groups, topic: str, group: str) -> None:
    await fill(groups, topic, "slow", "quick")
    consumer = Consumer(groups.address, group=group)

    @consumer.handler(topic, tag="slow", timeout="10ms")
    async def wait(message: LeasedMessage) -> None:
        await groups.until(lambda: False)

    consumer.handler(topic, tag="quick")(nothing)
    async with consuming(consumer):
        await groups.until(lambda: (groups.bodies("nack"), groups.bodies("ack")) == ([b"slow"], [b"quick"]))
    assert groups.nacks[0].nacks[0].error.type == "TimeoutError"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tag": "a"}, "topic: orders already has a handler for the tag a"),
        ({"tag": "a || b"}, r"tag: 'a \|\| b' is not one tag"),
        ({"tag": ""}, "tag: '' is not one tag"),
        ({"tag": "b", "concurrency": 8}, "orders already has a handler with other ones; its handlers share them"),
        ({"lease": "5s"}, "tags, sql, concurrency, lease or lite_topics: orders already has"),
        ({"tag": "b", "tags": "a"}, "orders already has a handler with other ones"),
    ],
)
def test_handlers_that_do_not_fit_together_are_rejected(options: dict[str, Any], says: str) -> None:
    consumer = Consumer(group="billing")
    consumer.handler("orders", tag="a")(nothing)
    with pytest.raises(InvalidArgument, match=says):
        consumer.handler("orders", **options)(nothing)


def test_unknown_policy_for_unhandled_messages_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="unhandled: 'drop' is neither 'retry' nor 'reject'"):
        Consumer(group="billing", unhandled="drop")  # type: ignore[arg-type]
