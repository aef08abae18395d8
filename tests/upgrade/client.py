"""A client under load: sends, pulls and consumes, and prints each action and message, one JSON list a line, as it
happens.

Runs under the release's Python, so it uses the SDK alone.

    python client.py ADDRESS NAME     until SIGTERM; then until all stored messages have come, and the group is done

Topic and group are NAME; the puller commits its offsets for the group NAME-readers. The lines:

    ["sending", id, delay_ms, at_ms]   before the call        ["stored", id, due_at_ms]   acknowledged; 0: no delay
    ["refused", id, error]             not acknowledged
    ["pulled", id, body, late_ms, at_ms]   by the puller; late_ms by the store's clock, -1 of one without delay
    ["received", id, attempt, at_ms]   leased to the group
    ["acking", id]                     before the call        ["acked", id]               acknowledged
    ["failing", id, reject]            before the call        ["failed", id, dead]        acknowledged
    ["found", id, whether]             looked up by its id
    ["committed", {queue: offset}]     the puller's offsets, acknowledged
    ["error", text]                    a call ended so; it is made again
    ["done"]
"""

import asyncio
import json
import random
import signal
import sys
import time
from typing import Any

import duetime
from duetime import (
    AsyncDeadLetters,
    AsyncFinder,
    AsyncProducer,
    AsyncPuller,
    AsyncReceiver,
    DueTimeError,
    LeasedMessage,
    Message,
    NotFound,
    Receipt,
)

LEVELS_MS = (0, 1_000, 5_000, 10_000, 30_000)
BATCH = 10
PAUSE_S = 0.1
FIND_PAUSE_S = 0.5
# Release 0.1 takes seconds.
TIMEOUT: Any = "60s" if hasattr(duetime, "SomeFailed") else 60.0
LEASE = "10s"


def tell(*event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Client:
    """Three loops over one topic."""

    def __init__(self, address: str, name: str) -> None:
        self.address = address
        self.name = name
        self.dice = random.Random(name)
        self.sending = True
        self.has_sent = asyncio.Event()
        self.last_stored = ""
        self.stored: set[str] = set()
        self.pulled: set[str] = set()
        self.done: set[str] = set()
        self.rejected: set[str] = set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.send())
            await self.has_sent.wait()  # the first message makes the topic
            tasks.create_task(self.pull())
            tasks.create_task(self.consume())
            tasks.create_task(self.find())
        tell("done")

    def stop(self) -> None:
        self.sending = False

    async def send(self) -> None:
        async with AsyncProducer(self.address, timeout=TIMEOUT) as producer:
            count = 0
            while self.sending:
                messages = [self.message(count + n) for n in range(BATCH)]
                count += BATCH
                try:
                    outcomes = await producer.send_many(messages)
                except DueTimeError as error:
                    # Releases before 0.2 return errors among the outcomes.
                    outcomes = getattr(error, "outcomes")  # noqa: B009  they know no SomeFailed
                for message, outcome in zip(messages, outcomes, strict=True):
                    if isinstance(outcome, Receipt):
                        due = outcome.deliver_at
                        tell("stored", message.id, round(due.timestamp() * 1000) if due else 0)
                        self.stored.add(message.id)
                        self.last_stored = message.id
                        self.has_sent.set()
                    else:
                        tell("refused", message.id, repr(outcome))
                await asyncio.sleep(PAUSE_S)

    def message(self, number: int) -> Message:
        message_id = f"{self.name}-{number}"
        level = self.dice.randrange(len(LEVELS_MS))
        tell("sending", message_id, LEVELS_MS[level], now_ms())
        return Message(self.name, message_id.encode(), level=level, id=message_id)

    async def pull(self) -> None:
        readers = f"{self.name}-readers"
        async with AsyncPuller(self.address, self.name, group=readers, timeout=TIMEOUT) as puller:
            while self.sending or not self.stored <= self.pulled:
                await self.read(puller, "200ms")
            # A second copy would come soon after.
            await self.read(puller, "2s")

    async def read(self, puller: AsyncPuller, wait: str) -> None:
        messages = await puller.poll(max=1_000, wait=wait)
        for message in messages:
            late_ms = -1 if message.due_at is None else message.late_ms
            tell("pulled", message.id, message.body.decode(), late_ms, now_ms())
            self.pulled.add(message.id)
        if messages:
            try:
                await puller.commit()
            except DueTimeError as error:
                tell("error", repr(error))
            else:
                tell("committed", puller.positions)

    async def find(self) -> None:
        """Looks up the last sent message in any state."""
        async with AsyncFinder(self.address, timeout=TIMEOUT) as finder:
            while self.sending:
                name = self.last_stored
                try:
                    tell("found", name, (await finder.get(name, topic=self.name)).id == name)
                except NotFound:
                    tell("found", name, False)
                except DueTimeError as error:
                    tell("error", repr(error))
                await asyncio.sleep(FIND_PAUSE_S)

    async def consume(self) -> None:
        receiver = AsyncReceiver(
            self.address,
            self.name,
            group=self.name,
            lease=LEASE,
            backoff="1s",
            max_attempts=100,
            timeout=TIMEOUT,
        )
        async with receiver:
            while self.sending or not self.stored <= self.done:
                try:
                    got = await receiver.receive(max=100, wait="500ms")
                    await self.handle(receiver, got)
                    if not got and self.rejected - self.done:
                        await self.look_for_dead()
                except DueTimeError as error:
                    tell("error", repr(error))

    async def handle(self, receiver: AsyncReceiver, got: list[LeasedMessage]) -> None:
        """Most are acknowledged; each 13th fails once before, each 41st is rejected; each 7th's lease is renewed."""
        finished = []
        for message in got:
            tell("received", message.id, message.attempt, now_ms())
            number = int(message.id.rpartition("-")[2])
            if number % 7 == 0:
                await receiver.extend(message, LEASE)
            if number % 41 == 0 or (number % 13 == 0 and message.attempt == 1):
                await self.fail(receiver, message, reject=number % 41 == 0)
            else:
                finished.append(message)
                tell("acking", message.id)
        if finished:
            ended = {message.id for message in await receiver.ack(finished)}
            for message in finished:
                if message.id not in ended:
                    tell("acked", message.id)
                    self.done.add(message.id)

    async def look_for_dead(self) -> None:
        """Of a rejection whose answer was lost: the repeated call finds the lease ended, and says no more."""
        async with AsyncDeadLetters(self.address, self.name, timeout=TIMEOUT) as letters:
            async for letter in letters.list(ids=sorted(self.rejected - self.done)):
                tell("failed", letter.id, True)
                self.done.add(letter.id)

    async def fail(self, receiver: AsyncReceiver, message: LeasedMessage, *, reject: bool) -> None:
        tell("failing", message.id, reject)
        if reject:
            self.rejected.add(message.id)
        failed = await receiver.nack(message, ValueError("on purpose"), reject=reject)
        tell("failed", message.id, failed.dead)
        if failed.dead:
            self.done.add(message.id)


async def main() -> None:
    client = Client(*sys.argv[1:])
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, client.stop)
    await client.run()


if __name__ == "__main__":
    asyncio.run(main())
