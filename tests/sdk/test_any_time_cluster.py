"""Messages for any time through the SDK and the whole cluster on a fake clock: delivered, cancelled, rescheduled,
replaced."""

from datetime import UTC, datetime, timedelta

import pytest
from duetime import CancelResult, Finder, InvalidMessage, Message, Producer, Puller, Receipt
from duetime_core.testing import LocalCluster

from tests.sdk.arrivals import bodies

CANCELLED, FIRED, NOT_FOUND = CancelResult.CANCELLED, CancelResult.ALREADY_FIRED, CancelResult.NOT_FOUND


def test_any_delay_and_due_time_is_kept_to_the_millisecond(cluster: LocalCluster, producer: Producer) -> None:
    # The first receipt shows the server's time.
    first = producer.send("any", b"7s", delay="7s", queue=0)
    assert first.deliver_at is not None
    assert (first.lane, first.level) == (1_000, None)
    now = first.deliver_at - timedelta(seconds=7)
    at = producer.send("any", b"6999ms", deliver_at=now + timedelta(milliseconds=6_999), queue=0)
    past = producer.send("any", b"past", deliver_at=datetime(2001, 1, 1, tzinfo=UTC), queue=0)
    assert at.deliver_at == now + timedelta(milliseconds=6_999)
    assert (at.was_past, past.was_past) == (False, True)
    with Puller(cluster.address, "any", start="earliest") as puller:
        cluster.advance("1ms")
        (found,) = puller.poll(wait="30s")
        assert found.body == b"past"
        cluster.advance("6997ms")
        assert puller.poll(wait="100ms") == []
        cluster.advance("1ms")
        (found,) = puller.poll(wait="30s")
        assert (found.body, found.due_at, found.lane, found.delay_level) == (b"6999ms", at.deliver_at, 1_000, 0)
        cluster.advance("1ms")
        (found,) = puller.poll(wait="30s")
        assert (found.body, found.due_at) == (b"7s", first.deliver_at)


def test_ten_years_are_the_most(producer: Producer) -> None:
    receipt = producer.send("far", b"x", delay="3660d")
    assert receipt.deliver_at is not None
    with pytest.raises(InvalidMessage, match="3660d1ms exceeds the limit of 3660d"):
        producer.send("far", b"x", delay="316224000001ms")


def test_a_cancelled_message_is_never_delivered(cluster: LocalCluster, producer: Producer) -> None:
    outcomes = producer.send_many(
        [Message("cancels", b"%d" % n, delay="1h" if n % 2 else "3600123ms", id=f"cancel-{n}") for n in range(20)]
    )
    receipts = [one for one in outcomes if isinstance(one, Receipt)]
    assert producer.cancel(receipts[0]) is CANCELLED
    assert producer.cancel("cancel-1") is CANCELLED
    assert producer.cancel(receipts[2:10]) == [CANCELLED] * 8
    # Again, and by the other name.
    assert producer.cancel([receipts[1], "cancel-0", "none"]) == [CANCELLED, CANCELLED, NOT_FOUND]
    cluster.advance("2h")
    assert sorted(bodies(cluster, "cancels", 10)) == sorted(b"%d" % n for n in range(10, 20))
    assert producer.cancel([receipts[19], "cancel-18", "cancel-3"]) == [FIRED, FIRED, CANCELLED]
    plain = producer.send("cancels", b"plain")
    assert producer.cancel(plain) is FIRED


def test_a_rescheduled_message_is_delivered_once(cluster: LocalCluster, producer: Producer) -> None:
    earlier = producer.send("moves", b"earlier", delay="2h", queue=0)
    later = producer.send("moves", b"later", delay="1234ms", queue=0)
    moved = producer.reschedule(earlier, delay="5s", body=b"earlier, and other")
    assert (moved.status, moved.message_id) == ("rescheduled", earlier.message_id)
    assert producer.reschedule(later.message_id, delay="3h").status == "rescheduled"
    cluster.advance("6000ms")
    assert bodies(cluster, "moves", 1) == [b"earlier, and other"]
    assert producer.reschedule(earlier, delay="1h").status == "already fired"
    # The first receipt still names it.
    assert producer.reschedule(later, delay="1m").status == "rescheduled"
    cluster.advance("4h")
    assert bodies(cluster, "moves", 2) == [b"earlier, and other", b"later"]
    assert producer.reschedule("none", delay="1m").status == "not found"


def test_of_messages_that_replace_each_other_one_is_delivered(cluster: LocalCluster, producer: Producer) -> None:
    first = producer.send("carts", b"first", delay="30m", replace=True, key="cart-1")
    other = producer.send("carts", b"other", delay="30m", replace=True, key="cart-2")
    second = producer.send("carts", b"second", delay="30m", replace=True, key="cart-1")
    assert (first.replaced_id, other.replaced_id, second.replaced_id) == (None, None, first.message_id)
    assert first.lane == second.lane == 1_000
    cluster.advance("1h")
    assert sorted(bodies(cluster, "carts", 2)) == [b"other", b"second"]
    third = producer.send("carts", b"third", delay="30m", replace=True, key="cart-1")
    assert third.replaced_id is None
    assert producer.cancel(third) is CANCELLED


def test_max_wait_bounds_how_long_a_message_is_put_off(cluster: LocalCluster, producer: Producer) -> None:
    fields = {"delay": "10m", "replace": True, "key": "k", "max_wait": "15m"}
    first = producer.send("debounced", b"1", **fields)  # type: ignore[arg-type]
    assert first.deliver_at is not None
    cluster.advance("9m")
    second = producer.send("debounced", b"2", **fields)  # type: ignore[arg-type]
    assert second.deliver_at == first.deliver_at + timedelta(minutes=5)
    cluster.advance("7m")
    assert bodies(cluster, "debounced", 1) == [b"2"]


def test_a_found_message_shows_its_state(cluster: LocalCluster, producer: Producer, finder: Finder) -> None:
    receipt = producer.send("shown", b"x", delay="3600500ms")
    found = finder.get(receipt.message_id)
    assert (found.state, found.due_at, found.lane) == ("pending", receipt.deliver_at, 1_000)
    assert found.before_count is not None
    assert producer.cancel(found) is CANCELLED
    assert finder.get(receipt.message_id).state == "cancelled"


def test_a_trace_has_every_due_time_and_the_end(cluster: LocalCluster, producer: Producer, finder: Finder) -> None:
    moved = producer.send("traced", b"x", delay="7s")
    cluster.advance("1000ms")
    later = producer.reschedule(moved, delay="2h")
    cluster.advance("1000ms")
    producer.cancel(moved)
    events = finder.trace(moved.message_id).events
    assert [event.kind for event in events] == ["accepted", "deferred", "rescheduled", "cancelled"]
    assert [event.due_at for event in events[1:]] == [moved.deliver_at, later.deliver_at, later.deliver_at]
    first = producer.send("traced", b"1", delay="7s", replace=True, key="k")
    second = producer.send("traced", b"2", delay="7s", replace=True, key="k")
    end = finder.trace(first.message_id).events[-1]
    assert (end.kind, end.replaced_by, end.due_at) == ("replaced", second.message_id, first.deliver_at)
    assert all(not event.replaced_by for event in events)
