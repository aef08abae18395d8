"""Schedules: messages repeated at an interval, at listed times, or by a cron expression."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from secrets import token_hex
from typing import Any, Literal, TypedDict, Unpack, overload

from duetime_format.limits import SCHEDULE_NEXT_MAX
from duetime_format.policy import render

from duetime.client.connection import GatewayConnection, RepeatingClient, backoff_s, pause
from duetime.client.counts import whole
from duetime.client.errors import DueTimeError, InvalidArgument, from_fault
from duetime.client.lengths import Length, milliseconds, seconds
from duetime.client.message import Message, due_ms, moment, to_proto
from duetime.client.sending.outcomes import OnError, check_errors, judged
from duetime.client.tokens import TokenSource
from duetime.client.trust import Tls
from duetime.v1 import schedules_pb2

PAGE_COUNT = 256
# One request of `put_all`: its schedules, and the bytes of their messages.
PUT_COUNT_MAX = 512
PUT_BYTES_MAX = 1024 * 1024
# The reason of a request that no quota will ever take.
_BURST_EXCEEDED = "QUOTA_BURST_EXCEEDED"

MissedPolicy = Literal["skip", "one", "all"]
GapPolicy = Literal["end", "skip"]
FoldPolicy = Literal["first", "both"]

_MISSED: dict[str, schedules_pb2.MissedPolicy] = {
    "skip": schedules_pb2.MISSED_POLICY_SKIP,
    "one": schedules_pb2.MISSED_POLICY_ONE,
    "all": schedules_pb2.MISSED_POLICY_ALL,
}
_GAPS: dict[str, schedules_pb2.GapPolicy] = {
    "end": schedules_pb2.GAP_POLICY_END,
    "skip": schedules_pb2.GAP_POLICY_SKIP,
}
# The options of each kind of times, with their defaults.
_OPTIONS: dict[str, dict[str, Any]] = {
    "every": {"start": None},
    "at": {},
    "cron": {"zone": "", "in_gap": "end", "in_fold": "first"},
}
_FOLDS: dict[str, schedules_pb2.FoldPolicy] = {
    "first": schedules_pb2.FOLD_POLICY_FIRST,
    "both": schedules_pb2.FOLD_POLICY_BOTH,
}


class ScheduleTimes(TypedDict, total=False):
    """The times of a schedule: one of `every`, `at` and `cron`."""

    every: Length
    """An interval of 1 s or more."""
    start: datetime
    """With `every`: one of the times. Default: the first one is an interval from now."""
    at: Iterable[datetime]
    """1 to 256 times, with time zones."""
    cron: str
    """Minute, hour, day of the month, month, day of the week: `"30 2 * * mon-fri"`."""
    zone: str
    """With `cron`: a name such as `"Europe/Berlin"`. Default: UTC."""
    missed: MissedPolicy
    """Occurrences whose time passed while the server was unavailable: `"one"` (default) is delivered late, `"all"`, or
    `"skip"`: none that is more than a minute late."""
    in_gap: GapPolicy
    """With `cron`: a time that a clock change skips is at the `"end"` of the gap (default), or `"skip"`."""
    in_fold: FoldPolicy
    """With `cron`: a time that a clock change repeats is in the `"first"` pass (default), or in `"both"`."""


class ScheduleDefinition:
    """A schedule to put.

    Arguments:
        message: as of `Schedules.put`.
        paused: whether a new schedule is stored as paused. An existing one stays as it is.
    """

    __slots__ = ("message", "name", "paused", "times")

    def __init__(self, name: str, message: Message, *, paused: bool = False, **times: Unpack[ScheduleTimes]) -> None:
        self.name = name
        self.message = message
        self.paused = paused
        self.times = times

    def __repr__(self) -> str:
        return f"ScheduleDefinition({self.name!r}, topic={self.message.topic!r})"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule and its next occurrence. Times are by the server's clock."""

    topic: str
    name: str
    body: bytes
    tags: str
    properties: Mapping[str, str]
    retry: str | None
    """The message's retry policy; None: the group's."""
    expires: timedelta | None
    """The time after its due time from which groups do not receive it; None: no limit."""
    every: timedelta | None
    """None: it is not an interval."""
    start: datetime | None
    """One of the times of `every`."""
    at: list[datetime]
    """The listed times; empty: it has none."""
    cron: str
    """Empty: it is not a cron expression."""
    zone: str
    missed: MissedPolicy
    in_gap: GapPolicy
    in_fold: FoldPolicy
    version: int
    """The number of its changes, from 1."""
    created_at: datetime
    paused: bool
    pause_reason: str
    """Set: the server paused it, because its times can't be computed any more."""
    next_at: list[datetime]
    """The planned times of the next occurrences, as many as asked for; empty: paused."""
    message_id: str
    """The id of the pending occurrence."""
    moved_from: datetime | None = None
    """The planned time of the pending occurrence before newer rules of its time zone moved it; None: they did not."""
    flag: int = 0

    def __repr__(self) -> str:
        rule = f"every={self.every}" if self.every else f"cron={self.cron!r}" if self.cron else f"at={len(self.at)}"
        state = "paused" if self.paused else f"next_at={self.next_at[0] if self.next_at else None}"
        return f"Schedule({self.name!r}, topic={self.topic!r}, {rule}, {state})"


@dataclass(frozen=True, slots=True)
class ScheduleCount:
    """The number of schedules of a topic on a shard."""

    topic: str
    shard: int
    count: int
    paused: int
    """The paused ones among them."""


@dataclass(frozen=True, slots=True)
class ScheduleCounts:
    """The schedules of topics, exact as of one point in time of each shard."""

    counts: list[ScheduleCount]
    """By topic, then shard, without those that have no schedules."""
    unreachable_shards: list[int]
    """Shards that do not answer; their schedules are missing."""


def schedule_of(found: schedules_pb2.Schedule) -> Schedule:
    """The schedule of an answer."""
    message, kind = found.message, found.WhichOneof("times")
    return Schedule(
        topic=message.topic,
        name=found.name,
        body=message.body,
        tags=message.tags,
        properties=dict(message.properties),
        retry=render(message.retry) if message.HasField("retry") else None,
        expires=timedelta(milliseconds=message.expires_ms) if message.expires_ms else None,
        every=timedelta(milliseconds=found.every.every_ms) if kind == "every" else None,
        start=moment(found.every.start_at_ms) if kind == "every" else None,
        at=[moment(one) for one in found.at.at_ms],
        cron=found.cron.expression,
        zone=found.cron.zone,
        missed=_word(_MISSED, found.missed, "one"),  # type: ignore[arg-type]
        in_gap=_word(_GAPS, found.cron.in_gap, "end"),  # type: ignore[arg-type]
        in_fold=_word(_FOLDS, found.cron.in_fold, "first"),  # type: ignore[arg-type]
        version=found.version,
        created_at=moment(found.created_at_ms),
        paused=found.paused,
        pause_reason=found.pause_reason,
        next_at=[moment(one) for one in found.next_at_ms],
        message_id=found.message_id,
        moved_from=moment(found.moved_from_ms) if found.moved_from_ms else None,
        flag=message.flag,
    )


def _word(words: Mapping[str, int], number: int, default: str) -> str:
    return next((word for word, own in words.items() if own == number), default)


class AsyncSchedules(RepeatingClient):
    """Schedules, each of one message. For one event loop; `Schedules` is for plain code.

    Calls are repeated until they are answered or the timeout has passed.

    Arguments:
        server: HOST:PORT; None: DUETIME_SERVER, else localhost:9800.
        token: the user's token, or a function that returns it; see `Token`. None: DUETIME_TOKEN, or the file of
            DUETIME_TOKEN_FILE.
        tls: the trusted certificates; see `Tls`. None: those of DUETIME_TLS_CA_FILE, or plain text without it.
        timeout: the longest time of one call.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        timeout: Length = "10s",
        token: TokenSource | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._connection = GatewayConnection(server, token, tls)
        self._timeout = seconds(timeout, "timeout")

    async def put(
        self,
        name: str,
        message: Message,
        *,
        create_only: bool = False,
        paused: bool = False,
        **times: Unpack[ScheduleTimes],
    ) -> Schedule:
        """Creates a schedule, or changes the one with this name in the message's topic. Durable on return.

        The same schedule again changes nothing, so a program may put its schedules at each start. A paused one stays
        paused. A change of the message alone keeps the planned time. The name is the key of each occurrence.

        Arguments:
            message: with topic, body, tags, properties, flag, retry and expires; its body has 256 KiB at most.
            create_only: rejects a name with a different schedule.
            paused: stores a new schedule as paused. An existing one stays as it is.

        Raises:
            InvalidArgument: the times or the message break a rule.
            AlreadyExists: with `create_only`, or a pending message that was sent with `replace` has the key.
        """
        request = _request(ScheduleDefinition(name, message, paused=paused, **times), create_only)
        return schedule_of((await self._call("PutSchedule", request)).schedule)

    @overload
    async def put_all(
        self,
        definitions: Iterable[ScheduleDefinition],
        *,
        create_only: bool = False,
        errors: Literal["raise"] = "raise",
    ) -> Sequence[Schedule]: ...

    @overload
    async def put_all(
        self, definitions: Iterable[ScheduleDefinition], *, create_only: bool = False, errors: Literal["return"]
    ) -> Sequence[Schedule | DueTimeError]: ...

    async def put_all(
        self, definitions: Iterable[ScheduleDefinition], *, create_only: bool = False, errors: OnError = "raise"
    ) -> Sequence[Any]:
        """As `put` for each, much faster. Returns the schedules in order. A rejected one does not affect the others.

            put_all(ScheduleDefinition(f"shop-{shop}", Message("reports", shop), cron="30 2 * * *") for shop in shops)

        Requests of up to 512 schedules are sent one after the other, each with the whole timeout; the schedules of a
        request are stored together. All of them may be put again: the same schedules change nothing.

        `errors`: with "return" the error of a schedule takes its place, and is not raised.

        Raises:
            SomeFailed: has the schedules and errors of all.
        """
        check_errors(errors)
        outcomes: list[Schedule | DueTimeError] = []
        for batch in _batches(definitions, create_only):
            outcomes += await self._put_batch(batch)
        return judged(outcomes, errors)

    async def _put_batch(
        self, batch: Sequence[schedules_pb2.PutScheduleRequest | DueTimeError]
    ) -> Sequence[Schedule | DueTimeError]:
        """Puts schedules with names of their own; those that a shard could not take are repeated until the timeout. A
        request above a quota's limit is halved."""
        outcomes: dict[int, Schedule | DueTimeError] = {
            index: one for index, one in enumerate(batch) if isinstance(one, DueTimeError)
        }
        left = [(index, one) for index, one in enumerate(batch) if not isinstance(one, DueTimeError)]
        loop = asyncio.get_running_loop()
        deadline, attempt = loop.time() + self._timeout, 0
        while left:
            attempt += 1
            request = schedules_pb2.PutSchedulesRequest(puts=[one for _, one in left])
            try:
                answer = await self._call("PutSchedules", request)
                found = [_outcome(one, result) for (_, one), result in zip(left, answer.results, strict=True)]
            except DueTimeError as error:
                outcomes.update((index, error) for index, _ in left)
                if error.reason == _BURST_EXCEEDED and len(left) > 1:
                    for part in (left[: len(left) // 2], left[len(left) // 2 :]):
                        results = await self._put_batch([one for _, one in part])
                        outcomes.update((index, one) for (index, _), one in zip(part, results, strict=True))
                break
            outcomes.update((index, one) for (index, _), one in zip(left, found, strict=True))
            again = [
                (one, outcome)
                for one, outcome in zip(left, found, strict=True)
                if isinstance(outcome, DueTimeError) and outcome.retriable
            ]
            pause_s = backoff_s(attempt, *(error for _, error in again))
            if loop.time() + pause_s >= deadline:
                break
            left = [one for one, _ in again]
            if left:
                await pause(pause_s)
        return [outcomes[index] for index in range(len(batch))]

    async def preview(
        self, name: str, message: Message, *, count: int = 1, **times: Unpack[ScheduleTimes]
    ) -> Sequence[datetime]:
        """Returns the first `count` (1 to 100) planned times of a schedule that is created now, fewer if there are no
        more. Stores nothing, and creates no topic.

        Raises:
            InvalidArgument: the times or the message break a rule.
        """
        request = _request(ScheduleDefinition(name, message, **times), create_only=False)
        request.dry_run, request.next_count = True, whole("count", count, SCHEDULE_NEXT_MAX)
        return [moment(one) for one in (await self._call("PutSchedule", request)).schedule.next_at_ms]

    async def get(self, topic: str, name: str, *, next_count: int = 1) -> Schedule:
        """Shows a schedule, with the planned times of up to 100 next occurrences. Raises: NotFound."""
        count = whole("next_count", next_count, SCHEDULE_NEXT_MAX)
        request = schedules_pb2.GetScheduleRequest(topic=topic, name=name, next_count=count)
        return schedule_of(await self._call("GetSchedule", request))

    async def list(self, topic: str) -> AsyncGenerator[Schedule, None]:
        """Lists the schedules of a topic in order of their next occurrences, paused ones last. Iteration fetches page
        by page.

        Raises:
            NotFound: the topic does not exist.
            DueTimeError: a shard does not answer.
        """
        request = schedules_pb2.ListSchedulesRequest(topic=topic, max_count=PAGE_COUNT)
        while True:
            answer = await self._call("ListSchedules", request)
            for one in answer.schedules:
                yield schedule_of(one)
            if not answer.next_page_token:
                return
            request.page_token = answer.next_page_token

    async def count(self, topic: str | None = None) -> ScheduleCounts:
        """Counts the schedules of a topic, or of all topics, by shard. Each shard scans its messages for any time: give
        the client a longer timeout if there are millions.

        Raises: NotFound: the topic does not exist.
        """
        request = schedules_pb2.CountSchedulesRequest(topic=topic or "")
        answer = await self._call("CountSchedules", request)
        counts = [ScheduleCount(one.topic, one.shard, one.schedule_count, one.paused_count) for one in answer.counts]
        return ScheduleCounts(counts, list(answer.unreachable_shards))

    async def pause(self, topic: str, name: str) -> Schedule:
        """Delivers no occurrence until `resume`. Idempotent. Raises: NotFound."""
        return schedule_of(await self._call("PauseSchedule", schedules_pb2.ScheduleRef(topic=topic, name=name)))

    async def resume(self, topic: str, name: str) -> Schedule:
        """Continues with the first time after now. Idempotent.

        Raises:
            NotFound: there is no such schedule.
            Conflict: it has no further time.
        """
        return schedule_of(await self._call("ResumeSchedule", schedules_pb2.ScheduleRef(topic=topic, name=name)))

    async def delete(self, topic: str, name: str) -> None:
        """Ends a schedule and its pending occurrence. Raises: NotFound: also if an earlier call has deleted it."""
        await self._call("DeleteSchedule", schedules_pb2.ScheduleRef(topic=topic, name=name))

    async def run(self, topic: str, name: str) -> str:
        """Sends an additional occurrence now; the planned ones stay. Returns its message's id. Raises: NotFound."""
        request = schedules_pb2.RunScheduleRequest(topic=topic, name=name, request_id=token_hex(16))
        answer = await self._call("RunSchedule", request)
        return str(answer.message_id)

    async def close(self) -> None:
        """Disconnects; calls in progress raise Closed."""
        await self._connection.close()

    def __repr__(self) -> str:
        return self._connection.described("AsyncSchedules")


def _request(definition: ScheduleDefinition, create_only: bool) -> schedules_pb2.PutScheduleRequest:
    """Raises: as `times_fields`."""
    times, message = times_fields(definition.times), to_proto(definition.message)
    name, paused = _text("name", definition.name), definition.paused
    schedule = schedules_pb2.Schedule(name=name, message=message, paused=paused, **times)
    return schedules_pb2.PutScheduleRequest(schedule=schedule, create_only=create_only)


def _batches(
    definitions: Iterable[ScheduleDefinition], create_only: bool
) -> Iterator[Sequence[schedules_pb2.PutScheduleRequest | DueTimeError]]:
    """Requests, or the errors of definitions without one, each batch with distinct names."""
    batch: list[schedules_pb2.PutScheduleRequest | DueTimeError] = []
    names, size = set[tuple[str, str]](), 0
    for one in definitions:
        name = one.message.topic, one.name
        try:
            request: schedules_pb2.PutScheduleRequest | DueTimeError = _request(one, create_only)
        except DueTimeError as error:
            request = error
        added = 0 if isinstance(request, DueTimeError) else request.ByteSize()
        if batch and (len(batch) == PUT_COUNT_MAX or size + added > PUT_BYTES_MAX or name in names):
            yield batch
            batch, names, size = [], set(), 0
        batch.append(request)
        names.add(name)
        size += added
    if batch:
        yield batch


def _outcome(
    asked: schedules_pb2.PutScheduleRequest, result: schedules_pb2.PutScheduleResult
) -> Schedule | DueTimeError:
    if result.HasField("fault"):
        return from_fault(result.fault, "")
    found = result.put.schedule
    found.message.CopyFrom(asked.schedule.message)
    return schedule_of(found)


def times_fields(times: ScheduleTimes) -> dict[str, Any]:
    """The fields of a schedule in the contract. Raises: InvalidArgument; TypeError: it has no such field."""
    if unknown := times.keys() - ScheduleTimes.__annotations__.keys():
        raise TypeError(f"a schedule has no argument {min(unknown)!r}")
    given = [name for name in _OPTIONS if times.get(name) is not None]
    if len(given) != 1:
        raise InvalidArgument.of("every, at or cron", f"{len(given)} of them are given; give one")
    for kind, options in _OPTIONS.items():
        for name, default in options.items():
            value = times.get(name, default)
            if value != default and kind not in given:
                raise InvalidArgument.of(name, f"{value!r} is for `{kind}`, and the schedule has `{given[0]}`")
    fields: dict[str, Any] = {"missed": _choice(_MISSED, "missed", times.get("missed", "one"))}
    if (every := times.get("every")) is not None:
        every_ms, start = milliseconds(every, "every"), times.get("start")
        # The contract has no start at 0; an interval later is another one of the same times.
        start_at_ms = 0 if start is None else due_ms(start, "start") or every_ms
        fields["every"] = schedules_pb2.IntervalTimes(every_ms=every_ms, start_at_ms=start_at_ms)
    elif (at := times.get("at")) is not None:
        fields["at"] = schedules_pb2.ListedTimes(at_ms=[due_ms(one, "at") for one in at])
    else:
        fields["cron"] = schedules_pb2.CronRule(
            expression=_text("cron", times.get("cron", "")),
            zone=_text("zone", times.get("zone", "")),
            in_gap=_choice(_GAPS, "in_gap", times.get("in_gap", "end")),
            in_fold=_choice(_FOLDS, "in_fold", times.get("in_fold", "first")),
        )
    return fields


def _text(field: str, value: Any) -> str:
    """The value. Raises: InvalidArgument: it is no text that UTF-8 can encode."""
    try:
        str.encode(value)
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidArgument.of(field, f"{value!r} is no text: {error}") from error
    return str(value)


def _choice(words: Mapping[str, Any], field: str, word: str) -> Any:
    if word not in words:
        raise InvalidArgument.of(field, f"{word!r} is none of {', '.join(words)}")
    return words[word]
