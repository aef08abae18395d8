from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubscribeRequest(_message.Message):
    __slots__ = ("credit_bytes", "topic", "queues", "tags", "sql", "untold_ms")
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    UNTOLD_MS_FIELD_NUMBER: _ClassVar[int]
    credit_bytes: int
    topic: str
    queues: _containers.RepeatedCompositeFieldContainer[SubscribedQueue]
    tags: str
    sql: str
    untold_ms: int
    def __init__(self, credit_bytes: _Optional[int] = ..., topic: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[SubscribedQueue, _Mapping]]] = ..., tags: _Optional[str] = ..., sql: _Optional[str] = ..., untold_ms: _Optional[int] = ...) -> None: ...

class SubscribedQueue(_message.Message):
    __slots__ = ("queue", "offset", "shard_queue")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SHARD_QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: int
    offset: int
    shard_queue: int
    def __init__(self, queue: _Optional[int] = ..., offset: _Optional[int] = ..., shard_queue: _Optional[int] = ...) -> None: ...

class SubscribeResponse(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueNews]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueNews, _Mapping]]] = ...) -> None: ...

class QueueNews(_message.Message):
    __slots__ = ("queue", "records", "next_offset", "min_offset", "max_offset", "out_of_range")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_RANGE_FIELD_NUMBER: _ClassVar[int]
    queue: int
    records: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    out_of_range: bool
    def __init__(self, queue: _Optional[int] = ..., records: _Optional[bytes] = ..., next_offset: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., out_of_range: bool = ...) -> None: ...
