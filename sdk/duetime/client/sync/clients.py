"""Producer and puller for plain code: the asynchronous ones, run by one background thread of the process."""

from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self, TypeVar, Unpack

from duetime.client.backoff import Backoff
from duetime.client.batch import Outcome
from duetime.client.dead_letters import AsyncDeadLetters, DeadLetter, DeadLetterResult, Wanted
from duetime.client.errors import Closed
from duetime.client.finder import AsyncFinder, Found, FoundMessage
from duetime.client.leases import LeasedMessage
from duetime.client.message import Message, Receipt
from duetime.client.producer import AsyncProducer
from duetime.client.puller import LONG_POLL_S, AsyncPuller, Start
from duetime.client.receiver import AsyncReceiver, Failed, Messages
from duetime.client.record import ReceivedMessage
from duetime.client.sync.background import background
from duetime.client.trace import Trace

T = TypeVar("T")

# Messages that a for loop over a puller takes over from the background thread at once.
ITERATION_COUNT = 512


class Producer:
    """Sends messages to one server; safe to share between threads, whose sends travel together.

    Arguments:
        server: HOST:PORT; None: DUETIME_SERVER, else localhost:9800.
        timeout: seconds that a send may take, all attempts and waiting for room included.
        max_pending: messages on their way; beyond it sends wait.
    """

    def __init__(self, server: str | None = None, *, timeout: float = 10.0, max_pending: int = 20_000) -> None:
        self._producer = AsyncProducer(server, timeout=timeout, max_pending=max_pending)

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        delay: str | timedelta | None = None,
        level: int | None = None,
        tags: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str = "",
        queue: int | None = None,
        id: str = "",  # noqa: A002  the message's own word for it
        flag: int = 0,
        retry: str | None = None,
    ) -> Receipt:
        """Sends one message. The arguments are those of `Message`.

        Durable when it returns, as the server's flush mode has it.

        Raises:
            DueTimeError: it was refused, or not acknowledged within the timeout.
            TypeError: the body is not bytes, or keys is a str.
        """
        message = Message(topic, body, delay, level, tags, keys, properties or {}, sharding_key, queue, id, flag, retry)
        return self.send_message(message)

    def send_message(self, message: Message) -> Receipt:
        """As `send`."""
        return background.run(self._producer.send_message(message))

    def send_many(self, messages: Iterable[Message]) -> list[Outcome]:
        """Sends messages; one receipt or error each, in order. A fault in one harms no other."""
        # Iterated over here: a generator of the caller's runs in the caller's thread.
        return background.run(self._producer.send_many(list(messages)))

    def close(self) -> None:
        """Waits for what is being sent, then disconnects. Sends after it raise Closed."""
        background.run(self._producer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Puller:
    """Reads all queues of a topic; a for loop over it follows for ever. For one thread at a time.

    Arguments:
        server: HOST:PORT; None: DUETIME_SERVER, else localhost:9800.
        start: "earliest", "latest" (what is stored after the puller is entered, opened or first used), a datetime (what
            is stored then or later; without a time zone it is local) or {queue: offset}, where queues that are not
            named start with their earliest message.
        group: queues for which this group has committed an offset start there, whatever `start` says; see `commit`.
        tags: `"a || b"`: only messages with one of these tags.
        sql: `"size > 5 AND color = 'red'"`: only messages whose properties are so (docs/consuming.md).
        timeout: seconds that the topic's route may take to arrive at the start; after that a puller only waits.
        long_poll: how long one request waits at the server, to 30 s. Only then positions pass messages at the end of
            a queue that the filter drops.
    """

    def __init__(
        self,
        server: str | None = None,
        topic: str = "",
        *,
        start: Start = "earliest",
        group: str | None = None,
        tags: str | None = None,
        sql: str | None = None,
        timeout: float = 10.0,
        long_poll: str | float | timedelta = LONG_POLL_S,
    ) -> None:
        self._puller = AsyncPuller(
            server, topic, start=start, group=group, tags=tags, sql=sql, timeout=timeout, long_poll=long_poll
        )
        self._taken: deque[ReceivedMessage] = deque()

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each queue: that of the first message not handed out yet. Empty before the first use."""
        positions = self._puller.positions
        for message in reversed(self._taken):
            positions[message.queue] = message.offset
        return positions

    def open(self) -> None:
        """Fixes where each queue starts and begins to fetch. Idempotent; the first use does it too.

        Raises:
            NotFound: no such topic, or `start` names a queue that it has not.
            DueTimeError: the server did not answer within the timeout.
        """
        background.run(self._puller.open())

    def poll(self, max: int = 256, wait: str | float | timedelta = "2s") -> list[ReceivedMessage]:  # noqa: A002
        """Up to `max` messages as soon as there is one; none when `wait` ("2s", seconds, a timedelta) is over."""
        if self._taken:
            return [self._taken.popleft() for _ in range(min(max, len(self._taken)))]
        return background.run(self._puller.poll(max, wait))

    def commit(self, positions: Mapping[int, int] | None = None) -> None:
        """Keeps the positions, or those given, as the group's; durable on return. A lower offset replaces a higher one
        too. Closing commits nothing.

        Raises:
            InvalidArgument: the puller has no group, or an offset does not lie within its queue.
            DueTimeError: the server did not answer within the timeout.
        """
        background.run(self._puller.commit(self.positions if positions is None else positions))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        try:
            while not self._taken:
                self._taken.extend(background.run(self._puller.poll(ITERATION_COUNT, "1h")))
        except Closed:
            raise StopIteration from None
        return self._taken.popleft()

    def close(self) -> None:
        """Stops fetching and disconnects."""
        background.run(self._puller.close())

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Receiver:
    """Leases messages of a topic for a group; safe to share between threads. `Consumer` does more, with less.

    Nothing is renewed and nothing gathered here: a message that is neither acknowledged nor failed within its lease
    comes again.

    Arguments:
        server: HOST:PORT; None: DUETIME_SERVER, else localhost:9800.
        group: made when it does not exist.
        lease: how long messages are the receiver's: "60s", seconds or a timedelta.
        tags, sql, max_attempts, backoff: as for `Consumer.handler`.
        timeout: seconds for which a call that nobody answers is repeated, beyond the wait of a receive.
    """

    def __init__(
        self,
        server: str | None = None,
        topic: str = "",
        *,
        group: str,
        lease: str | float | timedelta = "60s",
        tags: str | None = None,
        sql: str | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        timeout: float = 10.0,
    ) -> None:
        self._receiver = AsyncReceiver(
            *(server, topic),
            group=group,
            lease=lease,
            tags=tags,
            sql=sql,
            max_attempts=max_attempts,
            backoff=backoff,
            timeout=timeout,
        )

    def receive(self, max: int = 32, wait: str | float | timedelta = "15s") -> list[LeasedMessage]:  # noqa: A002
        """Up to `max` messages, to 1,024, as soon as there is one; none when `wait`, to 30 s, is over.

        Of an ordered group they come queue by queue, each queue in order.

        Raises:
            DueTimeError: the server refuses, or did not answer within the timeout.
        """
        return background.run(self._receiver.receive(max, wait))

    def ack(self, messages: Messages) -> list[LeasedMessage]:
        """These are done; durable on return. Those whose leases had ended come back as the answer: they come again."""
        return background.run(self._receiver.ack(messages))

    def extend(self, messages: Messages, lease: str | float | timedelta) -> list[LeasedMessage]:
        """Their leases end after this length from now. The answer is as that of `ack`."""
        return background.run(self._receiver.extend(messages, lease))

    def give_back(self, messages: Messages) -> list[LeasedMessage]:
        """They come again at once, and this delivery does not count as an attempt. The answer is as that of `ack`."""
        return background.run(self._receiver.give_back(messages))

    def nack(
        self,
        message: LeasedMessage,
        error: BaseException | str = "",
        *,
        after: str | float | timedelta | None = None,
        reject: bool = False,
    ) -> Failed:
        """It failed: it comes again by the policy, or after a delay, or becomes a dead letter at once.

        `error`, an exception or a text, is kept for the dead letter.

        Raises:
            DueTimeError: the server refuses, or did not answer within the timeout.
        """
        return background.run(self._receiver.nack(message, error, after=after, reject=reject))

    def close(self) -> None:
        """Disconnects. What is leased comes again when its lease ends."""
        background.run(self._receiver.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Finder:
    """Looks messages up by key and id; safe to share between threads.

    Arguments:
        server: HOST:PORT; None: DUETIME_SERVER, else localhost:9800.
        timeout: seconds that one call may take.
    """

    def __init__(self, server: str | None = None, *, timeout: float = 10.0) -> None:
        self._finder = AsyncFinder(server, timeout=timeout)

    def find(
        self,
        topic: str,
        key: str,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        max: int = 32,  # noqa: A002
    ) -> Found:
        """Messages of a topic by one of their keys, or their id: the newest `max`, to 64, pending ones included.

        `start` and `end`, both included, bound when they were stored; without a time zone they are local.

        Raises:
            NotFound: no such topic.
            DueTimeError: a shard does not answer, so that messages might be missing.
        """
        return background.run(self._finder.find(topic, key, start=start, end=end, max=max))

    def get(self, id: str, *, topic: str = "") -> FoundMessage:  # noqa: A002  the message's own word for it
        """The message with an id, or an offset id. The topic, where it is known, makes it quicker.

        Raises:
            NotFound: no shard has it.
            DueTimeError: a shard does not answer, and no other one has it.
        """
        return background.run(self._finder.get(id, topic=topic))

    def trace(self, id: str, *, topic: str = "") -> Trace:  # noqa: A002  as above
        """What happened to the message with an id, or an offset id, as far as it is stored.

        Raises:
            NotFound: no shard has it.
            DueTimeError: a shard does not answer, and no other one has it.
        """
        return background.run(self._finder.trace(id, topic=topic))

    def close(self) -> None:
        """Disconnects."""
        background.run(self._finder.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class DeadLetters:
    """The dead letters of one group; safe to share between threads.

    All three calls take the same filter; see `duetime.client.dead_letters.Wanted`. Each is an iterator that works as it
    is iterated over; leaving it ends the work.

    Arguments:
        server: HOST:PORT; None: DUETIME_SERVER, else localhost:9800.
        timeout: seconds that one page of a list may take; redrives and discards may take as long as they like.
    """

    def __init__(self, server: str | None = None, group: str = "", *, timeout: float = 10.0) -> None:
        self._letters = AsyncDeadLetters(server, group, timeout=timeout)

    def list(self, **wanted: Unpack[Wanted]) -> Iterator[DeadLetter]:
        """As `AsyncDeadLetters.list`."""
        return _each(self._letters.list(**wanted))

    def redrive(
        self,
        *,
        rate: float = 0.0,
        dry_run: bool = False,
        max: int | None = None,  # noqa: A002
        **wanted: Unpack[Wanted],
    ) -> Iterator[DeadLetterResult]:
        """As `AsyncDeadLetters.redrive`: gives dead letters to their group again, `rate` per second, `max` at most."""
        return _each(self._letters.redrive(rate=rate, dry_run=dry_run, max=max, **wanted))

    def discard(
        self,
        *,
        rate: float = 0.0,
        dry_run: bool = False,
        max: int | None = None,  # noqa: A002
        **wanted: Unpack[Wanted],
    ) -> Iterator[DeadLetterResult]:
        """As `AsyncDeadLetters.discard`: throws dead letters away, for good."""
        return _each(self._letters.discard(rate=rate, dry_run=dry_run, max=max, **wanted))

    def close(self) -> None:
        """Disconnects; what still runs ends."""
        background.run(self._letters.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _each(found: AsyncGenerator[T, None]) -> Iterator[T]:
    """What an asynchronous generator gives, one after the other."""

    async def following() -> T | None:
        return await anext(found, None)

    try:
        while (one := background.run(following())) is not None:
            yield one
    finally:
        background.run(found.aclose())
