from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListAuditEventsRequest(_message.Message):
    __slots__ = ("from_ms", "before_ms", "user", "method", "max_count", "page_token")
    FROM_MS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    from_ms: int
    before_ms: int
    user: str
    method: str
    max_count: int
    page_token: str
    def __init__(self, from_ms: _Optional[int] = ..., before_ms: _Optional[int] = ..., user: _Optional[str] = ..., method: _Optional[str] = ..., max_count: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class AuditEvent(_message.Message):
    __slots__ = ("at_ms", "process", "user", "host", "peer", "method", "resource", "status", "reason", "left_out_count")
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_COUNT_FIELD_NUMBER: _ClassVar[int]
    at_ms: int
    process: str
    user: str
    host: str
    peer: str
    method: str
    resource: str
    status: str
    reason: str
    left_out_count: int
    def __init__(self, at_ms: _Optional[int] = ..., process: _Optional[str] = ..., user: _Optional[str] = ..., host: _Optional[str] = ..., peer: _Optional[str] = ..., method: _Optional[str] = ..., resource: _Optional[str] = ..., status: _Optional[str] = ..., reason: _Optional[str] = ..., left_out_count: _Optional[int] = ...) -> None: ...

class ListAuditEventsResponse(_message.Message):
    __slots__ = ("events", "next_page_token")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[AuditEvent]
    next_page_token: str
    def __init__(self, events: _Optional[_Iterable[_Union[AuditEvent, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...
