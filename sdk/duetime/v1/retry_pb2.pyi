from duetime.v1 import consumer_pb2 as _consumer_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class SendBackRequest(_message.Message):
    __slots__ = ("group", "topic", "queue", "offset", "delay_level", "max_attempts", "token")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DELAY_LEVEL_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue: int
    offset: int
    delay_level: int
    max_attempts: int
    token: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ..., delay_level: _Optional[int] = ..., max_attempts: _Optional[int] = ..., token: _Optional[str] = ...) -> None: ...

class SendBackResponse(_message.Message):
    __slots__ = ("topic", "dead", "delay_level", "deliver_at_ms", "attempt", "message_id", "stored_bytes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    DELAY_LEVEL_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    dead: bool
    delay_level: int
    deliver_at_ms: int
    attempt: int
    message_id: str
    stored_bytes: int
    def __init__(self, topic: _Optional[str] = ..., dead: bool = ..., delay_level: _Optional[int] = ..., deliver_at_ms: _Optional[int] = ..., attempt: _Optional[int] = ..., message_id: _Optional[str] = ..., stored_bytes: _Optional[int] = ...) -> None: ...
