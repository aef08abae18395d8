from duetime.v1 import message_pb2 as _message_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Decision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECISION_UNSPECIFIED: _ClassVar[Decision]
    DECISION_COMMIT: _ClassVar[Decision]
    DECISION_ROLLBACK: _ClassVar[Decision]
    DECISION_UNKNOWN: _ClassVar[Decision]

class TransactionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSACTION_STATE_UNSPECIFIED: _ClassVar[TransactionState]
    TRANSACTION_STATE_OPEN: _ClassVar[TransactionState]
    TRANSACTION_STATE_COMMITTED: _ClassVar[TransactionState]
    TRANSACTION_STATE_ROLLED_BACK: _ClassVar[TransactionState]
    TRANSACTION_STATE_GIVEN_UP: _ClassVar[TransactionState]
DECISION_UNSPECIFIED: Decision
DECISION_COMMIT: Decision
DECISION_ROLLBACK: Decision
DECISION_UNKNOWN: Decision
TRANSACTION_STATE_UNSPECIFIED: TransactionState
TRANSACTION_STATE_OPEN: TransactionState
TRANSACTION_STATE_COMMITTED: TransactionState
TRANSACTION_STATE_ROLLED_BACK: TransactionState
TRANSACTION_STATE_GIVEN_UP: TransactionState

class PrepareRequest(_message.Message):
    __slots__ = ("group", "messages", "check_immunity_s")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CHECK_IMMUNITY_S_FIELD_NUMBER: _ClassVar[int]
    group: str
    messages: _containers.RepeatedCompositeFieldContainer[_message_pb2.Message]
    check_immunity_s: int
    def __init__(self, group: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[_message_pb2.Message, _Mapping]]] = ..., check_immunity_s: _Optional[int] = ...) -> None: ...

class PrepareResult(_message.Message):
    __slots__ = ("message_id", "transaction_id", "shard", "check_at_ms", "duplicate", "requested_level", "fault")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    CHECK_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_LEVEL_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    transaction_id: str
    shard: int
    check_at_ms: int
    duplicate: bool
    requested_level: int
    fault: _message_pb2.Fault
    def __init__(self, message_id: _Optional[str] = ..., transaction_id: _Optional[str] = ..., shard: _Optional[int] = ..., check_at_ms: _Optional[int] = ..., duplicate: bool = ..., requested_level: _Optional[int] = ..., fault: _Optional[_Union[_message_pb2.Fault, _Mapping]] = ...) -> None: ...

class PrepareResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[PrepareResult]
    def __init__(self, results: _Optional[_Iterable[_Union[PrepareResult, _Mapping]]] = ...) -> None: ...

class TransactionEnd(_message.Message):
    __slots__ = ("transaction_id", "decision")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    decision: Decision
    def __init__(self, transaction_id: _Optional[str] = ..., decision: _Optional[_Union[Decision, str]] = ...) -> None: ...

class EndTransactionRequest(_message.Message):
    __slots__ = ("group", "ends", "given_up")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    group: str
    ends: _containers.RepeatedCompositeFieldContainer[TransactionEnd]
    given_up: bool
    def __init__(self, group: _Optional[str] = ..., ends: _Optional[_Iterable[_Union[TransactionEnd, _Mapping]]] = ..., given_up: bool = ...) -> None: ...

class EndTransactionResult(_message.Message):
    __slots__ = ("state", "duplicate", "sent", "topic", "fault")
    STATE_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    state: TransactionState
    duplicate: bool
    sent: _message_pb2.SendResult
    topic: str
    fault: _message_pb2.Fault
    def __init__(self, state: _Optional[_Union[TransactionState, str]] = ..., duplicate: bool = ..., sent: _Optional[_Union[_message_pb2.SendResult, _Mapping]] = ..., topic: _Optional[str] = ..., fault: _Optional[_Union[_message_pb2.Fault, _Mapping]] = ...) -> None: ...

class EndTransactionResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[EndTransactionResult]
    def __init__(self, results: _Optional[_Iterable[_Union[EndTransactionResult, _Mapping]]] = ...) -> None: ...

class WatchTransactionsRequest(_message.Message):
    __slots__ = ("group", "ends")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    group: str
    ends: _containers.RepeatedCompositeFieldContainer[TransactionEnd]
    def __init__(self, group: _Optional[str] = ..., ends: _Optional[_Iterable[_Union[TransactionEnd, _Mapping]]] = ...) -> None: ...

class WatchTransactionsResponse(_message.Message):
    __slots__ = ("checks",)
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    checks: _containers.RepeatedCompositeFieldContainer[TransactionCheck]
    def __init__(self, checks: _Optional[_Iterable[_Union[TransactionCheck, _Mapping]]] = ...) -> None: ...

class TransactionCheck(_message.Message):
    __slots__ = ("transaction_id", "message", "number")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    message: _message_pb2.StoredMessage
    number: int
    def __init__(self, transaction_id: _Optional[str] = ..., message: _Optional[_Union[_message_pb2.StoredMessage, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...

class Transaction(_message.Message):
    __slots__ = ("transaction_id", "message_id", "group", "topic", "queue", "shard", "state", "prepared_at_ms", "checks", "next_check_at_ms", "ended_at_ms")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PREPARED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CHECK_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    message_id: str
    group: str
    topic: str
    queue: int
    shard: int
    state: TransactionState
    prepared_at_ms: int
    checks: int
    next_check_at_ms: int
    ended_at_ms: int
    def __init__(self, transaction_id: _Optional[str] = ..., message_id: _Optional[str] = ..., group: _Optional[str] = ..., topic: _Optional[str] = ..., queue: _Optional[int] = ..., shard: _Optional[int] = ..., state: _Optional[_Union[TransactionState, str]] = ..., prepared_at_ms: _Optional[int] = ..., checks: _Optional[int] = ..., next_check_at_ms: _Optional[int] = ..., ended_at_ms: _Optional[int] = ...) -> None: ...

class ListTransactionsRequest(_message.Message):
    __slots__ = ("group", "topic", "state", "prepared_before_ms", "page_size", "page_token")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PREPARED_BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    state: TransactionState
    prepared_before_ms: int
    page_size: int
    page_token: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., state: _Optional[_Union[TransactionState, str]] = ..., prepared_before_ms: _Optional[int] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListTransactionsResponse(_message.Message):
    __slots__ = ("transactions", "next_page_token", "unreachable_shards")
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_SHARDS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[Transaction]
    next_page_token: str
    unreachable_shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, transactions: _Optional[_Iterable[_Union[Transaction, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., unreachable_shards: _Optional[_Iterable[int]] = ...) -> None: ...

class GetTransactionRequest(_message.Message):
    __slots__ = ("id", "topic")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    id: str
    topic: str
    def __init__(self, id: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class GetTransactionResponse(_message.Message):
    __slots__ = ("transaction", "message", "sent")
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    transaction: Transaction
    message: _message_pb2.StoredMessage
    sent: _message_pb2.SendResult
    def __init__(self, transaction: _Optional[_Union[Transaction, _Mapping]] = ..., message: _Optional[_Union[_message_pb2.StoredMessage, _Mapping]] = ..., sent: _Optional[_Union[_message_pb2.SendResult, _Mapping]] = ...) -> None: ...
