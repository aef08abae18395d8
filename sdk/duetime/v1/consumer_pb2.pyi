from duetime.v1 import message_pb2 as _message_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReceiveEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECEIVE_ENCODING_MESSAGES: _ClassVar[ReceiveEncoding]
    RECEIVE_ENCODING_RECORDS: _ClassVar[ReceiveEncoding]

class ReceiptStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECEIPT_STATUS_OK: _ClassVar[ReceiptStatus]
    RECEIPT_STATUS_EXPIRED: _ClassVar[ReceiptStatus]
    RECEIPT_STATUS_UNKNOWN: _ClassVar[ReceiptStatus]

class GroupStart(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_START_EARLIEST: _ClassVar[GroupStart]
    GROUP_START_LATEST: _ClassVar[GroupStart]
    GROUP_START_TIME: _ClassVar[GroupStart]

class DeadLetterOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEAD_LETTER_OUTCOME_UNSPECIFIED: _ClassVar[DeadLetterOutcome]
    DEAD_LETTER_OUTCOME_REDRIVEN: _ClassVar[DeadLetterOutcome]
    DEAD_LETTER_OUTCOME_DISCARDED: _ClassVar[DeadLetterOutcome]
    DEAD_LETTER_OUTCOME_GONE: _ClassVar[DeadLetterOutcome]
    DEAD_LETTER_OUTCOME_MATCHED: _ClassVar[DeadLetterOutcome]
    DEAD_LETTER_OUTCOME_FAILED: _ClassVar[DeadLetterOutcome]

class TraceKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRACE_KIND_UNSPECIFIED: _ClassVar[TraceKind]
    TRACE_KIND_ACCEPTED: _ClassVar[TraceKind]
    TRACE_KIND_DEFERRED: _ClassVar[TraceKind]
    TRACE_KIND_RESTORED: _ClassVar[TraceKind]
    TRACE_KIND_RECEIVED: _ClassVar[TraceKind]
    TRACE_KIND_FAILED: _ClassVar[TraceKind]
    TRACE_KIND_EXPIRED: _ClassVar[TraceKind]
    TRACE_KIND_ACKNOWLEDGED: _ClassVar[TraceKind]
    TRACE_KIND_DEAD: _ClassVar[TraceKind]
    TRACE_KIND_REDRIVEN: _ClassVar[TraceKind]
    TRACE_KIND_DISCARDED: _ClassVar[TraceKind]
    TRACE_KIND_QUARANTINED: _ClassVar[TraceKind]
    TRACE_KIND_CANCELLED: _ClassVar[TraceKind]
    TRACE_KIND_RESCHEDULED: _ClassVar[TraceKind]
    TRACE_KIND_REPLACED: _ClassVar[TraceKind]
    TRACE_KIND_PREPARED: _ClassVar[TraceKind]
    TRACE_KIND_COMMITTED: _ClassVar[TraceKind]
    TRACE_KIND_ROLLED_BACK: _ClassVar[TraceKind]
    TRACE_KIND_GIVEN_UP: _ClassVar[TraceKind]
    TRACE_KIND_CHECKED: _ClassVar[TraceKind]
    TRACE_KIND_LAPSED: _ClassVar[TraceKind]
RECEIVE_ENCODING_MESSAGES: ReceiveEncoding
RECEIVE_ENCODING_RECORDS: ReceiveEncoding
RECEIPT_STATUS_OK: ReceiptStatus
RECEIPT_STATUS_EXPIRED: ReceiptStatus
RECEIPT_STATUS_UNKNOWN: ReceiptStatus
GROUP_START_EARLIEST: GroupStart
GROUP_START_LATEST: GroupStart
GROUP_START_TIME: GroupStart
DEAD_LETTER_OUTCOME_UNSPECIFIED: DeadLetterOutcome
DEAD_LETTER_OUTCOME_REDRIVEN: DeadLetterOutcome
DEAD_LETTER_OUTCOME_DISCARDED: DeadLetterOutcome
DEAD_LETTER_OUTCOME_GONE: DeadLetterOutcome
DEAD_LETTER_OUTCOME_MATCHED: DeadLetterOutcome
DEAD_LETTER_OUTCOME_FAILED: DeadLetterOutcome
TRACE_KIND_UNSPECIFIED: TraceKind
TRACE_KIND_ACCEPTED: TraceKind
TRACE_KIND_DEFERRED: TraceKind
TRACE_KIND_RESTORED: TraceKind
TRACE_KIND_RECEIVED: TraceKind
TRACE_KIND_FAILED: TraceKind
TRACE_KIND_EXPIRED: TraceKind
TRACE_KIND_ACKNOWLEDGED: TraceKind
TRACE_KIND_DEAD: TraceKind
TRACE_KIND_REDRIVEN: TraceKind
TRACE_KIND_DISCARDED: TraceKind
TRACE_KIND_QUARANTINED: TraceKind
TRACE_KIND_CANCELLED: TraceKind
TRACE_KIND_RESCHEDULED: TraceKind
TRACE_KIND_REPLACED: TraceKind
TRACE_KIND_PREPARED: TraceKind
TRACE_KIND_COMMITTED: TraceKind
TRACE_KIND_ROLLED_BACK: TraceKind
TRACE_KIND_GIVEN_UP: TraceKind
TRACE_KIND_CHECKED: TraceKind
TRACE_KIND_LAPSED: TraceKind

class QueueNumber(_message.Message):
    __slots__ = ("queue", "shard_queue")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SHARD_QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: int
    shard_queue: int
    def __init__(self, queue: _Optional[int] = ..., shard_queue: _Optional[int] = ...) -> None: ...

class ReceiveRequest(_message.Message):
    __slots__ = ("group", "topic", "max_count", "max_bytes", "invisible_ms", "wait_ms", "tags", "sql", "encoding", "max_attempts", "member", "queues", "retry_queues", "ordered", "start_at_ms", "lite_topics", "limits", "shard_count")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    RETRY_QUEUES_FIELD_NUMBER: _ClassVar[int]
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    START_AT_MS_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SHARD_COUNT_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    max_count: int
    max_bytes: int
    invisible_ms: int
    wait_ms: int
    tags: str
    sql: str
    encoding: ReceiveEncoding
    max_attempts: int
    member: str
    queues: _containers.RepeatedCompositeFieldContainer[QueueNumber]
    retry_queues: _containers.RepeatedCompositeFieldContainer[QueueNumber]
    ordered: bool
    start_at_ms: int
    lite_topics: _containers.RepeatedScalarFieldContainer[str]
    limits: GroupLimits
    shard_count: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., max_count: _Optional[int] = ..., max_bytes: _Optional[int] = ..., invisible_ms: _Optional[int] = ..., wait_ms: _Optional[int] = ..., tags: _Optional[str] = ..., sql: _Optional[str] = ..., encoding: _Optional[_Union[ReceiveEncoding, str]] = ..., max_attempts: _Optional[int] = ..., member: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[QueueNumber, _Mapping]]] = ..., retry_queues: _Optional[_Iterable[_Union[QueueNumber, _Mapping]]] = ..., ordered: bool = ..., start_at_ms: _Optional[int] = ..., lite_topics: _Optional[_Iterable[str]] = ..., limits: _Optional[_Union[GroupLimits, _Mapping]] = ..., shard_count: _Optional[int] = ...) -> None: ...

class LeasedMessage(_message.Message):
    __slots__ = ("message", "receipt", "attempt", "lease_ends_at_ms")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LEASE_ENDS_AT_MS_FIELD_NUMBER: _ClassVar[int]
    message: _message_pb2.StoredMessage
    receipt: bytes
    attempt: int
    lease_ends_at_ms: int
    def __init__(self, message: _Optional[_Union[_message_pb2.StoredMessage, _Mapping]] = ..., receipt: _Optional[bytes] = ..., attempt: _Optional[int] = ..., lease_ends_at_ms: _Optional[int] = ...) -> None: ...

class LeasedRun(_message.Message):
    __slots__ = ("topic", "queue", "records", "receipts", "attempts", "lease_ends_at_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    LEASE_ENDS_AT_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    records: bytes
    receipts: _containers.RepeatedScalarFieldContainer[bytes]
    attempts: _containers.RepeatedScalarFieldContainer[int]
    lease_ends_at_ms: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., records: _Optional[bytes] = ..., receipts: _Optional[_Iterable[bytes]] = ..., attempts: _Optional[_Iterable[int]] = ..., lease_ends_at_ms: _Optional[int] = ...) -> None: ...

class ReceiveResponse(_message.Message):
    __slots__ = ("messages", "runs")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[LeasedMessage]
    runs: _containers.RepeatedCompositeFieldContainer[LeasedRun]
    def __init__(self, messages: _Optional[_Iterable[_Union[LeasedMessage, _Mapping]]] = ..., runs: _Optional[_Iterable[_Union[LeasedRun, _Mapping]]] = ...) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("group", "receipts")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    group: str
    receipts: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, group: _Optional[str] = ..., receipts: _Optional[_Iterable[bytes]] = ...) -> None: ...

class AckResponse(_message.Message):
    __slots__ = ("statuses",)
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[ReceiptStatus]
    def __init__(self, statuses: _Optional[_Iterable[_Union[ReceiptStatus, str]]] = ...) -> None: ...

class ChangeInvisibleRequest(_message.Message):
    __slots__ = ("group", "receipts", "invisible_ms", "not_attempted")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
    NOT_ATTEMPTED_FIELD_NUMBER: _ClassVar[int]
    group: str
    receipts: _containers.RepeatedScalarFieldContainer[bytes]
    invisible_ms: int
    not_attempted: bool
    def __init__(self, group: _Optional[str] = ..., receipts: _Optional[_Iterable[bytes]] = ..., invisible_ms: _Optional[int] = ..., not_attempted: bool = ...) -> None: ...

class ChangeInvisibleResponse(_message.Message):
    __slots__ = ("statuses",)
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[ReceiptStatus]
    def __init__(self, statuses: _Optional[_Iterable[_Union[ReceiptStatus, str]]] = ...) -> None: ...

class HandlerError(_message.Message):
    __slots__ = ("type", "message", "trace")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    type: str
    message: str
    trace: str
    def __init__(self, type: _Optional[str] = ..., message: _Optional[str] = ..., trace: _Optional[str] = ...) -> None: ...

class Nack(_message.Message):
    __slots__ = ("receipt", "delay_ms", "reject", "error")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    REJECT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    receipt: bytes
    delay_ms: int
    reject: bool
    error: HandlerError
    def __init__(self, receipt: _Optional[bytes] = ..., delay_ms: _Optional[int] = ..., reject: bool = ..., error: _Optional[_Union[HandlerError, _Mapping]] = ...) -> None: ...

class NackRequest(_message.Message):
    __slots__ = ("group", "nacks", "policy")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NACKS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    group: str
    nacks: _containers.RepeatedCompositeFieldContainer[Nack]
    policy: _message_pb2.RetryPolicy
    def __init__(self, group: _Optional[str] = ..., nacks: _Optional[_Iterable[_Union[Nack, _Mapping]]] = ..., policy: _Optional[_Union[_message_pb2.RetryPolicy, _Mapping]] = ...) -> None: ...

class NackResult(_message.Message):
    __slots__ = ("status", "dead", "deliver_at_ms", "attempt", "fault", "stored_bytes")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    status: ReceiptStatus
    dead: bool
    deliver_at_ms: int
    attempt: int
    fault: _message_pb2.Fault
    stored_bytes: int
    def __init__(self, status: _Optional[_Union[ReceiptStatus, str]] = ..., dead: bool = ..., deliver_at_ms: _Optional[int] = ..., attempt: _Optional[int] = ..., fault: _Optional[_Union[_message_pb2.Fault, _Mapping]] = ..., stored_bytes: _Optional[int] = ...) -> None: ...

class NackResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[NackResult]
    def __init__(self, results: _Optional[_Iterable[_Union[NackResult, _Mapping]]] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("name", "start", "start_at_ms", "ordered", "retry", "created_at_ms", "limits")
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    START_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    name: str
    start: GroupStart
    start_at_ms: int
    ordered: bool
    retry: _message_pb2.RetryPolicy
    created_at_ms: int
    limits: GroupLimits
    def __init__(self, name: _Optional[str] = ..., start: _Optional[_Union[GroupStart, str]] = ..., start_at_ms: _Optional[int] = ..., ordered: bool = ..., retry: _Optional[_Union[_message_pb2.RetryPolicy, _Mapping]] = ..., created_at_ms: _Optional[int] = ..., limits: _Optional[_Union[GroupLimits, _Mapping]] = ...) -> None: ...

class DeliveryRate(_message.Message):
    __slots__ = ("count", "per_ms", "burst")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PER_MS_FIELD_NUMBER: _ClassVar[int]
    BURST_FIELD_NUMBER: _ClassVar[int]
    count: int
    per_ms: int
    burst: int
    def __init__(self, count: _Optional[int] = ..., per_ms: _Optional[int] = ..., burst: _Optional[int] = ...) -> None: ...

class GroupLimit(_message.Message):
    __slots__ = ("topic", "rate", "per_key", "declared")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    PER_KEY_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    rate: DeliveryRate
    per_key: int
    declared: bool
    def __init__(self, topic: _Optional[str] = ..., rate: _Optional[_Union[DeliveryRate, _Mapping]] = ..., per_key: _Optional[int] = ..., declared: bool = ...) -> None: ...

class GroupLimits(_message.Message):
    __slots__ = ("set_at_ms", "limits", "pause")
    SET_AT_MS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    set_at_ms: int
    limits: _containers.RepeatedCompositeFieldContainer[GroupLimit]
    pause: GroupPause
    def __init__(self, set_at_ms: _Optional[int] = ..., limits: _Optional[_Iterable[_Union[GroupLimit, _Mapping]]] = ..., pause: _Optional[_Union[GroupPause, _Mapping]] = ...) -> None: ...

class LimitGroupRequest(_message.Message):
    __slots__ = ("name", "limit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    limit: GroupLimit
    def __init__(self, name: _Optional[str] = ..., limit: _Optional[_Union[GroupLimit, _Mapping]] = ...) -> None: ...

class DeclareGroupLimitsRequest(_message.Message):
    __slots__ = ("name", "limits")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    name: str
    limits: _containers.RepeatedCompositeFieldContainer[GroupLimit]
    def __init__(self, name: _Optional[str] = ..., limits: _Optional[_Iterable[_Union[GroupLimit, _Mapping]]] = ...) -> None: ...

class CreateGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: Group
    def __init__(self, group: _Optional[_Union[Group, _Mapping]] = ...) -> None: ...

class UpdateGroupRequest(_message.Message):
    __slots__ = ("name", "retry")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    name: str
    retry: _message_pb2.RetryPolicy
    def __init__(self, name: _Optional[str] = ..., retry: _Optional[_Union[_message_pb2.RetryPolicy, _Mapping]] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    def __init__(self, groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GroupQueue(_message.Message):
    __slots__ = ("topic", "queue", "shard", "min_offset", "max_offset", "next_offset", "committed_offset", "lag", "in_flight", "waiting", "oldest_unacked_at_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    OLDEST_UNACKED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    shard: int
    min_offset: int
    max_offset: int
    next_offset: int
    committed_offset: int
    lag: int
    in_flight: int
    waiting: int
    oldest_unacked_at_ms: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., shard: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., committed_offset: _Optional[int] = ..., lag: _Optional[int] = ..., in_flight: _Optional[int] = ..., waiting: _Optional[int] = ..., oldest_unacked_at_ms: _Optional[int] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("name", "topic", "seen_at_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SEEN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic: str
    seen_at_ms: int
    def __init__(self, name: _Optional[str] = ..., topic: _Optional[str] = ..., seen_at_ms: _Optional[int] = ...) -> None: ...

class GroupDescription(_message.Message):
    __slots__ = ("group", "queues", "members", "acks_per_s", "receives_per_s", "dead_letters", "unreachable_shards", "waiting_retries", "next_retry_at_ms", "counting_shards", "pauses", "lapsed_messages")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    ACKS_PER_S_FIELD_NUMBER: _ClassVar[int]
    RECEIVES_PER_S_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_SHARDS_FIELD_NUMBER: _ClassVar[int]
    WAITING_RETRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_RETRY_AT_MS_FIELD_NUMBER: _ClassVar[int]
    COUNTING_SHARDS_FIELD_NUMBER: _ClassVar[int]
    PAUSES_FIELD_NUMBER: _ClassVar[int]
    LAPSED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    group: Group
    queues: _containers.RepeatedCompositeFieldContainer[GroupQueue]
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    acks_per_s: float
    receives_per_s: float
    dead_letters: int
    unreachable_shards: _containers.RepeatedScalarFieldContainer[int]
    waiting_retries: int
    next_retry_at_ms: int
    counting_shards: _containers.RepeatedScalarFieldContainer[int]
    pauses: _containers.RepeatedCompositeFieldContainer[GroupPause]
    lapsed_messages: int
    def __init__(self, group: _Optional[_Union[Group, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[GroupQueue, _Mapping]]] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., acks_per_s: _Optional[float] = ..., receives_per_s: _Optional[float] = ..., dead_letters: _Optional[int] = ..., unreachable_shards: _Optional[_Iterable[int]] = ..., waiting_retries: _Optional[int] = ..., next_retry_at_ms: _Optional[int] = ..., counting_shards: _Optional[_Iterable[int]] = ..., pauses: _Optional[_Iterable[_Union[GroupPause, _Mapping]]] = ..., lapsed_messages: _Optional[int] = ...) -> None: ...

class PauseGroupRequest(_message.Message):
    __slots__ = ("name", "topic", "for_ms", "until_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FOR_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic: str
    for_ms: int
    until_ms: int
    def __init__(self, name: _Optional[str] = ..., topic: _Optional[str] = ..., for_ms: _Optional[int] = ..., until_ms: _Optional[int] = ...) -> None: ...

class ResumeGroupRequest(_message.Message):
    __slots__ = ("name", "topic")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic: str
    def __init__(self, name: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class GroupPause(_message.Message):
    __slots__ = ("topic", "since_ms", "until_ms", "all_groups")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    ALL_GROUPS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    since_ms: int
    until_ms: int
    all_groups: bool
    def __init__(self, topic: _Optional[str] = ..., since_ms: _Optional[int] = ..., until_ms: _Optional[int] = ..., all_groups: bool = ...) -> None: ...

class GroupPauses(_message.Message):
    __slots__ = ("pauses",)
    PAUSES_FIELD_NUMBER: _ClassVar[int]
    pauses: _containers.RepeatedCompositeFieldContainer[GroupPause]
    def __init__(self, pauses: _Optional[_Iterable[_Union[GroupPause, _Mapping]]] = ...) -> None: ...

class ResetGroupRequest(_message.Message):
    __slots__ = ("name", "topic", "queue", "earliest", "latest", "at_ms", "offset", "dry_run", "queues")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic: str
    queue: int
    earliest: bool
    latest: bool
    at_ms: int
    offset: int
    dry_run: bool
    queues: _containers.RepeatedCompositeFieldContainer[QueueNumber]
    def __init__(self, name: _Optional[str] = ..., topic: _Optional[str] = ..., queue: _Optional[int] = ..., earliest: bool = ..., latest: bool = ..., at_ms: _Optional[int] = ..., offset: _Optional[int] = ..., dry_run: bool = ..., queues: _Optional[_Iterable[_Union[QueueNumber, _Mapping]]] = ...) -> None: ...

class ResetQueue(_message.Message):
    __slots__ = ("queue", "shard", "from_offset", "to_offset", "leases_ended", "retries_ended")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TO_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEASES_ENDED_FIELD_NUMBER: _ClassVar[int]
    RETRIES_ENDED_FIELD_NUMBER: _ClassVar[int]
    queue: int
    shard: int
    from_offset: int
    to_offset: int
    leases_ended: int
    retries_ended: int
    def __init__(self, queue: _Optional[int] = ..., shard: _Optional[int] = ..., from_offset: _Optional[int] = ..., to_offset: _Optional[int] = ..., leases_ended: _Optional[int] = ..., retries_ended: _Optional[int] = ...) -> None: ...

class ResetGroupResponse(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[ResetQueue]
    def __init__(self, queues: _Optional[_Iterable[_Union[ResetQueue, _Mapping]]] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("name", "force")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    force: bool
    def __init__(self, name: _Optional[str] = ..., force: bool = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RetryFilter(_message.Message):
    __slots__ = ("group", "topic", "error", "ids")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    error: str
    ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., error: _Optional[str] = ..., ids: _Optional[_Iterable[str]] = ...) -> None: ...

class WaitingRetry(_message.Message):
    __slots__ = ("message", "shard", "lane", "entry", "attempts")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    message: _message_pb2.StoredMessage
    shard: int
    lane: int
    entry: int
    attempts: _containers.RepeatedCompositeFieldContainer[FailedAttempt]
    def __init__(self, message: _Optional[_Union[_message_pb2.StoredMessage, _Mapping]] = ..., shard: _Optional[int] = ..., lane: _Optional[int] = ..., entry: _Optional[int] = ..., attempts: _Optional[_Iterable[_Union[FailedAttempt, _Mapping]]] = ...) -> None: ...

class ListRetriesRequest(_message.Message):
    __slots__ = ("filter", "max_count", "page_token", "omit_bodies")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    OMIT_BODIES_FIELD_NUMBER: _ClassVar[int]
    filter: RetryFilter
    max_count: int
    page_token: bytes
    omit_bodies: bool
    def __init__(self, filter: _Optional[_Union[RetryFilter, _Mapping]] = ..., max_count: _Optional[int] = ..., page_token: _Optional[bytes] = ..., omit_bodies: bool = ...) -> None: ...

class ListRetriesResponse(_message.Message):
    __slots__ = ("retries", "next_page_token")
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    retries: _containers.RepeatedCompositeFieldContainer[WaitingRetry]
    next_page_token: bytes
    def __init__(self, retries: _Optional[_Iterable[_Union[WaitingRetry, _Mapping]]] = ..., next_page_token: _Optional[bytes] = ...) -> None: ...

class EndRetriesRequest(_message.Message):
    __slots__ = ("filter", "dry_run")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    filter: RetryFilter
    dry_run: bool
    def __init__(self, filter: _Optional[_Union[RetryFilter, _Mapping]] = ..., dry_run: bool = ...) -> None: ...

class EndRetriesProgress(_message.Message):
    __slots__ = ("matched_count", "ended_count", "gone_count", "done")
    MATCHED_COUNT_FIELD_NUMBER: _ClassVar[int]
    ENDED_COUNT_FIELD_NUMBER: _ClassVar[int]
    GONE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    matched_count: int
    ended_count: int
    gone_count: int
    done: bool
    def __init__(self, matched_count: _Optional[int] = ..., ended_count: _Optional[int] = ..., gone_count: _Optional[int] = ..., done: bool = ...) -> None: ...

class FailedAttempt(_message.Message):
    __slots__ = ("attempt", "received_at_ms", "failed_at_ms", "error")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    FAILED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    received_at_ms: int
    failed_at_ms: int
    error: HandlerError
    def __init__(self, attempt: _Optional[int] = ..., received_at_ms: _Optional[int] = ..., failed_at_ms: _Optional[int] = ..., error: _Optional[_Union[HandlerError, _Mapping]] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("message", "group", "shard", "queue", "offset", "dead_at_ms", "reason", "attempts", "redriven_count")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DEAD_AT_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    REDRIVEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    message: _message_pb2.StoredMessage
    group: str
    shard: int
    queue: int
    offset: int
    dead_at_ms: int
    reason: str
    attempts: _containers.RepeatedCompositeFieldContainer[FailedAttempt]
    redriven_count: int
    def __init__(self, message: _Optional[_Union[_message_pb2.StoredMessage, _Mapping]] = ..., group: _Optional[str] = ..., shard: _Optional[int] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ..., dead_at_ms: _Optional[int] = ..., reason: _Optional[str] = ..., attempts: _Optional[_Iterable[_Union[FailedAttempt, _Mapping]]] = ..., redriven_count: _Optional[int] = ...) -> None: ...

class DeadLetterFilter(_message.Message):
    __slots__ = ("group", "from_ms", "to_ms", "error", "tag", "key", "ids", "topic")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FROM_MS_FIELD_NUMBER: _ClassVar[int]
    TO_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    group: str
    from_ms: int
    to_ms: int
    error: str
    tag: str
    key: str
    ids: _containers.RepeatedScalarFieldContainer[str]
    topic: str
    def __init__(self, group: _Optional[str] = ..., from_ms: _Optional[int] = ..., to_ms: _Optional[int] = ..., error: _Optional[str] = ..., tag: _Optional[str] = ..., key: _Optional[str] = ..., ids: _Optional[_Iterable[str]] = ..., topic: _Optional[str] = ...) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("filter", "max_count", "page", "newest_first")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIRST_FIELD_NUMBER: _ClassVar[int]
    filter: DeadLetterFilter
    max_count: int
    page: str
    newest_first: bool
    def __init__(self, filter: _Optional[_Union[DeadLetterFilter, _Mapping]] = ..., max_count: _Optional[int] = ..., page: _Optional[str] = ..., newest_first: bool = ...) -> None: ...

class ListDeadLettersResponse(_message.Message):
    __slots__ = ("letters", "next_page")
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_FIELD_NUMBER: _ClassVar[int]
    letters: _containers.RepeatedCompositeFieldContainer[DeadLetter]
    next_page: str
    def __init__(self, letters: _Optional[_Iterable[_Union[DeadLetter, _Mapping]]] = ..., next_page: _Optional[str] = ...) -> None: ...

class RedriveRequest(_message.Message):
    __slots__ = ("filter", "rate", "dry_run", "max_count")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    filter: DeadLetterFilter
    rate: float
    dry_run: bool
    max_count: int
    def __init__(self, filter: _Optional[_Union[DeadLetterFilter, _Mapping]] = ..., rate: _Optional[float] = ..., dry_run: bool = ..., max_count: _Optional[int] = ...) -> None: ...

class DiscardRequest(_message.Message):
    __slots__ = ("filter", "rate", "dry_run", "max_count")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    filter: DeadLetterFilter
    rate: float
    dry_run: bool
    max_count: int
    def __init__(self, filter: _Optional[_Union[DeadLetterFilter, _Mapping]] = ..., rate: _Optional[float] = ..., dry_run: bool = ..., max_count: _Optional[int] = ...) -> None: ...

class DeadLetterResult(_message.Message):
    __slots__ = ("message_id", "shard", "queue", "offset", "outcome", "fault", "stored_bytes")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    shard: int
    queue: int
    offset: int
    outcome: DeadLetterOutcome
    fault: _message_pb2.Fault
    stored_bytes: int
    def __init__(self, message_id: _Optional[str] = ..., shard: _Optional[int] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ..., outcome: _Optional[_Union[DeadLetterOutcome, str]] = ..., fault: _Optional[_Union[_message_pb2.Fault, _Mapping]] = ..., stored_bytes: _Optional[int] = ...) -> None: ...

class TraceMessageRequest(_message.Message):
    __slots__ = ("id", "topic")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    id: str
    topic: str
    def __init__(self, id: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class TraceEvent(_message.Message):
    __slots__ = ("kind", "at_ms", "shard", "topic", "queue", "offset", "level", "due_at_ms", "late_ms", "group", "attempt", "error", "replaced_by_id", "checks", "paused")
    KIND_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    LATE_MS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REPLACED_BY_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    kind: TraceKind
    at_ms: int
    shard: int
    topic: str
    queue: int
    offset: int
    level: int
    due_at_ms: int
    late_ms: int
    group: str
    attempt: int
    error: HandlerError
    replaced_by_id: str
    checks: int
    paused: bool
    def __init__(self, kind: _Optional[_Union[TraceKind, str]] = ..., at_ms: _Optional[int] = ..., shard: _Optional[int] = ..., topic: _Optional[str] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ..., level: _Optional[int] = ..., due_at_ms: _Optional[int] = ..., late_ms: _Optional[int] = ..., group: _Optional[str] = ..., attempt: _Optional[int] = ..., error: _Optional[_Union[HandlerError, _Mapping]] = ..., replaced_by_id: _Optional[str] = ..., checks: _Optional[int] = ..., paused: bool = ...) -> None: ...

class TraceMessageResponse(_message.Message):
    __slots__ = ("id", "events", "gaps")
    ID_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    id: str
    events: _containers.RepeatedCompositeFieldContainer[TraceEvent]
    gaps: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., events: _Optional[_Iterable[_Union[TraceEvent, _Mapping]]] = ..., gaps: _Optional[_Iterable[str]] = ...) -> None: ...
