from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Message(_message.Message):
    __slots__ = ("topic", "body", "properties", "tags", "keys", "sharding_key", "queue", "delay_level", "delay_ms", "deliver_at_ms", "id", "born_at_ms", "flag", "retry", "replace", "max_wait_ms", "priority", "lite_topic", "expires_ms")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    SHARDING_KEY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    DELAY_LEVEL_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    BORN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    body: bytes
    properties: _containers.ScalarMap[str, str]
    tags: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    sharding_key: str
    queue: int
    delay_level: int
    delay_ms: int
    deliver_at_ms: int
    id: str
    born_at_ms: int
    flag: int
    retry: RetryPolicy
    replace: bool
    max_wait_ms: int
    priority: int
    lite_topic: str
    expires_ms: int
    def __init__(self, topic: _Optional[str] = ..., body: _Optional[bytes] = ..., properties: _Optional[_Mapping[str, str]] = ..., tags: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., sharding_key: _Optional[str] = ..., queue: _Optional[int] = ..., delay_level: _Optional[int] = ..., delay_ms: _Optional[int] = ..., deliver_at_ms: _Optional[int] = ..., id: _Optional[str] = ..., born_at_ms: _Optional[int] = ..., flag: _Optional[int] = ..., retry: _Optional[_Union[RetryPolicy, _Mapping]] = ..., replace: bool = ..., max_wait_ms: _Optional[int] = ..., priority: _Optional[int] = ..., lite_topic: _Optional[str] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class RetryPolicy(_message.Message):
    __slots__ = ("max_attempts", "levels", "exponential", "intervals")
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    EXPONENTIAL_FIELD_NUMBER: _ClassVar[int]
    INTERVALS_FIELD_NUMBER: _ClassVar[int]
    max_attempts: int
    levels: LevelBackoff
    exponential: ExponentialBackoff
    intervals: IntervalBackoff
    def __init__(self, max_attempts: _Optional[int] = ..., levels: _Optional[_Union[LevelBackoff, _Mapping]] = ..., exponential: _Optional[_Union[ExponentialBackoff, _Mapping]] = ..., intervals: _Optional[_Union[IntervalBackoff, _Mapping]] = ...) -> None: ...

class LevelBackoff(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExponentialBackoff(_message.Message):
    __slots__ = ("initial_ms", "max_ms", "factor", "jitter")
    INITIAL_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_MS_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    JITTER_FIELD_NUMBER: _ClassVar[int]
    initial_ms: int
    max_ms: int
    factor: float
    jitter: float
    def __init__(self, initial_ms: _Optional[int] = ..., max_ms: _Optional[int] = ..., factor: _Optional[float] = ..., jitter: _Optional[float] = ...) -> None: ...

class IntervalBackoff(_message.Message):
    __slots__ = ("delays_ms",)
    DELAYS_MS_FIELD_NUMBER: _ClassVar[int]
    delays_ms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, delays_ms: _Optional[_Iterable[int]] = ...) -> None: ...

class StoredMessage(_message.Message):
    __slots__ = ("topic", "queue", "offset", "body", "properties", "tags", "keys", "id", "flag", "born_at_ms", "stored_at_ms", "due_at_ms", "delay_level", "attempt", "born_host", "sys_flag", "priority", "expires_at_ms", "paused")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    BORN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DELAY_LEVEL_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    BORN_HOST_FIELD_NUMBER: _ClassVar[int]
    SYS_FLAG_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    offset: int
    body: bytes
    properties: _containers.ScalarMap[str, str]
    tags: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    id: str
    flag: int
    born_at_ms: int
    stored_at_ms: int
    due_at_ms: int
    delay_level: int
    attempt: int
    born_host: str
    sys_flag: int
    priority: int
    expires_at_ms: int
    paused: bool
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ..., body: _Optional[bytes] = ..., properties: _Optional[_Mapping[str, str]] = ..., tags: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., id: _Optional[str] = ..., flag: _Optional[int] = ..., born_at_ms: _Optional[int] = ..., stored_at_ms: _Optional[int] = ..., due_at_ms: _Optional[int] = ..., delay_level: _Optional[int] = ..., attempt: _Optional[int] = ..., born_host: _Optional[str] = ..., sys_flag: _Optional[int] = ..., priority: _Optional[int] = ..., expires_at_ms: _Optional[int] = ..., paused: bool = ...) -> None: ...

class FieldViolation(_message.Message):
    __slots__ = ("field", "description")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    field: str
    description: str
    def __init__(self, field: _Optional[str] = ..., description: _Optional[str] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("code", "reason", "message", "violations", "retriable", "retry_after_ms", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    RETRIABLE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    message: str
    violations: _containers.RepeatedCompositeFieldContainer[FieldViolation]
    retriable: bool
    retry_after_ms: int
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., violations: _Optional[_Iterable[_Union[FieldViolation, _Mapping]]] = ..., retriable: bool = ..., retry_after_ms: _Optional[int] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SendResult(_message.Message):
    __slots__ = ("message_id", "shard", "queue", "offset", "delay_level", "deliver_at_ms", "requested_level", "duplicate", "lane", "was_past", "replaced_id", "fault")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DELAY_LEVEL_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_LEVEL_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    WAS_PAST_FIELD_NUMBER: _ClassVar[int]
    REPLACED_ID_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    shard: int
    queue: int
    offset: int
    delay_level: int
    deliver_at_ms: int
    requested_level: int
    duplicate: bool
    lane: int
    was_past: bool
    replaced_id: str
    fault: Fault
    def __init__(self, message_id: _Optional[str] = ..., shard: _Optional[int] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ..., delay_level: _Optional[int] = ..., deliver_at_ms: _Optional[int] = ..., requested_level: _Optional[int] = ..., duplicate: bool = ..., lane: _Optional[int] = ..., was_past: bool = ..., replaced_id: _Optional[str] = ..., fault: _Optional[_Union[Fault, _Mapping]] = ...) -> None: ...
