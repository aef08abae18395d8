"""Requests and answers about schedules."""

from typing import Any, Literal, Self

from duetime.v1 import message_pb2, schedules_pb2
from duetime_format.lengths import written
from duetime_format.levels import DELAY_MS_MAX
from duetime_format.limits import (
    CRON_CHARS_MAX,
    PENDING_COUNT_DEFAULT,
    PENDING_COUNT_MAX,
    QUERY_COUNT_MAX,
    SCHEDULE_EVERY_MS_MIN,
    SCHEDULE_NAME_CHARS_MAX,
    SCHEDULE_NEXT_MAX,
    SCHEDULE_TIMES_MAX,
    TOPIC_CHARS_MAX,
    ZONE_CHARS_MAX,
)
from pydantic import Field, model_validator

from duetime_console.api.fields import (
    AnswerModel,
    Int32,
    Length,
    Moment,
    Opaque,
    QueryModel,
    RequestModel,
    iso,
)
from duetime_console.api.limits import HTTP_BATCH_COUNT_MAX
from duetime_console.api.models import (
    BodyAnswer,
    BodyFields,
    ProblemAnswer,
    RetryFields,
    State,
    Topic,
    retry_fields,
    told_bytes,
    typed_properties,
)
from duetime_console.outcomes import Outcome

Missed = Literal["one", "all", "skip"]
InGap = Literal["end", "skip"]
InFold = Literal["first", "both"]

_EVERY = "an interval: 1 s to ten years"
_START = "one of the times of `every`; without it the first one is an interval after the creation"
_CRON = "minute, hour, day of the month, month, day of the week: `30 2 * * mon-fri`"
_ZONE = "of `cron`: a name such as `Europe/Berlin`; empty: UTC"
_MISSED = "occurrences of an outage: one is delivered late, all are, or none more than 60 s late (`skip`)"
_EXPIRES = "time after an occurrence's due time from which groups do not receive it; without it: no limit"
_IN_GAP = "of `cron`: a time that a clock change skips is at the end of the gap, or skipped"
_IN_FOLD = "of `cron`: a time that a clock change repeats occurs in the first pass, or in both"


def word_of(enumeration: Any, number: int, default: str) -> str:
    """`skip` of MISSED_POLICY_SKIP; the default for an unset or unknown number."""
    value = enumeration.DESCRIPTOR.values_by_number.get(number)
    return default if value is None or not value.number else value.name.rpartition("_")[2].lower()


def missed_of(schedule: schedules_pb2.Schedule) -> str:
    """The policy for missed occurrences as a word."""
    return word_of(schedules_pb2.MissedPolicy, schedule.missed, "one")


class ScheduleFields(BodyFields):
    """The times of a schedule (one of `every`, `at` and `cron`), and the message of each occurrence."""

    every: Length | None = Field(None, ge=SCHEDULE_EVERY_MS_MIN, le=DELAY_MS_MAX, description=_EVERY)
    start_at: Moment | None = Field(None, description=_START)
    at: list[Moment] | None = Field(None, min_length=1, max_length=SCHEDULE_TIMES_MAX, description="listed times")
    cron: str | None = Field(None, min_length=1, max_length=CRON_CHARS_MAX, description=_CRON)
    zone: str = Field("", max_length=ZONE_CHARS_MAX, description=_ZONE)
    in_gap: InGap = Field("end", description=_IN_GAP)
    in_fold: InFold = Field("first", description=_IN_FOLD)
    missed: Missed = Field("one", description=_MISSED)
    tags: str = Field("", description="one tag")
    properties: dict[str, str] = Field(default_factory=dict)
    flag: Int32 = 0
    expires: Length = Field(0, description=_EXPIRES)
    retry: RetryFields | None = Field(None, description="replaces the group's policy")
    paused: bool = Field(False, description="a new schedule is stored as paused; an existing one stays as it is")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [name for name in ("every", "at", "cron") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("give one of every, at and cron")
        if self.start_at is not None and self.every is None:
            raise ValueError("start_at needs every")
        rule = self.zone, self.in_gap, self.in_fold
        if self.cron is None and rule != ("", "end", "first"):
            raise ValueError("zone, in_gap and in_fold need cron")
        return self

    def as_proto(self, topic: str, name: str) -> schedules_pb2.Schedule:
        message = message_pb2.Message(
            topic=topic,
            body=self.body_bytes,
            properties=typed_properties(self, self.properties),
            tags=self.tags,
            flag=self.flag,
            expires_ms=self.expires,
            retry=self.retry.as_proto() if self.retry else None,
        )
        schedule = schedules_pb2.Schedule(
            name=name, message=message, missed=f"MISSED_POLICY_{self.missed.upper()}", paused=self.paused
        )
        if self.every is not None:
            # The contract has no start at 0; an interval later is another one of the same times.
            start_at_ms = 0 if self.start_at is None else self.start_at or self.every
            schedule.every.every_ms, schedule.every.start_at_ms = self.every, start_at_ms
        elif self.at is not None:
            schedule.at.at_ms.extend(self.at)
        else:
            rule = schedules_pb2.CronRule(
                expression=self.cron,
                zone=self.zone,
                in_gap=f"GAP_POLICY_{self.in_gap.upper()}",
                in_fold=f"FOLD_POLICY_{self.in_fold.upper()}",
            )
            schedule.cron.CopyFrom(rule)
        return schedule


class PutScheduleQuery(QueryModel):
    create_only: bool = Field(False, description="reject a name with a different schedule")
    dry_run: bool = Field(False, description="store nothing: the answer has the times of a schedule that is put now")
    next: int = Field(1, ge=1, le=SCHEDULE_NEXT_MAX, description="with `dry_run`: planned times in the answer")


class NamedSchedule(ScheduleFields):
    """A schedule of a list."""

    topic: Topic
    name: str = Field(min_length=1, max_length=SCHEDULE_NAME_CHARS_MAX, description="unique in its topic")


class SchedulesBody(RequestModel):
    """Schedules to put."""

    schedules: list[NamedSchedule] = Field(min_length=1, max_length=HTTP_BATCH_COUNT_MAX)
    create_only: bool = Field(False, description="reject names with a different schedule")


class ScheduleQuery(QueryModel):
    next: int = Field(1, ge=1, le=SCHEDULE_NEXT_MAX, description="planned times in the answer")


class SchedulesQuery(QueryModel):
    bodies: bool = Field(False, description="include the bodies")
    max: int = Field(PENDING_COUNT_DEFAULT, ge=1, le=PENDING_COUNT_MAX, description="schedules per page")
    page: Opaque = Field(b"", description="next_page of the previous answer")


class CountSchedulesQuery(QueryModel):
    topic: str = Field("", max_length=TOPIC_CHARS_MAX, description="empty: all topics")


class HistoryQuery(QueryModel):
    max: int = Field(10, ge=1, le=QUERY_COUNT_MAX, description="maximum, the latest first")


class ScheduleAnswer(BodyAnswer):
    """A schedule and its pending occurrence. Fields that do not apply are null."""

    name: str
    topic: str
    every: str | None = Field(description=_EVERY)
    start_at: str | None = Field(description="one of the times of `every`")
    at: list[str | None] | None = Field(description="listed times")
    cron: str | None = Field(description=_CRON)
    zone: str | None
    in_gap: str | None = Field(description=_IN_GAP)
    in_fold: str | None = Field(description=_IN_FOLD)
    missed: str = Field(description=_MISSED)
    tags: str
    properties: dict[str, str]
    flag: int
    expires: str | None = Field(description=_EXPIRES)
    retry: dict[str, Any] | None = Field(description="as RetryFields; null: the group's policy")
    paused: bool
    pause_reason: str | None = Field(description="the shard paused it: its times can't be computed any more")
    next_at: list[str | None] = Field(description="planned times, the pending occurrence's first; empty: paused")
    moved_from: str | None = Field(
        description="planned time of the pending occurrence before newer rules of its time zone moved it"
    )
    version: int = Field(description="number of its changes, from 1")
    created_at: str | None
    id: str = Field(description="the pending occurrence's; of a paused one: never delivered")
    shard: int
    lane: int
    entry: int


class PutScheduleAnswer(ScheduleAnswer):
    """A schedule that was put."""

    created: bool = Field(description="there was none with this name")
    unchanged: bool = Field(description="it was there already, with the same times and message: nothing was stored")


class PutScheduleResult(AnswerModel):
    """The result of one schedule: without its body, or its problem."""

    schedule: PutScheduleAnswer | None = None
    problem: ProblemAnswer | None = None


class PutScheduleResults(AnswerModel):
    """The results, in the order of the schedules."""

    results: list[PutScheduleResult]


class SchedulePage(AnswerModel):
    """Schedules by due time, paused ones last. A page may be short or empty: more follow while next_page is not
    null."""

    schedules: list[ScheduleAnswer]
    next_page: str | None


class ScheduleCountAnswer(AnswerModel):
    """The number of schedules of a topic on a shard, and of the paused ones among them."""

    topic: str
    shard: int
    schedules: int
    paused: int


class ScheduleCountsAnswer(AnswerModel):
    """By topic, then shard. The schedules of shards in `unreachable_shards` are missing."""

    counts: list[ScheduleCountAnswer]
    unreachable_shards: list[int]


class DeletedSchedule(AnswerModel):
    """A schedule that ended with its pending occurrence."""

    name: str
    topic: str


class RunAnswer(AnswerModel):
    """An additional occurrence, in its topic."""

    id: str
    topic: str


class OccurrenceAnswer(AnswerModel):
    """An occurrence. Fields that do not apply are null."""

    id: str
    planned_at: str | None = Field(description="null: an additional one, sent by run")
    due_at: str | None = Field(description="later than planned if it was missed by the policy `all`, or rescheduled")
    state: State
    delivered_at: str | None = Field(description="null: it is not in its topic")
    late_ms: int | None = Field(description="time from planned_at to delivered_at")
    groups: dict[str, Outcome] = Field(description="its end in each group that has one")


class HistoryAnswer(AnswerModel):
    """Occurrences, the latest first; `gaps` lists possibly missing parts, a sentence each."""

    occurrences: list[OccurrenceAnswer]
    more: bool = Field(description="the log has older ones: find them by their key, the name")
    gaps: list[str]


def schedule_fields(found: schedules_pb2.Schedule, *, with_body: bool = True) -> dict[str, Any]:
    """The fields of ScheduleAnswer."""
    message, kind = found.message, found.WhichOneof("times")
    is_cron = kind == "cron"
    return {
        "name": found.name,
        "topic": message.topic,
        **(told_bytes(message.body) if with_body else {}),
        "every": written(found.every.every_ms) if kind == "every" else None,
        "start_at": iso(found.every.start_at_ms),
        "at": [iso(one) for one in found.at.at_ms] if kind == "at" else None,
        "cron": found.cron.expression if is_cron else None,
        "zone": found.cron.zone if is_cron else None,
        "in_gap": word_of(schedules_pb2.GapPolicy, found.cron.in_gap, "end") if is_cron else None,
        "in_fold": word_of(schedules_pb2.FoldPolicy, found.cron.in_fold, "first") if is_cron else None,
        "missed": missed_of(found),
        "tags": message.tags,
        "properties": dict(message.properties),
        "flag": message.flag,
        "expires": written(message.expires_ms) if message.expires_ms else None,
        "retry": retry_fields(message.retry) if message.HasField("retry") else None,
        "paused": found.paused,
        "pause_reason": found.pause_reason or None,
        "next_at": [iso(one) for one in found.next_at_ms],
        "moved_from": iso(found.moved_from_ms),
        "version": found.version,
        "created_at": iso(found.created_at_ms),
        "id": found.message_id,
        "shard": found.shard,
        "lane": found.lane,
        "entry": found.entry,
    }
