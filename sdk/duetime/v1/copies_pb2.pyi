from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CarryRequest(_message.Message):
    __slots__ = ("group", "sender", "receiver", "life", "sent_at_ms", "payload", "message", "full", "address")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    group: int
    sender: int
    receiver: int
    life: int
    sent_at_ms: int
    payload: bytes
    message: bytes
    full: bool
    address: str
    def __init__(self, group: _Optional[int] = ..., sender: _Optional[int] = ..., receiver: _Optional[int] = ..., life: _Optional[int] = ..., sent_at_ms: _Optional[int] = ..., payload: _Optional[bytes] = ..., message: _Optional[bytes] = ..., full: bool = ..., address: _Optional[str] = ...) -> None: ...

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

class DescribeDirectoryRequest(_message.Message):
    __slots__ = ("group", "receiver")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    group: int
    receiver: int
    def __init__(self, group: _Optional[int] = ..., receiver: _Optional[int] = ...) -> None: ...

class DescribeDirectoryResponse(_message.Message):
    __slots__ = ("files", "index", "term", "end", "stored_at_ms", "roster", "begin", "segment_bytes")
    FILES_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[CopyFile]
    index: int
    term: int
    end: int
    stored_at_ms: int
    roster: bytes
    begin: int
    segment_bytes: int
    def __init__(self, files: _Optional[_Iterable[_Union[CopyFile, _Mapping]]] = ..., index: _Optional[int] = ..., term: _Optional[int] = ..., end: _Optional[int] = ..., stored_at_ms: _Optional[int] = ..., roster: _Optional[bytes] = ..., begin: _Optional[int] = ..., segment_bytes: _Optional[int] = ...) -> None: ...

class CopyFile(_message.Message):
    __slots__ = ("path", "size")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    path: str
    size: int
    def __init__(self, path: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class CheckFileRequest(_message.Message):
    __slots__ = ("group", "receiver", "path", "end")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    group: int
    receiver: int
    path: str
    end: int
    def __init__(self, group: _Optional[int] = ..., receiver: _Optional[int] = ..., path: _Optional[str] = ..., end: _Optional[int] = ...) -> None: ...

class CheckFileResponse(_message.Message):
    __slots__ = ("crc32",)
    CRC32_FIELD_NUMBER: _ClassVar[int]
    crc32: int
    def __init__(self, crc32: _Optional[int] = ...) -> None: ...

class ReadFileRequest(_message.Message):
    __slots__ = ("group", "receiver", "path", "position", "end")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    group: int
    receiver: int
    path: str
    position: int
    end: int
    def __init__(self, group: _Optional[int] = ..., receiver: _Optional[int] = ..., path: _Optional[str] = ..., position: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class ReadFileResponse(_message.Message):
    __slots__ = ("position", "data")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    position: int
    data: bytes
    def __init__(self, position: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...
