from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListLaneLeasesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LaneLease(_message.Message):
    __slots__ = ("shard", "level", "owner", "paused", "epoch", "next_offset", "min_offset", "max_offset", "published_at_ms")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    shard: int
    level: int
    owner: str
    paused: bool
    epoch: int
    next_offset: int
    min_offset: int
    max_offset: int
    published_at_ms: int
    def __init__(self, shard: _Optional[int] = ..., level: _Optional[int] = ..., owner: _Optional[str] = ..., paused: bool = ..., epoch: _Optional[int] = ..., next_offset: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., published_at_ms: _Optional[int] = ...) -> None: ...

class ListLaneLeasesResponse(_message.Message):
    __slots__ = ("leases",)
    LEASES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[LaneLease]
    def __init__(self, leases: _Optional[_Iterable[_Union[LaneLease, _Mapping]]] = ...) -> None: ...

class LaneRequest(_message.Message):
    __slots__ = ("shard", "level")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    shard: int
    level: int
    def __init__(self, shard: _Optional[int] = ..., level: _Optional[int] = ...) -> None: ...
