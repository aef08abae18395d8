from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CopyRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COPY_ROLE_UNSPECIFIED: _ClassVar[CopyRole]
    COPY_ROLE_VOTER: _ClassVar[CopyRole]
    COPY_ROLE_LEARNER: _ClassVar[CopyRole]
    COPY_ROLE_LEAVING: _ClassVar[CopyRole]
COPY_ROLE_UNSPECIFIED: CopyRole
COPY_ROLE_VOTER: CopyRole
COPY_ROLE_LEARNER: CopyRole
COPY_ROLE_LEAVING: CopyRole

class DescribeMembersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeMembersResponse(_message.Message):
    __slots__ = ("group", "number", "leader", "term", "last_entry", "committed_entry", "members", "is_founded", "highest_number", "taken_bytes", "bytes_to_take")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_ENTRY_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    IS_FOUNDED_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    TAKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_TO_TAKE_FIELD_NUMBER: _ClassVar[int]
    group: int
    number: int
    leader: int
    term: int
    last_entry: int
    committed_entry: int
    members: _containers.RepeatedCompositeFieldContainer[CopyMember]
    is_founded: bool
    highest_number: int
    taken_bytes: int
    bytes_to_take: int
    def __init__(self, group: _Optional[int] = ..., number: _Optional[int] = ..., leader: _Optional[int] = ..., term: _Optional[int] = ..., last_entry: _Optional[int] = ..., committed_entry: _Optional[int] = ..., members: _Optional[_Iterable[_Union[CopyMember, _Mapping]]] = ..., is_founded: bool = ..., highest_number: _Optional[int] = ..., taken_bytes: _Optional[int] = ..., bytes_to_take: _Optional[int] = ...) -> None: ...

class CopyMember(_message.Message):
    __slots__ = ("number", "address", "role", "matched_entry", "heard", "clock_ahead_ms", "replaces")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MATCHED_ENTRY_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    CLOCK_AHEAD_MS_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    number: int
    address: str
    role: CopyRole
    matched_entry: int
    heard: bool
    clock_ahead_ms: int
    replaces: int
    def __init__(self, number: _Optional[int] = ..., address: _Optional[str] = ..., role: _Optional[_Union[CopyRole, str]] = ..., matched_entry: _Optional[int] = ..., heard: bool = ..., clock_ahead_ms: _Optional[int] = ..., replaces: _Optional[int] = ...) -> None: ...

class TransferLeadershipRequest(_message.Message):
    __slots__ = ("group", "to")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    group: int
    to: int
    def __init__(self, group: _Optional[int] = ..., to: _Optional[int] = ...) -> None: ...

class TransferLeadershipResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AddMemberRequest(_message.Message):
    __slots__ = ("group", "number", "address", "replaces")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    group: int
    number: int
    address: str
    replaces: int
    def __init__(self, group: _Optional[int] = ..., number: _Optional[int] = ..., address: _Optional[str] = ..., replaces: _Optional[int] = ...) -> None: ...

class AddMemberResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemoveMemberRequest(_message.Message):
    __slots__ = ("group", "number")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    group: int
    number: int
    def __init__(self, group: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class RemoveMemberResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RejoinMemberRequest(_message.Message):
    __slots__ = ("group", "address", "life")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    group: int
    address: str
    life: int
    def __init__(self, group: _Optional[int] = ..., address: _Optional[str] = ..., life: _Optional[int] = ...) -> None: ...

class RejoinMemberResponse(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...
