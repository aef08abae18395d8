"""Cancels race restores: each answer agrees with the deliveries."""

import asyncio
import random
from pathlib import Path

import pytest
from duetime.v1 import store_pb2
from duetime_format.restore import PulledEntry, restore

from tests.seeds import seed
from tests.store.conftest import sent
from tests.store.running import Running
from tests.store.test_cancelling import ALREADY_FIRED, CANCELLED, cancel, ref

MESSAGES = 1_000
OK, CANCELLED_PUT = store_pb2.PUT_STATUS_OK, store_pb2.PUT_STATUS_CANCELLED


async def drain(store: Running, dice: random.Random) -> None:
    """Restores all that is due, as a scheduler does, a few at a time."""
    shard = store.node.store
    lane = shard.lanes[1]
    while lane.pending_count:
        head = lane.head(b"", dice.randint(1, 40))
        entries = head.entries.tolist()
        # Entries that are not consecutive come with the next call.
        count = next((index for index, entry in enumerate(entries) if entry != entries[0] + index), len(entries))
        records = [
            restore(PulledEntry(1, entry, due_at_ms, shard.read_record(position, size)))
            for entry, (position, size, due_at_ms) in zip(entries[:count], head.units.tolist(), strict=False)
        ]
        # Let waiting cancels run first.
        await asyncio.sleep(0)
        if records:
            answer = await store.put_entries(*records, lane=1, first_entry=entries[0])
            assert {*answer.statuses} <= {OK, CANCELLED_PUT}


async def end(store: Running, numbers: list[int], dice: random.Random) -> dict[int, int]:
    """Cancels messages by place or by id, in several small concurrent calls. Returns the statuses."""
    found: dict[int, int] = {}

    async def work(part: list[int]) -> None:
        refs = [ref(f"m{number}", number if dice.random() < 0.7 else -1) for number in part]
        for number, result in zip(part, await cancel(store, *refs), strict=True):
            found[number] = result.status

    parts = [numbers[at : at + 20] for at in range(0, len(numbers), 20)]
    while parts:
        await asyncio.gather(*[work(parts.pop()) for _ in range(min(4, len(parts)))])
    return found


@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.proof)])
async def test_of_a_cancel_and_a_restore_one_wins_and_both_know(tmp_path: Path, rounds: int) -> None:
    dice = random.Random(seed())
    answers: dict[int, int] = {}
    async with Running(tmp_path / "store", segment_bytes=16 << 20) as store:
        for number in range(rounds):
            first = number * MESSAGES
            await store.put(*[sent(f"m{first + index}", level=1, body=b"") for index in range(MESSAGES)])
            await store.clock.advance(1_000)
            wanted = [first + index for index in range(MESSAGES)]
            # Cancel some in the order of restores, so that both meet at the same entries.
            if number % 3:
                dice.shuffle(wanted)
            _, part = await asyncio.gather(drain(store, dice), end(store, wanted, dice))
            answers |= part
        delivered: list[str] = []
        while messages := (await store.pull(len(delivered), max_count=1_000)).messages:
            delivered += [message.id for message in messages]
    assert len(answers) == rounds * MESSAGES
    fired = {f"m{number}" for number, status in answers.items() if status == ALREADY_FIRED}
    assert {*answers.values()} == {CANCELLED, ALREADY_FIRED}
    assert sorted(delivered) == sorted(fired)
