"""Shares of a rate: never above the rate in sum, whichever call is late, lost or repeated."""

from typing import Any

from duetime.v1 import consumer_pb2, store_pb2
from duetime_core.testing import FakeClock
from duetime_format.limits import RATE_PARTS
from duetime_gateway.consuming.rates import RateTransfer, plan_transfers
from duetime_store.groups.fetch import FetchRequest
from duetime_store.groups.permits import GroupPermits, PermitBucket
from duetime_store.groups.shares import TERM_MS
from duetime_store.reading.filters import Filter
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from tests.store.groups.running import GROUP, TOPIC
from tests.store.groups.test_permits import limits_of, rate_of

RATE = "40/s,burst=8"


class RateShard:
    """The permits of a shard with a monotonic clock of its own."""

    def __init__(self, number: int, shard_count: int, rate: str, began_ms: float = 0.0) -> None:
        self.number, self.shard_count, self.rate = number, shard_count, rate
        self.clock = FakeClock()
        self.clock.move(began_ms)
        self.start()

    def start(self) -> None:
        """A store that starts: memory of before is lost."""
        self.permits = GroupPermits(self.clock)
        self.permits.learn(GROUP, limits_of(self.rate))
        self.bucket.count  # noqa: B018

    @property
    def bucket(self) -> PermitBucket:
        asked = FetchRequest(
            GROUP, TOPIC, (0,), (), 32, 1, 1, 0, Filter(), 1, False, 0, "member", "caller", self.shard_count, ()
        )
        bucket = self.permits.find(asked)
        assert bucket is not None
        return bucket

    def take(self, wanted: int) -> int:
        """Delivers messages; those without a permit wait."""
        got = min(self.bucket.count, wanted)
        self.bucket.take(got)
        if got < wanted:
            self.bucket.hold(lambda: None)
        return got

    def share(self, **fields: Any) -> tuple[store_pb2.RateShareState, int]:
        request = store_pb2.RateShareRequest(group=GROUP, topic=TOPIC, shard_count=self.shard_count, **fields)
        answer = self.permits.shared(store_pb2.ShareRatesRequest(shares=[request]))
        return answer.shares[0], answer.now_ms


def loan(shard: int, parts: int) -> store_pb2.RateLoan:
    return store_pb2.RateLoan(shard=shard, parts=parts)


class LendingShards(RuleBasedStateMachine):
    """Shards, and gateways whose calls arrive at any time, in any order, never or twice."""

    questions = Bundle("questions")
    loans = Bundle("loans")

    @initialize(
        rate=st.sampled_from([RATE, "7/s,burst=1", "1000/m,burst=30", "2/h", "5000/s"]),
        began=st.lists(st.floats(0, 10_000, allow_nan=False), min_size=2, max_size=4),
    )
    def begin(self, rate: str, began: list[float]) -> None:
        count = len(began)
        self.shards = [RateShard(number, count, rate, began_ms) for number, began_ms in enumerate(began)]
        self.delivery, self.elapsed_ms, self.delivered = rate_of(rate), 0.0, 0
        self.burst = max(self.delivery.burst or rate_count(self.delivery), count)
        # The least messages ahead of the rate so far: from then on, at most a burst more.
        self.ahead_min = 0.0

    def shard(self, number: int) -> RateShard:
        return self.shards[number % len(self.shards)]

    @rule(by_ms=st.floats(0, 3_000, allow_nan=False))
    def move(self, by_ms: float) -> None:
        self.elapsed_ms += by_ms
        for shard in self.shards:
            shard.clock.move(by_ms)

    @rule(number=st.integers(0, 3), past_ms=st.sampled_from([-0.5, 0.0, 0.5]))
    def reach_an_end(self, number: int, past_ms: float) -> None:
        """Moves to the next end of a loan or of borrowed parts."""
        clock = self.shard(number).clock
        end_ms = self.shard(number).bucket.share.next_end_ms(int(clock.monotonic_ms()))
        if end_ms is not None:
            self.move(max(end_ms - clock.monotonic_ms() + past_ms, 0.0))

    @rule(number=st.integers(0, 3), wanted=st.sampled_from([1, 3, 1_000_000]))
    def deliver(self, number: int, wanted: int) -> None:
        self.delivered += self.shard(number).take(wanted)

    @rule(target=questions, number=st.integers(0, 3))
    def ask(self, number: int) -> tuple[int, int]:
        shard = self.shard(number)
        return shard.number, shard.share()[1]

    @rule(target=loans, question=questions, lender=st.integers(0, 3), parts=st.integers(1, RATE_PARTS))
    def lend(self, question: tuple[int, int], lender: int, parts: int) -> Any:
        shard, (borrower, asked_at_ms) = self.shard(lender), question
        if shard.number == borrower:
            return multiple()
        state, _ = shard.share(lent=[loan(borrower, parts)])
        assert state.lent[0].parts <= parts
        return (borrower, asked_at_ms, shard.number, state.lent[0].parts) if state.lent[0].parts else multiple()

    @rule(lent=loans)
    def borrow(self, lent: tuple[int, int, int, int]) -> None:
        borrower, asked_at_ms, lender, parts = lent
        self.shards[borrower].share(borrowed=[loan(lender, parts)], asked_at_ms=asked_at_ms)

    @rule()
    def exchange(self) -> None:
        exchange(self.shards)

    @rule(number=st.integers(0, 3), began_ms=st.none() | st.integers(0, 10_000))
    def restart(self, number: int, began_ms: int | None) -> None:
        shard = self.shard(number)
        if began_ms is not None:
            # Its monotonic clock starts again, as on another machine.
            shard.clock = FakeClock()
            shard.clock.move(began_ms)
        shard.start()

    @invariant()
    def never_more_than_the_rate(self) -> None:
        parts = [shard.bucket.parts for shard in self.shards]
        assert min(parts) >= 0
        assert sum(parts) <= len(self.shards) * RATE_PARTS
        ahead = self.delivered - self.elapsed_ms * self.delivery.count / self.delivery.per_ms
        self.ahead_min = min(self.ahead_min, ahead)
        # Clocks are read in whole milliseconds.
        assert ahead <= self.ahead_min + self.burst + self.delivery.count / self.delivery.per_ms + 1e-6


TestLendingShards = LendingShards.TestCase


def rate_count(rate: consumer_pb2.DeliveryRate) -> int:
    """Messages of a second: the burst of a rate without one."""
    return max(rate.count * 1_000 // rate.per_ms, 1)


def exchange(shards: list[RateShard]) -> None:
    """A gateway's round, as in `RateLender`."""
    asked = {shard.number: shard.share() for shard in shards}
    for one in plan_transfers({number: state.wanted_parts for number, (state, _) in asked.items()}):
        state, _ = shards[one.lender].share(lent=[loan(one.borrower, one.parts)])
        if state.lent[0].parts:
            borrowed = [loan(one.lender, state.lent[0].parts)]
            shards[one.borrower].share(borrowed=borrowed, asked_at_ms=asked[one.borrower][1])


def deliveries(shards: list[RateShard], wanted: dict[int, int], seconds: int) -> dict[int, int]:
    """The messages delivered by shard. `wanted`: those that arrive in 100 ms."""
    found = dict.fromkeys(wanted, 0)
    for step in range(seconds * 10):
        if step % 10 == 0:
            exchange(shards)
        for shard in shards:
            shard.clock.move(100)
            if shard.number in wanted:
                found[shard.number] += shard.take(wanted[shard.number])
    return found


MANY = 1_000


def test_shard_with_all_messages_has_the_whole_rate() -> None:
    shards = [RateShard(number, 4, "40/s") for number in range(4)]
    deliveries(shards, {2: MANY}, 4)
    assert deliveries(shards, {2: MANY}, 10) == {2: 400}
    assert [shard.bucket.parts for shard in shards] == [0, 0, 4 * RATE_PARTS, 0]


def test_even_load_has_equal_parts() -> None:
    shards = [RateShard(number, 2, RATE) for number in range(2)]
    deliveries(shards, {0: MANY, 1: MANY}, 4)
    assert deliveries(shards, {0: MANY, 1: MANY}, 5) == {0: 100, 1: 100}


def test_parts_follow_the_demand_within_three_seconds() -> None:
    shards = [RateShard(number, 2, RATE) for number in range(2)]
    deliveries(shards, {0: MANY}, 5)
    deliveries(shards, {0: MANY, 1: MANY}, 3)
    assert deliveries(shards, {0: MANY, 1: MANY}, 5) == {0: 100, 1: 100}
    deliveries(shards, {1: MANY}, 3)
    assert deliveries(shards, {1: MANY}, 5) == {1: 200}


def test_shard_with_little_demand_keeps_the_part_for_it() -> None:
    shards = [RateShard(number, 2, RATE) for number in range(2)]
    deliveries(shards, {0: MANY, 1: 1}, 4)
    found = deliveries(shards, {0: MANY, 1: 1}, 10)
    # 10 a second arrive at shard 1, which keeps an eighth more of the rate.
    assert found == {0: 288, 1: 100}


def test_two_shards_share_the_parts_of_a_third() -> None:
    shards = [RateShard(number, 3, "60/s") for number in range(3)]
    deliveries(shards, {0: MANY, 1: MANY}, 4)
    assert deliveries(shards, {0: MANY, 1: MANY}, 5) == {0: 150, 1: 150}


def test_loans_end_without_a_gateway() -> None:
    shards = [RateShard(number, 2, RATE) for number in range(2)]
    deliveries(shards, {0: MANY}, 5)
    woken: list[int] = []
    borrower, lender = shards
    lender.bucket.take(lender.bucket.count)
    lender.bucket.hold(lambda: woken.append(lender.bucket.parts))
    for shard in shards:
        shard.clock.move(TERM_MS + 1)
    assert [shard.bucket.parts for shard in shards] == [RATE_PARTS, RATE_PARTS]
    # Its receivers wake once its parts are back.
    assert woken == [RATE_PARTS]
    borrower.take(MANY)
    assert borrower.bucket.wait_ms == 50


def test_borrowed_parts_wake_receivers_sooner() -> None:
    shards = [RateShard(number, 2, "2/s,burst=1") for number in range(2)]
    deliveries(shards, {}, 4)
    woken: list[int] = []
    borrower = shards[0]
    borrower.take(1)
    borrower.bucket.hold(lambda: woken.append(borrower.bucket.wait_ms))
    assert borrower.bucket.wait_ms == 1_000
    exchange(shards)
    assert woken == [500]


def test_another_number_of_shards_ends_loans_at_the_borrower() -> None:
    shards = [RateShard(number, 2, RATE) for number in range(2)]
    deliveries(shards, {0: MANY}, 5)
    assert shards[0].bucket.parts == 2 * RATE_PARTS
    shards[0].shard_count = 3
    assert shards[0].bucket.parts == RATE_PARTS
    # A gateway that does not know the third shard yet takes no part.
    shards[0].shard_count = 2
    state, _ = shards[0].share(borrowed=[loan(1, 1)], asked_at_ms=0)
    assert not state.is_known
    shards[0].shard_count = 3
    assert shards[0].bucket.parts == RATE_PARTS


def test_removed_rate_remembers_its_loans() -> None:
    shards = [RateShard(number, 2, RATE) for number in range(2)]
    deliveries(shards, {0: MANY}, 5)
    lender = shards[1]
    lender.permits.learn(GROUP, limits_of(set_at_ms=2))
    lender.permits.learn(GROUP, limits_of(RATE, set_at_ms=3))
    assert lender.bucket.parts == 0
    lender.clock.move(TERM_MS + 1)
    lender.permits.forget(GROUP)
    assert not lender.permits._shares


def test_loans_are_planned_by_demand() -> None:
    assert plan_transfers({0: 4_000, 1: 0}) == [RateTransfer(1, 0, 1_000)]
    assert plan_transfers({0: 1_000, 1: 1_000}) == []
    assert plan_transfers({0: 0, 1: 500}) == []
    both = [RateTransfer(2, 0, 200), RateTransfer(2, 1, 500), RateTransfer(3, 1, 200)]
    assert plan_transfers({0: 1_200, 1: 5_000, 2: 300, 3: 800}) == both
