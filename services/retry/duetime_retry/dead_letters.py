"""Lists, redrives and discards dead letters. Stateless: the stores know the gone ones.

    for each queue of %DLQ%group:   PullDeadLetters ──▶ filter ──▶ (pace) ──▶ Settle, or
                                                                             DropDeadLetters   ──▶ one result each

A redrive stores the copy in %RETRY%group and ends the dead letter in one step. Even if it is interrupted, repeated or
doubled, there is at most one live copy, and finished letters are not found again: another call continues.
(docs/adr/0016)
"""

import asyncio
import math
from collections import Counter as Counts
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from duetime.v1 import consumer_pb2, gateway_pb2, message_pb2, store_pb2
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, NotFound, Unavailable, Violation, refuse
from duetime_core.rpc.calls import fault_of
from duetime_core.telemetry.logs import sparing
from duetime_format import limits, record
from duetime_format.admission import group_violations
from duetime_format.errors import within
from duetime_format.names import dlq_topic, retry_topic
from prometheus_client import Counter

from duetime_retry.letters import (
    LetterCriteria,
    NotRedrivable,
    ShardQueue,
    StoredDeadLetter,
    dead_letter_of,
    group_of,
    newest_page_of,
    page_of,
    parse_newest_page,
    parse_page,
    redriven,
    split,
)
from duetime_retry.newest import NewestFirst

log = sparing()

# Maximum letters of one pull from a store, and so of one step.
PULL_COUNT = 256
PULL_BYTES = 4 * 1024 * 1024
# Limits of one answer to ListDeadLetters: dead letters inspected, and bytes.
SCAN_COUNT_MAX = 8_192
LIST_BYTES_MAX = limits.PULL_BYTES_MAX
LIST_COUNT_DEFAULT = 32
LIST_COUNT_MAX = 1_024
# A rate is kept by batches: the letters of this much time go together.
PACE_MS = 100.0
IDS_MAX = 4_096
_UNKNOWN = ("TOPIC_NOT_FOUND", "QUEUE_NOT_FOUND")
RATE_MAX = 1_000_000

REDRIVEN = consumer_pb2.DEAD_LETTER_OUTCOME_REDRIVEN
DISCARDED = consumer_pb2.DEAD_LETTER_OUTCOME_DISCARDED
GONE = consumer_pb2.DEAD_LETTER_OUTCOME_GONE
MATCHED = consumer_pb2.DEAD_LETTER_OUTCOME_MATCHED
FAILED = consumer_pb2.DEAD_LETTER_OUTCOME_FAILED
_NAMES: Mapping[int, str] = {REDRIVEN: "redriven", DISCARDED: "discarded", GONE: "gone", FAILED: "failed"}

Call = Callable[[int, str, Any], Awaitable[Any]]
Places = Callable[[str], Awaitable[list[tuple[int, int, int]]]]
IsGroup = Callable[[str], Awaitable[bool]]
Ensure = Callable[[str, int], Awaitable[object]]
Result = consumer_pb2.DeadLetterResult
Request = consumer_pb2.RedriveRequest | consumer_pb2.DiscardRequest


@dataclass(slots=True)
class Step:
    """The result of one pull: the letters that fit the filter, and the start of the next pull."""

    place: ShardQueue
    letters: list[StoredDeadLetter] = field(default_factory=list)
    next_offset: int = 0
    seen_count: int = 0
    is_last: bool = False


class Pace:
    """Spreads work over time, by the clock; rate 0: no limit."""

    def __init__(self, clock: Clock, rate: float) -> None:
        self._clock = clock
        self._rate = rate
        self._next_ms = clock.monotonic_ms()

    @property
    def count_max(self) -> int:
        """The maximum number of letters that may go together."""
        return max(1, int(self._rate * PACE_MS / 1000.0)) if self._rate else PULL_COUNT

    async def turn(self, stopping: "asyncio.Future[None]") -> None:
        """Waits until the next batch may go, or `stopping` is done."""
        await self._clock.wait_for(stopping, self._next_ms - self._clock.monotonic_ms())

    def went(self, count: int) -> None:
        """Counts letters that went at this turn. The time lost by a late turn is not made up for."""
        if self._rate:
            self._next_ms = max(self._next_ms, self._clock.monotonic_ms()) + count * 1000.0 / self._rate


class DeadLetterOperations:
    """See the module."""

    def __init__(
        self, call: Call, places: Places, is_group: IsGroup, ensure: Ensure, clock: Clock, ended: Counter
    ) -> None:
        """`call(shard, method, request)` calls a store; `places(topic)` returns a topic's queues, with the fields of
        Place, none if the topic does not exist; `ensure(topic, shard)` makes a group's topic known there; `ended`
        counts by outcome."""
        self._call = call
        self._places_of = places
        self._is_group = is_group
        self._ensure = ensure
        self._clock = clock
        self._ended = ended
        self._stopped = False
        # Futures of running streams: done when the stream has to end.
        self._streams: set[asyncio.Future[None]] = set()

    def end_streams(self) -> None:
        """Ends redrives and discards at their next step: a stop does not wait for them."""
        self._stopped = True
        for stream in self._streams:
            if not stream.done():
                stream.set_result(None)

    async def page(self, request: consumer_pb2.ListDeadLettersRequest) -> consumer_pb2.ListDeadLettersResponse:
        """Raises: InvalidArgument, NotFound, or an error of a store."""
        check(request.filter)
        refuse(within("max_count", request.max_count, 0, LIST_COUNT_MAX))
        criteria, most = LetterCriteria.of(request.filter), request.max_count or LIST_COUNT_DEFAULT
        if request.newest_first:
            cursors = parse_newest_page(request.page) if request.page else None
            return await self._newest(criteria, most, cursors)
        return await self._oldest(criteria, most, parse_page(request.page) if request.page else (0, 0))

    async def _newest(
        self, criteria: LetterCriteria, most: int, cursors: Mapping[int, int] | None
    ) -> consumer_pb2.ListDeadLettersResponse:
        response = consumer_pb2.ListDeadLettersResponse()
        size = seen = 0

        async def pull(
            place: ShardQueue, offset: int, before: int, bytes_max: int
        ) -> tuple[list[StoredDeadLetter], int]:
            answer = await self._pull_records(place, criteria, offset, before=before, max_bytes=bytes_max)
            if answer is None:
                return [], 0
            return list(split(answer.records, answer.offsets, place)), answer.next_offset

        async def bound(place: ShardQueue, at_ms: int) -> int:
            return await self._first_since(place, criteria.group, at_ms)

        walk = NewestFirst(pull, bound, criteria, PULL_BYTES)
        await walk.start(await self._places(criteria.group), cursors)
        while (letter := walk.newest) is not None and seen < SCAN_COUNT_MAX and len(response.letters) < most:
            if criteria.fits(letter):
                size += letter.record.size
                if response.letters and size > LIST_BYTES_MAX:
                    break
                response.letters.append(dead_letter_of(letter))
            seen += 1
            await walk.take()
        response.next_page = newest_page_of(walk.cursors)
        return response

    async def _oldest(
        self, criteria: LetterCriteria, most: int, start: tuple[int, int]
    ) -> consumer_pb2.ListDeadLettersResponse:
        response = consumer_pb2.ListDeadLettersResponse()
        size = seen = 0
        places = await self._places(criteria.group)
        async with aclosing(self._walk(criteria, places, start)) as steps:
            async for step in steps:
                for letter in step.letters:
                    size += letter.record.size
                    if len(response.letters) == most or (response.letters and size > LIST_BYTES_MAX):
                        response.next_page = page_of(step.place.queue, letter.offset)
                        return response
                    response.letters.append(dead_letter_of(letter))
                seen += step.seen_count
                if step.is_last and step.place is places[-1]:
                    break
                if seen >= SCAN_COUNT_MAX or len(response.letters) == most:
                    next_place = (step.place.queue + 1, 0) if step.is_last else (step.place.queue, step.next_offset)
                    response.next_page = page_of(*next_place)
                    break
        return response

    def redrive(self, request: consumer_pb2.RedriveRequest) -> AsyncIterator[Result]:
        """Raises, when iterated over: as `page`; Unavailable also when the process is stopping."""
        return self._end(request, self._redrive)

    def discard(self, request: consumer_pb2.DiscardRequest) -> AsyncIterator[Result]:
        """As `redrive`."""
        return self._end(request, self._discard)

    async def _end(
        self, request: Request, end: Callable[[ShardQueue, Sequence[StoredDeadLetter]], Awaitable[list[Result]]]
    ) -> AsyncIterator[Result]:
        check(request.filter, request)
        criteria, pace = LetterCriteria.of(request.filter), Pace(self._clock, 0.0 if request.dry_run else request.rate)
        left = request.max_count or math.inf
        # A letter that is redriven and fails again in the meantime is found by the next call.
        ends: dict[int, int] = {}
        stopping = asyncio.get_running_loop().create_future()
        self._streams.add(stopping)
        counts: Counts[int] = Counts()
        try:
            async with aclosing(self._walk(criteria, await self._places(criteria.group), (0, 0), ends)) as steps:
                async for step in steps:
                    letters = step.letters[: int(min(left, len(step.letters)))]
                    for batch in _batches(letters, pace.count_max):
                        await pace.turn(stopping)
                        self._check_going_on()
                        if request.dry_run:
                            results = [_result(letter, MATCHED) for letter in batch]
                        else:
                            results = await end(step.place, batch)
                        pace.went(len(results))
                        counts.update(result.outcome for result in results)
                        for result in results:
                            yield result
                    left -= len(letters)
                    if left <= 0:
                        return
                    self._check_going_on()
        finally:
            self._streams.discard(stopping)
            self._log_counts(criteria.group, counts)

    def _check_going_on(self) -> None:
        if self._stopped:
            raise Unavailable("the retry service is stopping; call again to continue", reason="STOPPING")

    def _log_counts(self, group: str, counts: Mapping[int, int]) -> None:
        named = {_NAMES[outcome]: count for outcome, count in counts.items() if outcome != MATCHED}
        for name, count in named.items():
            self._ended.labels(name).inc(count)
        if named:
            log.info("dead letters ended", group=group, **named)

    async def _redrive(self, place: ShardQueue, letters: Sequence[StoredDeadLetter]) -> list[Result]:
        results = {letter.offset: _result(letter, REDRIVEN) for letter in letters}
        copies: list[tuple[StoredDeadLetter, bytes]] = []
        for letter in letters:
            try:
                copies.append((letter, record.encode(redriven(letter, self._clock.now_ms()))))
            except NotRedrivable as error:
                _fail(results[letter.offset], fault_of(error))
        if not copies:
            return list(results.values())
        for letter, _ in copies:
            results[letter.offset].stored_bytes = len(letter.record.body)
        group = group_of(letters[0])
        await self._ensure(retry_topic(group), place.shard)
        request = store_pb2.SettleRequest(records=b"".join(data for _, data in copies))
        for index, (letter, _) in enumerate(copies):
            request.settles.add(record=index, dead_letter=_place(letter), group=group)
        answer = await self._call(place.shard, "Settle", request)
        for index, status in enumerate(answer.statuses):
            result = results[copies[index][0].offset]
            if status == store_pb2.PUT_STATUS_SETTLED:
                result.outcome, result.stored_bytes = GONE, 0
            elif status != store_pb2.PUT_STATUS_OK:
                _fail(result, answer.faults[index])
        return list(results.values())

    async def _discard(self, place: ShardQueue, letters: Sequence[StoredDeadLetter]) -> list[Result]:
        request = store_pb2.DropDeadLettersRequest(letters=[_place(letter) for letter in letters])
        answer = await self._call(place.shard, "DropDeadLetters", request)
        return [
            _result(letter, DISCARDED if dropped else GONE)
            for letter, dropped in zip(letters, answer.dropped, strict=True)
        ]

    # --- walking --------------------------------------------------------------------------------------------------

    async def _places(self, group: str) -> list[ShardQueue]:
        """Empty: the group never had a dead letter.

        Raises:
            NotFound: there is no such group.
        """
        places = await self._places_of(dlq_topic(group))
        if not places and not await self._is_group(group):
            raise NotFound(f"group {group} does not exist", reason="GROUP_NOT_FOUND")
        return [ShardQueue(*place) for place in places]

    async def _walk(
        self,
        criteria: LetterCriteria,
        places: Sequence[ShardQueue],
        start: tuple[int, int],
        ends: dict[int, int] | None = None,
    ) -> AsyncGenerator[Step, None]:
        """Walks queue after queue from `start` (queue, offset) on. `ends`: each queue's end when the walk reached
        it."""
        for place in places:
            if place.queue < start[0]:
                continue
            offset = start[1] if place.queue == start[0] else 0
            if criteria.from_ms > 0 and not offset:
                offset = await self._first_since(place, criteria.group, criteria.from_ms)
            is_last = False
            while not is_last:
                step = await self._pull(place, criteria, offset, ends)
                offset, is_last = step.next_offset, step.is_last
                yield step

    async def _pull(
        self, place: ShardQueue, criteria: LetterCriteria, offset: int, ends: dict[int, int] | None
    ) -> Step:
        answer = await self._pull_records(place, criteria, offset)
        if answer is None:
            return Step(place, is_last=True)
        end = answer.max_offset if ends is None else ends.setdefault(place.queue, answer.max_offset)
        seen = [one for one in split(answer.records, answer.offsets, place) if one.offset < end]
        is_last = answer.next_offset >= end or any(criteria.is_past(letter) for letter in seen)
        letters = [letter for letter in seen if criteria.fits(letter)]
        return Step(place, letters, answer.next_offset, len(seen), is_last)

    async def _pull_records(
        self, place: ShardQueue, criteria: LetterCriteria, offset: int, *, before: int = 0, max_bytes: int = PULL_BYTES
    ) -> Any:
        """The store's answer; None: the queue has no dead letter yet. `before` above 0: backward."""
        request = store_pb2.PullDeadLettersRequest(
            topic=dlq_topic(criteria.group),
            queue=place.shard_queue,
            offset=offset,
            max_count=PULL_COUNT,
            max_bytes=max_bytes,
            before_offset=before,
        )
        return await self._ask(place, "PullDeadLetters", request)

    async def _first_since(self, place: ShardQueue, group: str, at_ms: int) -> int:
        request = gateway_pb2.SearchOffsetRequest(topic=dlq_topic(group), queue=place.shard_queue, at_ms=at_ms)
        answer = await self._ask(place, "SearchOffset", request)
        return 0 if answer is None else int(answer.offset)

    async def _ask(self, place: ShardQueue, method: str, request: Any) -> Any:
        """The answer; None: the shard does not know the queue, which becomes known with its first dead letter."""
        try:
            return await self._call(place.shard, method, request)
        except DueTimeError as error:
            if error.reason in _UNKNOWN:
                return None
            raise


def check(given: consumer_pb2.DeadLetterFilter, request: Request | None = None) -> None:
    """Raises: InvalidArgument: with all violations."""
    violations = list(group_violations("filter.group", given.group))
    if given.from_ms < 0:
        violations.append(Violation("filter.from_ms", f"{given.from_ms} is below 0"))
    if given.to_ms < 0:
        violations.append(Violation("filter.to_ms", f"{given.to_ms} is below 0"))
    if len(given.ids) > IDS_MAX:
        violations.append(Violation("filter.ids", f"are {len(given.ids)}; the limit is {IDS_MAX}"))
    if request is not None:
        violations += within("rate", request.rate, 0, RATE_MAX, note=" a second")
        if request.max_count < 0:
            violations.append(Violation("max_count", f"{request.max_count} is below 0"))
    refuse(violations)


def _batches(letters: Sequence[StoredDeadLetter], count_max: int) -> Iterator[Sequence[StoredDeadLetter]]:
    for first in range(0, len(letters), count_max):
        yield letters[first : first + count_max]


def _result(letter: StoredDeadLetter, outcome: consumer_pb2.DeadLetterOutcome) -> Result:
    place = letter.place
    return Result(message_id=letter.id, shard=place.shard, queue=place.queue, offset=letter.offset, outcome=outcome)


def _fail(result: Result, fault: message_pb2.Fault) -> None:
    result.outcome, result.stored_bytes = FAILED, 0
    result.fault.CopyFrom(fault)


def _place(letter: StoredDeadLetter) -> store_pb2.DeadLetterPlace:
    return store_pb2.DeadLetterPlace(topic=letter.record.topic, queue=letter.place.shard_queue, offset=letter.offset)
