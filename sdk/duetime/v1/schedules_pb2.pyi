from duetime.v1 import message_pb2 as _message_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MissedPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MISSED_POLICY_UNSPECIFIED: _ClassVar[MissedPolicy]
    MISSED_POLICY_SKIP: _ClassVar[MissedPolicy]
    MISSED_POLICY_ONE: _ClassVar[MissedPolicy]
    MISSED_POLICY_ALL: _ClassVar[MissedPolicy]

class GapPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GAP_POLICY_UNSPECIFIED: _ClassVar[GapPolicy]
    GAP_POLICY_END: _ClassVar[GapPolicy]
    GAP_POLICY_SKIP: _ClassVar[GapPolicy]

class FoldPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FOLD_POLICY_UNSPECIFIED: _ClassVar[FoldPolicy]
    FOLD_POLICY_FIRST: _ClassVar[FoldPolicy]
    FOLD_POLICY_BOTH: _ClassVar[FoldPolicy]
MISSED_POLICY_UNSPECIFIED: MissedPolicy
MISSED_POLICY_SKIP: MissedPolicy
MISSED_POLICY_ONE: MissedPolicy
MISSED_POLICY_ALL: MissedPolicy
GAP_POLICY_UNSPECIFIED: GapPolicy
GAP_POLICY_END: GapPolicy
GAP_POLICY_SKIP: GapPolicy
FOLD_POLICY_UNSPECIFIED: FoldPolicy
FOLD_POLICY_FIRST: FoldPolicy
FOLD_POLICY_BOTH: FoldPolicy

class IntervalTimes(_message.Message):
    __slots__ = ("every_ms", "start_at_ms")
    EVERY_MS_FIELD_NUMBER: _ClassVar[int]
    START_AT_MS_FIELD_NUMBER: _ClassVar[int]
    every_ms: int
    start_at_ms: int
    def __init__(self, every_ms: _Optional[int] = ..., start_at_ms: _Optional[int] = ...) -> None: ...

class ListedTimes(_message.Message):
    __slots__ = ("at_ms",)
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    at_ms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, at_ms: _Optional[_Iterable[int]] = ...) -> None: ...

class CronRule(_message.Message):
    __slots__ = ("expression", "zone", "in_gap", "in_fold")
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    IN_GAP_FIELD_NUMBER: _ClassVar[int]
    IN_FOLD_FIELD_NUMBER: _ClassVar[int]
    expression: str
    zone: str
    in_gap: GapPolicy
    in_fold: FoldPolicy
    def __init__(self, expression: _Optional[str] = ..., zone: _Optional[str] = ..., in_gap: _Optional[_Union[GapPolicy, str]] = ..., in_fold: _Optional[_Union[FoldPolicy, str]] = ...) -> None: ...

class Schedule(_message.Message):
    __slots__ = ("name", "message", "every", "at", "cron", "missed", "version", "created_at_ms", "paused", "pause_reason", "next_at_ms", "due_at_ms", "message_id", "shard", "lane", "entry", "moved_from_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    EVERY_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    CRON_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    PAUSE_REASON_FIELD_NUMBER: _ClassVar[int]
    NEXT_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    MOVED_FROM_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    message: _message_pb2.Message
    every: IntervalTimes
    at: ListedTimes
    cron: CronRule
    missed: MissedPolicy
    version: int
    created_at_ms: int
    paused: bool
    pause_reason: str
    next_at_ms: _containers.RepeatedScalarFieldContainer[int]
    due_at_ms: int
    message_id: str
    shard: int
    lane: int
    entry: int
    moved_from_ms: int
    def __init__(self, name: _Optional[str] = ..., message: _Optional[_Union[_message_pb2.Message, _Mapping]] = ..., every: _Optional[_Union[IntervalTimes, _Mapping]] = ..., at: _Optional[_Union[ListedTimes, _Mapping]] = ..., cron: _Optional[_Union[CronRule, _Mapping]] = ..., missed: _Optional[_Union[MissedPolicy, str]] = ..., version: _Optional[int] = ..., created_at_ms: _Optional[int] = ..., paused: bool = ..., pause_reason: _Optional[str] = ..., next_at_ms: _Optional[_Iterable[int]] = ..., due_at_ms: _Optional[int] = ..., message_id: _Optional[str] = ..., shard: _Optional[int] = ..., lane: _Optional[int] = ..., entry: _Optional[int] = ..., moved_from_ms: _Optional[int] = ...) -> None: ...

class PutScheduleRequest(_message.Message):
    __slots__ = ("schedule", "create_only", "dry_run", "next_count")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    CREATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    NEXT_COUNT_FIELD_NUMBER: _ClassVar[int]
    schedule: Schedule
    create_only: bool
    dry_run: bool
    next_count: int
    def __init__(self, schedule: _Optional[_Union[Schedule, _Mapping]] = ..., create_only: bool = ..., dry_run: bool = ..., next_count: _Optional[int] = ...) -> None: ...

class PutScheduleResponse(_message.Message):
    __slots__ = ("schedule", "created", "unchanged", "stored_bytes")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    schedule: Schedule
    created: bool
    unchanged: bool
    stored_bytes: int
    def __init__(self, schedule: _Optional[_Union[Schedule, _Mapping]] = ..., created: bool = ..., unchanged: bool = ..., stored_bytes: _Optional[int] = ...) -> None: ...

class PutSchedulesRequest(_message.Message):
    __slots__ = ("puts",)
    PUTS_FIELD_NUMBER: _ClassVar[int]
    puts: _containers.RepeatedCompositeFieldContainer[PutScheduleRequest]
    def __init__(self, puts: _Optional[_Iterable[_Union[PutScheduleRequest, _Mapping]]] = ...) -> None: ...

class PutScheduleResult(_message.Message):
    __slots__ = ("put", "fault")
    PUT_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    put: PutScheduleResponse
    fault: _message_pb2.Fault
    def __init__(self, put: _Optional[_Union[PutScheduleResponse, _Mapping]] = ..., fault: _Optional[_Union[_message_pb2.Fault, _Mapping]] = ...) -> None: ...

class PutSchedulesResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[PutScheduleResult]
    def __init__(self, results: _Optional[_Iterable[_Union[PutScheduleResult, _Mapping]]] = ...) -> None: ...

class ScheduleRef(_message.Message):
    __slots__ = ("topic", "name")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    topic: str
    name: str
    def __init__(self, topic: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class GetScheduleRequest(_message.Message):
    __slots__ = ("topic", "name", "next_count")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NEXT_COUNT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    name: str
    next_count: int
    def __init__(self, topic: _Optional[str] = ..., name: _Optional[str] = ..., next_count: _Optional[int] = ...) -> None: ...

class ListSchedulesRequest(_message.Message):
    __slots__ = ("topic", "max_count", "page_token", "omit_bodies")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    OMIT_BODIES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    max_count: int
    page_token: bytes
    omit_bodies: bool
    def __init__(self, topic: _Optional[str] = ..., max_count: _Optional[int] = ..., page_token: _Optional[bytes] = ..., omit_bodies: bool = ...) -> None: ...

class ListSchedulesResponse(_message.Message):
    __slots__ = ("schedules", "next_page_token")
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    schedules: _containers.RepeatedCompositeFieldContainer[Schedule]
    next_page_token: bytes
    def __init__(self, schedules: _Optional[_Iterable[_Union[Schedule, _Mapping]]] = ..., next_page_token: _Optional[bytes] = ...) -> None: ...

class CountSchedulesRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class ScheduleCount(_message.Message):
    __slots__ = ("topic", "shard", "schedule_count", "paused_count")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PAUSED_COUNT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    shard: int
    schedule_count: int
    paused_count: int
    def __init__(self, topic: _Optional[str] = ..., shard: _Optional[int] = ..., schedule_count: _Optional[int] = ..., paused_count: _Optional[int] = ...) -> None: ...

class CountSchedulesResponse(_message.Message):
    __slots__ = ("counts", "unreachable_shards")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_SHARDS_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedCompositeFieldContainer[ScheduleCount]
    unreachable_shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, counts: _Optional[_Iterable[_Union[ScheduleCount, _Mapping]]] = ..., unreachable_shards: _Optional[_Iterable[int]] = ...) -> None: ...

class DeleteScheduleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RunScheduleRequest(_message.Message):
    __slots__ = ("topic", "name", "request_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    name: str
    request_id: str
    def __init__(self, topic: _Optional[str] = ..., name: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class RunScheduleResponse(_message.Message):
    __slots__ = ("message_id", "stored_bytes")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    stored_bytes: int
    def __init__(self, message_id: _Optional[str] = ..., stored_bytes: _Optional[int] = ...) -> None: ...
