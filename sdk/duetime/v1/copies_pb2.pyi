from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class CarryRequest(_message.Message):
    __slots__ = ("group", "sender", "receiver", "life", "sent_at_ms", "payload", "message", "full")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    group: int
    sender: int
    receiver: int
    life: int
    sent_at_ms: int
    payload: bytes
    message: bytes
    full: bool
    def __init__(self, group: _Optional[int] = ..., sender: _Optional[int] = ..., receiver: _Optional[int] = ..., life: _Optional[int] = ..., sent_at_ms: _Optional[int] = ..., payload: _Optional[bytes] = ..., message: _Optional[bytes] = ..., full: bool = ...) -> None: ...

class CarryResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("group", "receiver", "position", "end")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    group: int
    receiver: int
    position: int
    end: int
    def __init__(self, group: _Optional[int] = ..., receiver: _Optional[int] = ..., position: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
