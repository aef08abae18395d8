from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class QuotaOf(_message.Message):
    __slots__ = ("user", "topic")
    USER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    user: str
    topic: str
    def __init__(self, user: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("of", "messages_per_s", "bytes_per_s", "burst_messages", "burst_bytes", "connections", "streams", "pending_count", "pending_bytes", "per_host")
    OF_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_PER_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    BURST_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BURST_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    PENDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    PENDING_BYTES_FIELD_NUMBER: _ClassVar[int]
    PER_HOST_FIELD_NUMBER: _ClassVar[int]
    of: QuotaOf
    messages_per_s: int
    bytes_per_s: int
    burst_messages: int
    burst_bytes: int
    connections: int
    streams: int
    pending_count: int
    pending_bytes: int
    per_host: bool
    def __init__(self, of: _Optional[_Union[QuotaOf, _Mapping]] = ..., messages_per_s: _Optional[int] = ..., bytes_per_s: _Optional[int] = ..., burst_messages: _Optional[int] = ..., burst_bytes: _Optional[int] = ..., connections: _Optional[int] = ..., streams: _Optional[int] = ..., pending_count: _Optional[int] = ..., pending_bytes: _Optional[int] = ..., per_host: bool = ...) -> None: ...

class SetQuotaRequest(_message.Message):
    __slots__ = ("quota",)
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    quota: Quota
    def __init__(self, quota: _Optional[_Union[Quota, _Mapping]] = ...) -> None: ...

class ListQuotasRequest(_message.Message):
    __slots__ = ("of",)
    OF_FIELD_NUMBER: _ClassVar[int]
    of: QuotaOf
    def __init__(self, of: _Optional[_Union[QuotaOf, _Mapping]] = ...) -> None: ...

class QuotaUse(_message.Message):
    __slots__ = ("quota", "messages_per_s", "bytes_per_s", "connections", "streams", "pending_count", "pending_bytes")
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_PER_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    PENDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    PENDING_BYTES_FIELD_NUMBER: _ClassVar[int]
    quota: Quota
    messages_per_s: float
    bytes_per_s: float
    connections: int
    streams: int
    pending_count: int
    pending_bytes: int
    def __init__(self, quota: _Optional[_Union[Quota, _Mapping]] = ..., messages_per_s: _Optional[float] = ..., bytes_per_s: _Optional[float] = ..., connections: _Optional[int] = ..., streams: _Optional[int] = ..., pending_count: _Optional[int] = ..., pending_bytes: _Optional[int] = ...) -> None: ...

class ListQuotasResponse(_message.Message):
    __slots__ = ("quotas", "gateway_count")
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_COUNT_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[QuotaUse]
    gateway_count: int
    def __init__(self, quotas: _Optional[_Iterable[_Union[QuotaUse, _Mapping]]] = ..., gateway_count: _Optional[int] = ...) -> None: ...

class RemoveQuotaRequest(_message.Message):
    __slots__ = ("of",)
    OF_FIELD_NUMBER: _ClassVar[int]
    of: QuotaOf
    def __init__(self, of: _Optional[_Union[QuotaOf, _Mapping]] = ...) -> None: ...

class RemoveQuotaResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
