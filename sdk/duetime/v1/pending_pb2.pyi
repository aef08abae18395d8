from duetime.v1 import consumer_pb2 as _consumer_pb2
from duetime.v1 import message_pb2 as _message_pb2
from duetime.v1 import schedules_pb2 as _schedules_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CancelStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CANCEL_STATUS_UNSPECIFIED: _ClassVar[CancelStatus]
    CANCEL_STATUS_CANCELLED: _ClassVar[CancelStatus]
    CANCEL_STATUS_ALREADY_FIRED: _ClassVar[CancelStatus]
    CANCEL_STATUS_NOT_FOUND: _ClassVar[CancelStatus]

class RescheduleStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESCHEDULE_STATUS_UNSPECIFIED: _ClassVar[RescheduleStatus]
    RESCHEDULE_STATUS_RESCHEDULED: _ClassVar[RescheduleStatus]
    RESCHEDULE_STATUS_ALREADY_FIRED: _ClassVar[RescheduleStatus]
    RESCHEDULE_STATUS_NOT_FOUND: _ClassVar[RescheduleStatus]
CANCEL_STATUS_UNSPECIFIED: CancelStatus
CANCEL_STATUS_CANCELLED: CancelStatus
CANCEL_STATUS_ALREADY_FIRED: CancelStatus
CANCEL_STATUS_NOT_FOUND: CancelStatus
RESCHEDULE_STATUS_UNSPECIFIED: RescheduleStatus
RESCHEDULE_STATUS_RESCHEDULED: RescheduleStatus
RESCHEDULE_STATUS_ALREADY_FIRED: RescheduleStatus
RESCHEDULE_STATUS_NOT_FOUND: RescheduleStatus

class PendingRef(_message.Message):
    __slots__ = ("message_id", "topic", "shard", "lane", "entry")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    topic: str
    shard: int
    lane: int
    entry: int
    def __init__(self, message_id: _Optional[str] = ..., topic: _Optional[str] = ..., shard: _Optional[int] = ..., lane: _Optional[int] = ..., entry: _Optional[int] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("messages", "locate")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LOCATE_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[PendingRef]
    locate: bool
    def __init__(self, messages: _Optional[_Iterable[_Union[PendingRef, _Mapping]]] = ..., locate: bool = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[CancelResult]
    def __init__(self, results: _Optional[_Iterable[_Union[CancelResult, _Mapping]]] = ...) -> None: ...

class CancelResult(_message.Message):
    __slots__ = ("status", "due_at_ms", "topics", "fault")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    status: CancelStatus
    due_at_ms: int
    topics: _containers.RepeatedScalarFieldContainer[str]
    fault: _message_pb2.Fault
    def __init__(self, status: _Optional[_Union[CancelStatus, str]] = ..., due_at_ms: _Optional[int] = ..., topics: _Optional[_Iterable[str]] = ..., fault: _Optional[_Union[_message_pb2.Fault, _Mapping]] = ...) -> None: ...

class PendingFilter(_message.Message):
    __slots__ = ("topic", "key", "due_from_ms", "due_before_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    DUE_FROM_MS_FIELD_NUMBER: _ClassVar[int]
    DUE_BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: str
    due_from_ms: int
    due_before_ms: int
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[str] = ..., due_from_ms: _Optional[int] = ..., due_before_ms: _Optional[int] = ...) -> None: ...

class CancelMatchingRequest(_message.Message):
    __slots__ = ("filter", "dry_run")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    filter: PendingFilter
    dry_run: bool
    def __init__(self, filter: _Optional[_Union[PendingFilter, _Mapping]] = ..., dry_run: bool = ...) -> None: ...

class CancelProgress(_message.Message):
    __slots__ = ("seen_count", "matched_count", "cancelled_count", "fired_count", "due_at_ms", "done")
    SEEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    MATCHED_COUNT_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRED_COUNT_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    seen_count: int
    matched_count: int
    cancelled_count: int
    fired_count: int
    due_at_ms: int
    done: bool
    def __init__(self, seen_count: _Optional[int] = ..., matched_count: _Optional[int] = ..., cancelled_count: _Optional[int] = ..., fired_count: _Optional[int] = ..., due_at_ms: _Optional[int] = ..., done: bool = ...) -> None: ...

class RescheduleRequest(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Reschedule]
    def __init__(self, messages: _Optional[_Iterable[_Union[Reschedule, _Mapping]]] = ...) -> None: ...

class Reschedule(_message.Message):
    __slots__ = ("message", "delay_ms", "deliver_at_ms", "body", "request_id")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    message: PendingRef
    delay_ms: int
    deliver_at_ms: int
    body: bytes
    request_id: str
    def __init__(self, message: _Optional[_Union[PendingRef, _Mapping]] = ..., delay_ms: _Optional[int] = ..., deliver_at_ms: _Optional[int] = ..., body: _Optional[bytes] = ..., request_id: _Optional[str] = ...) -> None: ...

class RescheduleResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[RescheduleResult]
    def __init__(self, results: _Optional[_Iterable[_Union[RescheduleResult, _Mapping]]] = ...) -> None: ...

class RescheduleResult(_message.Message):
    __slots__ = ("status", "shard", "lane", "entry", "deliver_at_ms", "was_past", "stored_bytes", "fault")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    WAS_PAST_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    status: RescheduleStatus
    shard: int
    lane: int
    entry: int
    deliver_at_ms: int
    was_past: bool
    stored_bytes: int
    fault: _message_pb2.Fault
    def __init__(self, status: _Optional[_Union[RescheduleStatus, str]] = ..., shard: _Optional[int] = ..., lane: _Optional[int] = ..., entry: _Optional[int] = ..., deliver_at_ms: _Optional[int] = ..., was_past: bool = ..., stored_bytes: _Optional[int] = ..., fault: _Optional[_Union[_message_pb2.Fault, _Mapping]] = ...) -> None: ...

class ListPendingRequest(_message.Message):
    __slots__ = ("filter", "max_count", "page_token", "omit_bodies", "names_only", "schedules_only")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    OMIT_BODIES_FIELD_NUMBER: _ClassVar[int]
    NAMES_ONLY_FIELD_NUMBER: _ClassVar[int]
    SCHEDULES_ONLY_FIELD_NUMBER: _ClassVar[int]
    filter: PendingFilter
    max_count: int
    page_token: bytes
    omit_bodies: bool
    names_only: bool
    schedules_only: bool
    def __init__(self, filter: _Optional[_Union[PendingFilter, _Mapping]] = ..., max_count: _Optional[int] = ..., page_token: _Optional[bytes] = ..., omit_bodies: bool = ..., names_only: bool = ..., schedules_only: bool = ...) -> None: ...

class PendingMessage(_message.Message):
    __slots__ = ("message", "shard", "lane", "attempts", "schedule")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    message: _message_pb2.StoredMessage
    shard: int
    lane: int
    attempts: _containers.RepeatedCompositeFieldContainer[_consumer_pb2.FailedAttempt]
    schedule: _schedules_pb2.Schedule
    def __init__(self, message: _Optional[_Union[_message_pb2.StoredMessage, _Mapping]] = ..., shard: _Optional[int] = ..., lane: _Optional[int] = ..., attempts: _Optional[_Iterable[_Union[_consumer_pb2.FailedAttempt, _Mapping]]] = ..., schedule: _Optional[_Union[_schedules_pb2.Schedule, _Mapping]] = ...) -> None: ...

class ListPendingResponse(_message.Message):
    __slots__ = ("messages", "next_page_token", "seen_count", "due_at_ms")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SEEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[PendingMessage]
    next_page_token: bytes
    seen_count: int
    due_at_ms: int
    def __init__(self, messages: _Optional[_Iterable[_Union[PendingMessage, _Mapping]]] = ..., next_page_token: _Optional[bytes] = ..., seen_count: _Optional[int] = ..., due_at_ms: _Optional[int] = ...) -> None: ...

class BacklogRequest(_message.Message):
    __slots__ = ("topic", "due_from_ms", "due_before_ms", "all_topics_together", "all_lanes_together")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    DUE_FROM_MS_FIELD_NUMBER: _ClassVar[int]
    DUE_BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    ALL_TOPICS_TOGETHER_FIELD_NUMBER: _ClassVar[int]
    ALL_LANES_TOGETHER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    due_from_ms: int
    due_before_ms: int
    all_topics_together: bool
    all_lanes_together: bool
    def __init__(self, topic: _Optional[str] = ..., due_from_ms: _Optional[int] = ..., due_before_ms: _Optional[int] = ..., all_topics_together: bool = ..., all_lanes_together: bool = ...) -> None: ...

class DueBucket(_message.Message):
    __slots__ = ("due_from_ms", "width_ms", "count", "topic", "lane")
    DUE_FROM_MS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_MS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    due_from_ms: int
    width_ms: int
    count: int
    topic: str
    lane: int
    def __init__(self, due_from_ms: _Optional[int] = ..., width_ms: _Optional[int] = ..., count: _Optional[int] = ..., topic: _Optional[str] = ..., lane: _Optional[int] = ...) -> None: ...

class BacklogResponse(_message.Message):
    __slots__ = ("buckets", "pending_count", "overdue_count", "now_ms", "unreachable_shards")
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    PENDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    OVERDUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_SHARDS_FIELD_NUMBER: _ClassVar[int]
    buckets: _containers.RepeatedCompositeFieldContainer[DueBucket]
    pending_count: int
    overdue_count: int
    now_ms: int
    unreachable_shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, buckets: _Optional[_Iterable[_Union[DueBucket, _Mapping]]] = ..., pending_count: _Optional[int] = ..., overdue_count: _Optional[int] = ..., now_ms: _Optional[int] = ..., unreachable_shards: _Optional[_Iterable[int]] = ...) -> None: ...
