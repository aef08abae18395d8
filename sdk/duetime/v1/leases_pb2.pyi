from duetime.v1 import consumer_pb2 as _consumer_pb2
from duetime.v1 import message_pb2 as _message_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReceiveStreamRequest(_message.Message):
    __slots__ = ("subscription", "takes", "dropped", "acks")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TAKES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    subscription: _consumer_pb2.ReceiveRequest
    takes: _containers.RepeatedCompositeFieldContainer[Take]
    dropped: _containers.RepeatedScalarFieldContainer[int]
    acks: _containers.RepeatedCompositeFieldContainer[AckLeases]
    def __init__(self, subscription: _Optional[_Union[_consumer_pb2.ReceiveRequest, _Mapping]] = ..., takes: _Optional[_Iterable[_Union[Take, _Mapping]]] = ..., dropped: _Optional[_Iterable[int]] = ..., acks: _Optional[_Iterable[_Union[AckLeases, _Mapping]]] = ...) -> None: ...

class Take(_message.Message):
    __slots__ = ("number", "max_count", "max_bytes", "wait_ms")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    number: int
    max_count: int
    max_bytes: int
    wait_ms: int
    def __init__(self, number: _Optional[int] = ..., max_count: _Optional[int] = ..., max_bytes: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class LeaseOffsets(_message.Message):
    __slots__ = ("lease", "offsets")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    lease: bytes
    offsets: bytes
    def __init__(self, lease: _Optional[bytes] = ..., offsets: _Optional[bytes] = ...) -> None: ...

class AckLeases(_message.Message):
    __slots__ = ("number", "leases")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    number: int
    leases: _containers.RepeatedCompositeFieldContainer[LeaseOffsets]
    def __init__(self, number: _Optional[int] = ..., leases: _Optional[_Iterable[_Union[LeaseOffsets, _Mapping]]] = ...) -> None: ...

class ReceiveStreamResponse(_message.Message):
    __slots__ = ("taken", "acked")
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    taken: _containers.RepeatedCompositeFieldContainer[Taken]
    acked: _containers.RepeatedCompositeFieldContainer[Acked]
    def __init__(self, taken: _Optional[_Iterable[_Union[Taken, _Mapping]]] = ..., acked: _Optional[_Iterable[_Union[Acked, _Mapping]]] = ...) -> None: ...

class LeaseRun(_message.Message):
    __slots__ = ("topic", "queue", "records", "lease", "attempts", "lease_ends_at_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    LEASE_ENDS_AT_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    records: bytes
    lease: LeaseOffsets
    attempts: _containers.RepeatedScalarFieldContainer[int]
    lease_ends_at_ms: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., records: _Optional[bytes] = ..., lease: _Optional[_Union[LeaseOffsets, _Mapping]] = ..., attempts: _Optional[_Iterable[int]] = ..., lease_ends_at_ms: _Optional[int] = ...) -> None: ...

class Taken(_message.Message):
    __slots__ = ("number", "runs", "fault")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    number: int
    runs: _containers.RepeatedCompositeFieldContainer[LeaseRun]
    fault: _message_pb2.Fault
    def __init__(self, number: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[LeaseRun, _Mapping]]] = ..., fault: _Optional[_Union[_message_pb2.Fault, _Mapping]] = ...) -> None: ...

class Acked(_message.Message):
    __slots__ = ("number", "rest", "fault")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    number: int
    rest: _containers.RepeatedCompositeFieldContainer[UnackedOffsets]
    fault: _message_pb2.Fault
    def __init__(self, number: _Optional[int] = ..., rest: _Optional[_Iterable[_Union[UnackedOffsets, _Mapping]]] = ..., fault: _Optional[_Union[_message_pb2.Fault, _Mapping]] = ...) -> None: ...

class UnackedOffsets(_message.Message):
    __slots__ = ("status", "messages")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    status: _consumer_pb2.ReceiptStatus
    messages: LeaseOffsets
    def __init__(self, status: _Optional[_Union[_consumer_pb2.ReceiptStatus, str]] = ..., messages: _Optional[_Union[LeaseOffsets, _Mapping]] = ...) -> None: ...
