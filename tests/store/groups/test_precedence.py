"""The claims of queues that higher priorities pass over."""

from duetime_store.groups.precedence import SHARE, Precedence

WAIT_MS = 10_000


def test_a_claim_begins_after_the_wait_and_ends_with_an_empty_queue() -> None:
    order = Precedence()
    order.note(1, 0, [0, 2], [], 1_000.0)
    order.note(1, 0, [0, 2], [], 5_000.0)
    assert order.claims(1_000.0 - 1) == []
    assert order.claims(10_999.0 - WAIT_MS) == []
    assert order.claims(11_000.0 - WAIT_MS) == [0, 2]
    order.note(1, 0, [0], [2], 11_000.0)
    assert order.claims(11_000.0 - WAIT_MS) == [0]
    order.note(1, 0, [0, 2], [], 12_000.0)
    assert order.claims(12_000.0 - WAIT_MS) == [0]


def test_claims_take_turns() -> None:
    order = Precedence()
    order.note(1, 0, [0, 1, 2], [], 0.0)
    order.gave(0)
    assert order.claims(0.0) == [1, 2, 0]


def test_one_of_each_share_is_by_a_claim_however_many_a_call_takes() -> None:
    for size in (1, 3, 8, 32):
        order, taken, given = Precedence(), 0, 0
        for _ in range(480 // size):
            room = order.room(size)
            taken, given = taken + room, given + size
            order.note(size, room, [], [], 0.0)
            assert taken == given // SHARE


def test_calls_before_a_claim_save_up_no_more_than_one() -> None:
    order = Precedence()
    order.note(1_000, 0, [0], [], 0.0)
    assert (order.room(1), order.room(8)) == (1, 1)
