"""Shares of a limit: all of it is used, and no webhook takes the share of another one."""

import asyncio
import random

from duetime_webhooks.shares import FairShares
from hypothesis import given, settings
from hypothesis import strategies as st


class Requests:
    """Requests that end when the test says."""

    def __init__(self, turns: FairShares) -> None:
        self._turns = turns
        self.running: list[tuple[str, asyncio.Event]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, webhook: str, count: int = 1) -> None:
        self.tasks += [asyncio.create_task(self._request(webhook), name=webhook) for _ in range(count)]

    async def _request(self, webhook: str) -> None:
        async with self._turns.turn(webhook):
            mine = (webhook, asyncio.Event())
            self.running.append(mine)
            try:
                await mine[1].wait()
            finally:
                self.running.remove(mine)

    async def count(self, webhook: str) -> int:
        """Its running requests, after all tasks have come to a wait."""
        for _ in range(8):
            await asyncio.sleep(0)
        return sum(name == webhook for name, _ in self.running)

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_one_webhook_has_all_turns_and_leaves_the_shares_of_others() -> None:
    turns = FairShares(16)
    requests = Requests(turns)
    requests.start("slow", 40)
    assert await requests.count("slow") == 16
    await requests.end()
    turns.divide(4)
    requests.start("slow", 40)
    assert await requests.count("slow") == 16 - 3 * 2
    requests.start("b", 3)
    requests.start("c", 1)
    assert [await requests.count(name) for name in "bc"] == [2, 1]
    # A further webhook takes its share from turns that end.
    turns.divide(5)
    requests.start("d", 1)
    assert await requests.count("d") == 1
    await requests.end()


async def test_freed_turns_go_to_webhooks_in_turn() -> None:
    requests = Requests(FairShares(2))
    requests.start("a", 6)
    assert await requests.count("a") == 2
    requests.start("b", 6)
    assert await requests.count("b") == 0
    order = []
    for _ in range(4):
        before = [name for name, _ in requests.running]
        requests.running[0][1].set()
        await requests.count("a")
        order += [name for name, _ in requests.running[1:]]
        assert len(requests.running) == len(before)
    assert order == ["a", "b", "a", "b"]
    await requests.end()


async def _play(seed: int, turns_max: int, names: int) -> None:
    dice, turns = random.Random(seed), FairShares(turns_max)
    requests = Requests(turns)
    turns.divide(names)
    share = max(1, turns_max // (2 * names))
    for _ in range(60):
        action = dice.random()
        if action < 0.5:
            requests.start(f"w{dice.randrange(names)}", dice.randint(1, 6))
        elif action < 0.8 and requests.running:
            dice.choice(requests.running)[1].set()
        elif requests.tasks:
            dice.choice(requests.tasks).cancel()
        held = [await requests.count(f"w{number}") for number in range(names)]
        wanted = [sum(not one.done() for one in requests.tasks if one.get_name() == f"w{n}") for n in range(names)]
        assert sum(held) <= turns_max
        waits = [number for number in range(names) if wanted[number] > held[number]]
        if names * share <= turns_max:
            assert all(held[number] >= share for number in waits)
        if waits:
            # Free turns are those of shares that their webhooks do not need now.
            assert turns_max - sum(held) <= sum(max(0, share - one) for one in held)
    await requests.end()
    # No turn is lost.
    requests.start("w0", turns_max)
    turns.divide(1)
    assert await requests.count("w0") == turns_max
    await requests.end()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 24), st.integers(1, 8))
def test_no_turn_is_lost_and_no_share_is_taken(seed: int, turns_max: int, names: int) -> None:
    asyncio.run(_play(seed, turns_max, names))


async def test_large_amounts_wait_for_the_common_part_and_small_ones_do_not() -> None:
    shares = FairShares(100, may_exceed=True)
    shares.divide(5)
    assert shares.share == 10
    await shares.take("a", 10)
    # Beyond its share: of 90 that are free, 40 are the others'.
    await shares.take("a", 50)
    waiting = asyncio.create_task(shares.take("a", 1))
    await asyncio.sleep(0)
    assert not waiting.done()
    # An answer was larger than its room: the limit is exceeded, and the others have their shares nevertheless.
    shares.change("a", 60)
    for name in "bcde":
        await shares.take(name, 10)
    assert (shares.used, shares.held("a")) == (160, 120)
    shares.change("a", -59)
    await asyncio.sleep(0)
    assert not waiting.done()
    shares.change("a", -2)
    await waiting
    assert (shares.used, shares.held("a")) == (100, 60)


async def _play_amounts(seed: int, limit: int, names: int) -> None:
    """Takes, corrects and returns amounts; only corrections exceed the limit."""
    dice, shares = random.Random(seed), FairShares(limit, may_exceed=True)
    shares.divide(names)
    asked = max(1, shares.share // 2)
    held: dict[str, list[int]] = {f"w{number}": [] for number in range(names)}
    waiting: dict[str, asyncio.Task[None]] = {}
    excess = 0
    for _ in range(80):
        name = f"w{dice.randrange(names)}"
        if name in waiting and waiting[name].done():
            del waiting[name]
            size = dice.choice([0, asked, asked, 3 * asked])
            excess = max(excess, size - asked)
            shares.change(name, size - asked)
            held[name].append(size)
        elif name not in waiting:
            waiting[name] = asyncio.create_task(shares.take(name, asked))
        elif dice.random() < 0.2:
            waiting.pop(name).cancel()
        if held[name] and dice.random() < 0.5:
            shares.change(name, -held[name].pop())
        for _ in range(4):
            await asyncio.sleep(0)
        taken = {one: sum(held[one]) + (asked if one in waiting and waiting[one].done() else 0) for one in held}
        assert shares.used == sum(taken.values())
        assert {one: shares.held(one) for one in held} == taken
        assert shares.used <= limit + names * excess
        for one, task in waiting.items():
            # A webhook with room in its share never waits.
            assert task.done() or taken[one] + asked > shares.share
    for task in waiting.values():
        task.cancel()
    await asyncio.gather(*waiting.values(), return_exceptions=True)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(8, 400), st.integers(1, 4))
def test_no_amount_is_lost_and_no_webhook_waits_within_its_share(seed: int, limit: int, names: int) -> None:
    asyncio.run(_play_amounts(seed, limit, names))
