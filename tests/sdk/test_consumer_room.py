"""Consumers that share the memory of their process: each message counts until its outcome is known."""

import pytest
from duetime import Consumer, LeasedMessage, Reject, Retry

from tests.sdk.consuming import consuming, until
from tests.sdk.groups import Groups

pytestmark = pytest.mark.usefixtures("quick")

ASKED_BYTES = 600


class CountedRoom:
    """Room for one answer at a time."""

    def __init__(self) -> None:
        self.held = 0
        self.held_max = 0
        self.answers: list[int] = []

    async def take(self) -> int:
        # As if others held the rest.
        await until(lambda: self.held == 0)
        self.held += ASKED_BYTES
        return ASKED_BYTES

    def received(self, asked: int, size: int) -> None:
        self.held += size - asked
        self.held_max = max(self.held_max, self.held)
        if size:
            self.answers.append(size)

    def release(self, size: int) -> None:
        self.held -= size
        assert self.held >= 0


async def test_each_outcome_releases_its_message_and_no_answer_exceeds_the_room(
    groups: Groups, topic: str, group: str
) -> None:
    await groups.fill(topic, 40)
    room, seen = CountedRoom(), list[bytes]()
    consumer = Consumer(groups.address, group=group)
    consumer.room = room

    @consumer.handler(topic, concurrency=8)
    async def handle(message: LeasedMessage) -> None:
        seen.append(message.body)
        kind = int(message.body) % 4
        if kind == 1:
            raise Retry("1h")
        if kind == 2:
            raise Reject("never")
        if kind == 3:
            # Its lease has ended meanwhile: no outcome is sent.
            message.lose()

    async with consuming(consumer):
        await until(lambda: len(seen) == 40)
        await until(lambda: room.held in (0, ASKED_BYTES))
    # The answer that was awaited at the end is none.
    assert room.held == 0
    assert max(room.answers) <= room.held_max <= ASKED_BYTES
    # Four messages fit.
    assert len(room.answers) >= 10


async def test_a_message_that_is_larger_than_the_room_comes_alone(groups: Groups, topic: str, group: str) -> None:
    await groups.make_topic(topic, 2)
    await groups.put(topic, b"x" * 5_000, b"y" * 5_000)
    room = CountedRoom()
    consumer = Consumer(groups.address, group=group)
    consumer.room = room

    @consumer.handler(topic)
    async def handle(message: LeasedMessage) -> None:
        assert room.held == message.record_bytes > 5_000

    async with consuming(consumer):
        await until(lambda: consumer.stats.handled == 2)
    assert len(room.answers) == 2


async def test_messages_that_are_given_back_are_released(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 3)
    room = CountedRoom()
    consumer = Consumer(groups.address, group=group, drain="0s")
    consumer.room = room

    @consumer.handler(topic, concurrency=1)
    async def handle(message: LeasedMessage) -> None:
        await until(lambda: False)

    async with consuming(consumer):
        await until(lambda: consumer.stats.received > 0)
    assert consumer.stats.returned > 0
    assert room.held == 0
