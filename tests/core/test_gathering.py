"""Questions that are answered many at a time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest
from duetime_core.clock import turn
from duetime_core.errors import DueTimeError, NotFound, Overloaded, Unavailable
from duetime_core.rpc.gathering import QuestionGatherer
from duetime_core.testing import FakeClock


class Answers:
    """Squares of numbers, once `gate` is open."""

    def __init__(
        self, *, round_max: int = 100, waiting_max: int = 1_000, sharer: Callable[[int], str] | None = None
    ) -> None:
        self.clock = FakeClock()
        self.rounds: list[list[int]] = []
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()
        self.error: Exception | None = None
        self.gathering: QuestionGatherer[int, int] = QuestionGatherer(
            "squares", self.answer, self.clock, round_max=round_max, waiting_max=waiting_max, sharer=sharer
        )

    async def answer(self, keys: list[int]) -> Mapping[int, int | DueTimeError]:
        self.rounds.append(keys)
        self.begun.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return {key: key * key if key >= 0 else NotFound(f"{key} has none") for key in keys}


@asynccontextmanager
async def started(answers: Answers) -> AsyncIterator[QuestionGatherer[int, int]]:
    async with asyncio.TaskGroup() as tasks:
        answers.gathering.start(tasks)
        yield answers.gathering
        answers.gathering.stop()


async def test_questions_during_a_round_join_the_next() -> None:
    answers = Answers()
    async with started(answers) as gathering:
        first = asyncio.create_task(gathering.ask([1]))
        await answers.begun.wait()
        others = [asyncio.create_task(gathering.ask([n, 1])) for n in range(2, 50)]
        await asyncio.sleep(0)
        answers.gate.set()
        assert await first == {1: 1}
        assert [await one for one in others] == [{n: n * n, 1: 1} for n in range(2, 50)]
        assert answers.rounds == [[1], list(range(2, 50))]


async def test_rounds_are_bounded_and_an_error_is_its_questions_alone() -> None:
    answers = Answers(round_max=10)
    answers.gate.set()
    async with started(answers) as gathering:
        found = await gathering.ask(range(-1, 24))
        assert isinstance(found.pop(-1), NotFound)
        assert found == {n: n * n for n in range(24)}
        assert [len(one) for one in answers.rounds] == [10, 10, 5]


async def test_timed_out_caller_gets_results_so_far() -> None:
    answers = Answers(round_max=2)
    async with started(answers) as gathering:
        asked = asyncio.create_task(gathering.ask([1, 2], wait_ms=100))
        await answers.begun.wait()
        answers.clock.move(100)
        assert await asked == {}
        again = asyncio.create_task(gathering.ask([2]))
        answers.gate.set()
        assert await again == {2: 4}
        assert answers.rounds == [[1, 2]]


async def test_abandoned_questions_are_not_asked() -> None:
    answers = Answers(round_max=1)
    async with started(answers) as gathering:
        first = asyncio.create_task(gathering.ask([1]))
        await answers.begun.wait()
        gone = asyncio.create_task(gathering.ask([2, 3]))
        kept = asyncio.create_task(gathering.ask([3]))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        answers.gate.set()
        assert (await first, await kept) == ({1: 1}, {3: 9})
        assert answers.rounds == [[1], [3]]


async def test_too_many_questions_are_refused() -> None:
    answers = Answers(waiting_max=3)
    answers.gate.set()
    async with started(answers) as gathering:
        found = await gathering.ask(range(5))
        assert [n for n, one in found.items() if isinstance(one, Overloaded)] == [3, 4]
        assert "3 squares are waiting; the limit is 3" in str(found[4])


async def test_one_caller_leaves_places_to_others() -> None:
    answers = Answers(waiting_max=40, sharer=lambda number: "greedy" if number < 100 else "other")
    async with started(answers) as gathering:
        first = asyncio.ensure_future(gathering.ask([0]))
        await answers.begun.wait()
        greedy = asyncio.ensure_future(gathering.ask(range(1, 41)))
        other = asyncio.ensure_future(gathering.ask(range(100, 104)))
        await turn()
        answers.gate.set()
        refused = [number for number, one in (await greedy).items() if isinstance(one, Overloaded)]
        assert refused == list(range(21, 41))
        assert await other == {number: number * number for number in range(100, 104)}
        assert await gathering.ask(range(1, 21)) == {number: number * number for number in range(1, 21)}
        await first


@pytest.mark.parametrize("error", [Unavailable("away"), ValueError("a defect")])
async def test_an_error_of_a_round_reaches_all_and_ends_nothing(error: Exception) -> None:
    answers = Answers()
    answers.gate.set()
    async with started(answers) as gathering:
        answers.error = error
        found = await gathering.ask([1, 2])
        assert all(isinstance(one, DueTimeError) for one in found.values())
        answers.error = None
        assert await gathering.ask([1]) == {1: 1}


async def test_a_stop_answers_waiting_callers() -> None:
    answers = Answers()

    async def node() -> None:
        async with asyncio.TaskGroup() as tasks:
            answers.gathering.start(tasks)
            await asyncio.Event().wait()

    running = asyncio.create_task(node())
    await asyncio.sleep(0)
    asked = asyncio.create_task(answers.gathering.ask([1]))
    await answers.begun.wait()
    answers.gathering.stop()
    running.cancel()
    assert isinstance((await asked)[1], Unavailable)
    assert isinstance((await answers.gathering.ask([2]))[2], Unavailable)
    await asyncio.gather(running, return_exceptions=True)
