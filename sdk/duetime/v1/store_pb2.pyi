from duetime.v1 import consumer_pb2 as _consumer_pb2
from duetime.v1 import export_pb2 as _export_pb2
from duetime.v1 import gateway_pb2 as _gateway_pb2
from duetime.v1 import leases_pb2 as _leases_pb2
from duetime.v1 import message_pb2 as _message_pb2
from duetime.v1 import pending_pb2 as _pending_pb2
from duetime.v1 import schedules_pb2 as _schedules_pb2
from duetime.v1 import subscriptions_pb2 as _subscriptions_pb2
from duetime.v1 import transactions_pb2 as _transactions_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PutStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PUT_STATUS_OK: _ClassVar[PutStatus]
    PUT_STATUS_DUPLICATE: _ClassVar[PutStatus]
    PUT_STATUS_GAP: _ClassVar[PutStatus]
    PUT_STATUS_NOT_DUE: _ClassVar[PutStatus]
    PUT_STATUS_REFUSED: _ClassVar[PutStatus]
    PUT_STATUS_SETTLED: _ClassVar[PutStatus]
    PUT_STATUS_CANCELLED: _ClassVar[PutStatus]

class DeletionStage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DELETION_STAGE_UNSPECIFIED: _ClassVar[DeletionStage]
    DELETION_STAGE_CLOSE: _ClassVar[DeletionStage]
    DELETION_STAGE_OPEN: _ClassVar[DeletionStage]
    DELETION_STAGE_DELETE: _ClassVar[DeletionStage]

class ScheduleChange(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCHEDULE_CHANGE_UNSPECIFIED: _ClassVar[ScheduleChange]
    SCHEDULE_CHANGE_PAUSE: _ClassVar[ScheduleChange]
    SCHEDULE_CHANGE_RESUME: _ClassVar[ScheduleChange]
    SCHEDULE_CHANGE_DELETE: _ClassVar[ScheduleChange]
    SCHEDULE_CHANGE_RUN: _ClassVar[ScheduleChange]
PUT_STATUS_OK: PutStatus
PUT_STATUS_DUPLICATE: PutStatus
PUT_STATUS_GAP: PutStatus
PUT_STATUS_NOT_DUE: PutStatus
PUT_STATUS_REFUSED: PutStatus
PUT_STATUS_SETTLED: PutStatus
PUT_STATUS_CANCELLED: PutStatus
DELETION_STAGE_UNSPECIFIED: DeletionStage
DELETION_STAGE_CLOSE: DeletionStage
DELETION_STAGE_OPEN: DeletionStage
DELETION_STAGE_DELETE: DeletionStage
SCHEDULE_CHANGE_UNSPECIFIED: ScheduleChange
SCHEDULE_CHANGE_PAUSE: ScheduleChange
SCHEDULE_CHANGE_RESUME: ScheduleChange
SCHEDULE_CHANGE_DELETE: ScheduleChange
SCHEDULE_CHANGE_RUN: ScheduleChange

class PutRequest(_message.Message):
    __slots__ = ("records", "batches", "number")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    batches: _containers.RepeatedScalarFieldContainer[int]
    number: int
    def __init__(self, records: _Optional[bytes] = ..., batches: _Optional[_Iterable[int]] = ..., number: _Optional[int] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("statuses", "queue_offsets", "due_at_ms", "faults", "stored_at_ms", "duplicate_queues", "duplicate_lanes", "past", "number", "fault")
    class FaultsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: _message_pb2.Fault
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[_message_pb2.Fault, _Mapping]] = ...) -> None: ...
    class DuplicateQueuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class DuplicateLanesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_LANES_FIELD_NUMBER: _ClassVar[int]
    PAST_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[PutStatus]
    queue_offsets: _containers.RepeatedScalarFieldContainer[int]
    due_at_ms: _containers.RepeatedScalarFieldContainer[int]
    faults: _containers.MessageMap[int, _message_pb2.Fault]
    stored_at_ms: int
    duplicate_queues: _containers.ScalarMap[int, int]
    duplicate_lanes: _containers.ScalarMap[int, int]
    past: _containers.RepeatedScalarFieldContainer[int]
    number: int
    fault: _message_pb2.Fault
    def __init__(self, statuses: _Optional[_Iterable[_Union[PutStatus, str]]] = ..., queue_offsets: _Optional[_Iterable[int]] = ..., due_at_ms: _Optional[_Iterable[int]] = ..., faults: _Optional[_Mapping[int, _message_pb2.Fault]] = ..., stored_at_ms: _Optional[int] = ..., duplicate_queues: _Optional[_Mapping[int, int]] = ..., duplicate_lanes: _Optional[_Mapping[int, int]] = ..., past: _Optional[_Iterable[int]] = ..., number: _Optional[int] = ..., fault: _Optional[_Union[_message_pb2.Fault, _Mapping]] = ...) -> None: ...

class RestoreRequest(_message.Message):
    __slots__ = ("records", "lane", "first_entry", "entries", "kept_count")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    KEPT_COUNT_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    lane: int
    first_entry: int
    entries: _containers.RepeatedScalarFieldContainer[int]
    kept_count: int
    def __init__(self, records: _Optional[bytes] = ..., lane: _Optional[int] = ..., first_entry: _Optional[int] = ..., entries: _Optional[_Iterable[int]] = ..., kept_count: _Optional[int] = ...) -> None: ...

class RestoreResponse(_message.Message):
    __slots__ = ("statuses", "queue_offsets", "faults", "stored_at_ms", "watermark")
    class FaultsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: _message_pb2.Fault
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[_message_pb2.Fault, _Mapping]] = ...) -> None: ...
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[PutStatus]
    queue_offsets: _containers.RepeatedScalarFieldContainer[int]
    faults: _containers.MessageMap[int, _message_pb2.Fault]
    stored_at_ms: int
    watermark: int
    def __init__(self, statuses: _Optional[_Iterable[_Union[PutStatus, str]]] = ..., queue_offsets: _Optional[_Iterable[int]] = ..., faults: _Optional[_Mapping[int, _message_pb2.Fault]] = ..., stored_at_ms: _Optional[int] = ..., watermark: _Optional[int] = ...) -> None: ...

class SettleRequest(_message.Message):
    __slots__ = ("records", "settles")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SETTLES_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    settles: _containers.RepeatedCompositeFieldContainer[Settle]
    def __init__(self, records: _Optional[bytes] = ..., settles: _Optional[_Iterable[_Union[Settle, _Mapping]]] = ...) -> None: ...

class SettleResponse(_message.Message):
    __slots__ = ("statuses", "queue_offsets", "due_at_ms", "faults", "stored_at_ms")
    class FaultsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: _message_pb2.Fault
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[_message_pb2.Fault, _Mapping]] = ...) -> None: ...
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[PutStatus]
    queue_offsets: _containers.RepeatedScalarFieldContainer[int]
    due_at_ms: _containers.RepeatedScalarFieldContainer[int]
    faults: _containers.MessageMap[int, _message_pb2.Fault]
    stored_at_ms: int
    def __init__(self, statuses: _Optional[_Iterable[_Union[PutStatus, str]]] = ..., queue_offsets: _Optional[_Iterable[int]] = ..., due_at_ms: _Optional[_Iterable[int]] = ..., faults: _Optional[_Mapping[int, _message_pb2.Fault]] = ..., stored_at_ms: _Optional[int] = ...) -> None: ...

class Settle(_message.Message):
    __slots__ = ("record", "receipt", "dead_letter", "group")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    record: int
    receipt: bytes
    dead_letter: DeadLetterPlace
    group: str
    def __init__(self, record: _Optional[int] = ..., receipt: _Optional[bytes] = ..., dead_letter: _Optional[_Union[DeadLetterPlace, _Mapping]] = ..., group: _Optional[str] = ...) -> None: ...

class DeadLetterPlace(_message.Message):
    __slots__ = ("topic", "queue", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class PullDueRequest(_message.Message):
    __slots__ = ("lane", "max_count", "max_bytes", "wait_ms", "ahead_ms", "scheduler", "without_lease", "next", "may_keep")
    LANE_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    AHEAD_MS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_LEASE_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    MAY_KEEP_FIELD_NUMBER: _ClassVar[int]
    lane: int
    max_count: int
    max_bytes: int
    wait_ms: int
    ahead_ms: int
    scheduler: str
    without_lease: bool
    next: bytes
    may_keep: bool
    def __init__(self, lane: _Optional[int] = ..., max_count: _Optional[int] = ..., max_bytes: _Optional[int] = ..., wait_ms: _Optional[int] = ..., ahead_ms: _Optional[int] = ..., scheduler: _Optional[str] = ..., without_lease: bool = ..., next: _Optional[bytes] = ..., may_keep: bool = ...) -> None: ...

class StandInRequest(_message.Message):
    __slots__ = ("scheduler", "serving", "unasked_ms", "ahead_ms", "paused", "pauses_are_new")
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    UNASKED_MS_FIELD_NUMBER: _ClassVar[int]
    AHEAD_MS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    PAUSES_ARE_NEW_FIELD_NUMBER: _ClassVar[int]
    scheduler: str
    serving: _containers.RepeatedScalarFieldContainer[int]
    unasked_ms: int
    ahead_ms: int
    paused: _containers.RepeatedScalarFieldContainer[int]
    pauses_are_new: bool
    def __init__(self, scheduler: _Optional[str] = ..., serving: _Optional[_Iterable[int]] = ..., unasked_ms: _Optional[int] = ..., ahead_ms: _Optional[int] = ..., paused: _Optional[_Iterable[int]] = ..., pauses_are_new: bool = ...) -> None: ...

class StandInResponse(_message.Message):
    __slots__ = ("take", "leave")
    TAKE_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    take: _containers.RepeatedScalarFieldContainer[int]
    leave: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, take: _Optional[_Iterable[int]] = ..., leave: _Optional[_Iterable[int]] = ...) -> None: ...

class PullDueResponse(_message.Message):
    __slots__ = ("first_entry", "records", "sizes", "due_at_ms", "watermark", "damages", "damaged_positions", "entries", "next", "kept_count")
    class DamagesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    class DamagedPositionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    FIRST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    DAMAGES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    KEPT_COUNT_FIELD_NUMBER: _ClassVar[int]
    first_entry: int
    records: bytes
    sizes: _containers.RepeatedScalarFieldContainer[int]
    due_at_ms: _containers.RepeatedScalarFieldContainer[int]
    watermark: int
    damages: _containers.ScalarMap[int, str]
    damaged_positions: _containers.ScalarMap[int, int]
    entries: _containers.RepeatedScalarFieldContainer[int]
    next: bytes
    kept_count: int
    def __init__(self, first_entry: _Optional[int] = ..., records: _Optional[bytes] = ..., sizes: _Optional[_Iterable[int]] = ..., due_at_ms: _Optional[_Iterable[int]] = ..., watermark: _Optional[int] = ..., damages: _Optional[_Mapping[int, str]] = ..., damaged_positions: _Optional[_Mapping[int, int]] = ..., entries: _Optional[_Iterable[int]] = ..., next: _Optional[bytes] = ..., kept_count: _Optional[int] = ...) -> None: ...

class ReplaceRequest(_message.Message):
    __slots__ = ("replacements",)
    REPLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    replacements: _containers.RepeatedCompositeFieldContainer[Replacement]
    def __init__(self, replacements: _Optional[_Iterable[_Union[Replacement, _Mapping]]] = ...) -> None: ...

class Replacement(_message.Message):
    __slots__ = ("message", "record", "reschedule", "max_wait_ms")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    RESCHEDULE_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    message: _pending_pb2.PendingRef
    record: bytes
    reschedule: _pending_pb2.Reschedule
    max_wait_ms: int
    def __init__(self, message: _Optional[_Union[_pending_pb2.PendingRef, _Mapping]] = ..., record: _Optional[bytes] = ..., reschedule: _Optional[_Union[_pending_pb2.Reschedule, _Mapping]] = ..., max_wait_ms: _Optional[int] = ...) -> None: ...

class ReplaceResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ReplaceResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ReplaceResult, _Mapping]]] = ...) -> None: ...

class ReplaceResult(_message.Message):
    __slots__ = ("status", "lane", "entry", "due_at_ms", "was_past", "replaced_id", "duplicate", "stored_bytes", "fault")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    WAS_PAST_FIELD_NUMBER: _ClassVar[int]
    REPLACED_ID_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    status: _pending_pb2.RescheduleStatus
    lane: int
    entry: int
    due_at_ms: int
    was_past: bool
    replaced_id: str
    duplicate: bool
    stored_bytes: int
    fault: _message_pb2.Fault
    def __init__(self, status: _Optional[_Union[_pending_pb2.RescheduleStatus, str]] = ..., lane: _Optional[int] = ..., entry: _Optional[int] = ..., due_at_ms: _Optional[int] = ..., was_past: bool = ..., replaced_id: _Optional[str] = ..., duplicate: bool = ..., stored_bytes: _Optional[int] = ..., fault: _Optional[_Union[_message_pb2.Fault, _Mapping]] = ...) -> None: ...

class Half(_message.Message):
    __slots__ = ("offset", "position")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    offset: int
    position: int
    def __init__(self, offset: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...

class PrepareRecordsRequest(_message.Message):
    __slots__ = ("records", "callers", "counts")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    CALLERS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    callers: _containers.RepeatedScalarFieldContainer[str]
    counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, records: _Optional[bytes] = ..., callers: _Optional[_Iterable[str]] = ..., counts: _Optional[_Iterable[int]] = ...) -> None: ...

class PrepareRecordsResponse(_message.Message):
    __slots__ = ("statuses", "offsets", "positions", "check_at_ms", "faults")
    class FaultsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: _message_pb2.Fault
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[_message_pb2.Fault, _Mapping]] = ...) -> None: ...
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    CHECK_AT_MS_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[PutStatus]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    check_at_ms: _containers.RepeatedScalarFieldContainer[int]
    faults: _containers.MessageMap[int, _message_pb2.Fault]
    def __init__(self, statuses: _Optional[_Iterable[_Union[PutStatus, str]]] = ..., offsets: _Optional[_Iterable[int]] = ..., positions: _Optional[_Iterable[int]] = ..., check_at_ms: _Optional[_Iterable[int]] = ..., faults: _Optional[_Mapping[int, _message_pb2.Fault]] = ...) -> None: ...

class EndTransactionsRequest(_message.Message):
    __slots__ = ("group", "offsets", "positions", "message_ids", "decisions", "given_up")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    group: str
    offsets: _containers.RepeatedScalarFieldContainer[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    message_ids: _containers.RepeatedScalarFieldContainer[bytes]
    decisions: _containers.RepeatedScalarFieldContainer[_transactions_pb2.Decision]
    given_up: bool
    def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[int]] = ..., positions: _Optional[_Iterable[int]] = ..., message_ids: _Optional[_Iterable[bytes]] = ..., decisions: _Optional[_Iterable[_Union[_transactions_pb2.Decision, str]]] = ..., given_up: bool = ...) -> None: ...

class EndTransactionsResponse(_message.Message):
    __slots__ = ("states", "offsets", "queues", "topic_of", "topics", "others")
    class OthersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: _transactions_pb2.EndTransactionResult
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[_transactions_pb2.EndTransactionResult, _Mapping]] = ...) -> None: ...
    STATES_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    TOPIC_OF_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[_transactions_pb2.TransactionState]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    queues: _containers.RepeatedScalarFieldContainer[int]
    topic_of: _containers.RepeatedScalarFieldContainer[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    others: _containers.MessageMap[int, _transactions_pb2.EndTransactionResult]
    def __init__(self, states: _Optional[_Iterable[_Union[_transactions_pb2.TransactionState, str]]] = ..., offsets: _Optional[_Iterable[int]] = ..., queues: _Optional[_Iterable[int]] = ..., topic_of: _Optional[_Iterable[int]] = ..., topics: _Optional[_Iterable[str]] = ..., others: _Optional[_Mapping[int, _transactions_pb2.EndTransactionResult]] = ...) -> None: ...

class TakeChecksRequest(_message.Message):
    __slots__ = ("gateway", "groups", "max_count", "wait_ms")
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    gateway: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    max_count: int
    wait_ms: int
    def __init__(self, gateway: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ..., max_count: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class TakenCheck(_message.Message):
    __slots__ = ("half", "group", "checks", "record")
    HALF_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    half: Half
    group: str
    checks: int
    record: bytes
    def __init__(self, half: _Optional[_Union[Half, _Mapping]] = ..., group: _Optional[str] = ..., checks: _Optional[int] = ..., record: _Optional[bytes] = ...) -> None: ...

class TakeChecksResponse(_message.Message):
    __slots__ = ("checks",)
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    checks: _containers.RepeatedCompositeFieldContainer[TakenCheck]
    def __init__(self, checks: _Optional[_Iterable[_Union[TakenCheck, _Mapping]]] = ...) -> None: ...

class ReportChecksRequest(_message.Message):
    __slots__ = ("heard", "unheard")
    HEARD_FIELD_NUMBER: _ClassVar[int]
    UNHEARD_FIELD_NUMBER: _ClassVar[int]
    heard: _containers.RepeatedScalarFieldContainer[int]
    unheard: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, heard: _Optional[_Iterable[int]] = ..., unheard: _Optional[_Iterable[int]] = ...) -> None: ...

class ReportChecksResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListHalvesResponse(_message.Message):
    __slots__ = ("halves", "next_page_token")
    HALVES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    halves: _containers.RepeatedCompositeFieldContainer[HalfTransaction]
    next_page_token: str
    def __init__(self, halves: _Optional[_Iterable[_Union[HalfTransaction, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class HalfTransaction(_message.Message):
    __slots__ = ("half", "transaction")
    HALF_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    half: Half
    transaction: _transactions_pb2.Transaction
    def __init__(self, half: _Optional[_Union[Half, _Mapping]] = ..., transaction: _Optional[_Union[_transactions_pb2.Transaction, _Mapping]] = ...) -> None: ...

class GetHalfRequest(_message.Message):
    __slots__ = ("half", "message_id", "topic")
    HALF_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    half: Half
    message_id: str
    topic: str
    def __init__(self, half: _Optional[_Union[Half, _Mapping]] = ..., message_id: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class GetHalfResponse(_message.Message):
    __slots__ = ("half", "record", "sent")
    HALF_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    half: HalfTransaction
    record: bytes
    sent: _message_pb2.SendResult
    def __init__(self, half: _Optional[_Union[HalfTransaction, _Mapping]] = ..., record: _Optional[bytes] = ..., sent: _Optional[_Union[_message_pb2.SendResult, _Mapping]] = ...) -> None: ...

class GetRecordRequest(_message.Message):
    __slots__ = ("topic", "queue", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class GetRecordResponse(_message.Message):
    __slots__ = ("record",)
    RECORD_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    def __init__(self, record: _Optional[bytes] = ...) -> None: ...

class PutTopicRequest(_message.Message):
    __slots__ = ("name", "queue_count", "message_type", "generation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    queue_count: int
    message_type: _gateway_pb2.TopicType
    generation: int
    def __init__(self, name: _Optional[str] = ..., queue_count: _Optional[int] = ..., message_type: _Optional[_Union[_gateway_pb2.TopicType, str]] = ..., generation: _Optional[int] = ...) -> None: ...

class PutTopicResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PutTopicsRequest(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[PutTopicRequest]
    def __init__(self, topics: _Optional[_Iterable[_Union[PutTopicRequest, _Mapping]]] = ...) -> None: ...

class PutTopicsResponse(_message.Message):
    __slots__ = ("faults",)
    class FaultsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: _message_pb2.Fault
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[_message_pb2.Fault, _Mapping]] = ...) -> None: ...
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    faults: _containers.MessageMap[int, _message_pb2.Fault]
    def __init__(self, faults: _Optional[_Mapping[int, _message_pb2.Fault]] = ...) -> None: ...

class OpenLiteTopicsRequest(_message.Message):
    __slots__ = ("topic", "lite_topics")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    lite_topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[str] = ..., lite_topics: _Optional[_Iterable[str]] = ...) -> None: ...

class OpenLiteTopicsResponse(_message.Message):
    __slots__ = ("faults", "keep_ms")
    class FaultsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: _message_pb2.Fault
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[_message_pb2.Fault, _Mapping]] = ...) -> None: ...
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    KEEP_MS_FIELD_NUMBER: _ClassVar[int]
    faults: _containers.MessageMap[int, _message_pb2.Fault]
    keep_ms: int
    def __init__(self, faults: _Optional[_Mapping[int, _message_pb2.Fault]] = ..., keep_ms: _Optional[int] = ...) -> None: ...

class DeleteStoredTopicRequest(_message.Message):
    __slots__ = ("name", "generation", "stage")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    generation: int
    stage: DeletionStage
    def __init__(self, name: _Optional[str] = ..., generation: _Optional[int] = ..., stage: _Optional[_Union[DeletionStage, str]] = ...) -> None: ...

class DeleteStoredTopicResponse(_message.Message):
    __slots__ = ("pending_count", "groups", "deleted_generation", "message_count")
    PENDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    DELETED_GENERATION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    pending_count: int
    groups: _containers.RepeatedCompositeFieldContainer[_gateway_pb2.TopicGroup]
    deleted_generation: int
    message_count: int
    def __init__(self, pending_count: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[_gateway_pb2.TopicGroup, _Mapping]]] = ..., deleted_generation: _Optional[int] = ..., message_count: _Optional[int] = ...) -> None: ...

class ListQueuesRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class QueueState(_message.Message):
    __slots__ = ("topic", "queue", "min_offset", "max_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    min_offset: int
    max_offset: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ...) -> None: ...

class ListQueuesResponse(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueState]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueState, _Mapping]]] = ...) -> None: ...

class ListStoredTopicsRequest(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class StoredTopic(_message.Message):
    __slots__ = ("name", "read_queue_count", "write_queue_count", "perm", "message_type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PERM_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    read_queue_count: int
    write_queue_count: int
    perm: int
    message_type: _gateway_pb2.TopicType
    def __init__(self, name: _Optional[str] = ..., read_queue_count: _Optional[int] = ..., write_queue_count: _Optional[int] = ..., perm: _Optional[int] = ..., message_type: _Optional[_Union[_gateway_pb2.TopicType, str]] = ...) -> None: ...

class ListStoredTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[StoredTopic]
    def __init__(self, topics: _Optional[_Iterable[_Union[StoredTopic, _Mapping]]] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("shard", "store_host", "delay_levels_ms", "segment_bytes", "read_only", "now_ms", "min_position", "max_position", "refusal", "timer_lane_count")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    DELAY_LEVELS_MS_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    MIN_POSITION_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITION_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    TIMER_LANE_COUNT_FIELD_NUMBER: _ClassVar[int]
    shard: int
    store_host: bytes
    delay_levels_ms: _containers.RepeatedScalarFieldContainer[int]
    segment_bytes: int
    read_only: bool
    now_ms: int
    min_position: int
    max_position: int
    refusal: str
    timer_lane_count: int
    def __init__(self, shard: _Optional[int] = ..., store_host: _Optional[bytes] = ..., delay_levels_ms: _Optional[_Iterable[int]] = ..., segment_bytes: _Optional[int] = ..., read_only: bool = ..., now_ms: _Optional[int] = ..., min_position: _Optional[int] = ..., max_position: _Optional[int] = ..., refusal: _Optional[str] = ..., timer_lane_count: _Optional[int] = ...) -> None: ...

class AwaitMessagesResponse(_message.Message):
    __slots__ = ("ready",)
    READY_FIELD_NUMBER: _ClassVar[int]
    ready: bool
    def __init__(self, ready: bool = ...) -> None: ...

class GetLeasedRequest(_message.Message):
    __slots__ = ("group", "receipts")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    group: str
    receipts: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, group: _Optional[str] = ..., receipts: _Optional[_Iterable[bytes]] = ...) -> None: ...

class LeasedRecord(_message.Message):
    __slots__ = ("status", "receipt", "group", "record", "attempt", "received_at_ms", "expired", "history", "ordered", "max_attempts", "topic", "queue", "offset")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    status: _consumer_pb2.ReceiptStatus
    receipt: bytes
    group: str
    record: bytes
    attempt: int
    received_at_ms: int
    expired: _containers.RepeatedScalarFieldContainer[int]
    history: bytes
    ordered: bool
    max_attempts: int
    topic: str
    queue: int
    offset: int
    def __init__(self, status: _Optional[_Union[_consumer_pb2.ReceiptStatus, str]] = ..., receipt: _Optional[bytes] = ..., group: _Optional[str] = ..., record: _Optional[bytes] = ..., attempt: _Optional[int] = ..., received_at_ms: _Optional[int] = ..., expired: _Optional[_Iterable[int]] = ..., history: _Optional[bytes] = ..., ordered: bool = ..., max_attempts: _Optional[int] = ..., topic: _Optional[str] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class GetLeasedResponse(_message.Message):
    __slots__ = ("leased", "now_ms")
    LEASED_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    leased: _containers.RepeatedCompositeFieldContainer[LeasedRecord]
    now_ms: int
    def __init__(self, leased: _Optional[_Iterable[_Union[LeasedRecord, _Mapping]]] = ..., now_ms: _Optional[int] = ...) -> None: ...

class TakeExhaustedRequest(_message.Message):
    __slots__ = ("max_count", "wait_ms", "invisible_ms")
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
    max_count: int
    wait_ms: int
    invisible_ms: int
    def __init__(self, max_count: _Optional[int] = ..., wait_ms: _Optional[int] = ..., invisible_ms: _Optional[int] = ...) -> None: ...

class Deferral(_message.Message):
    __slots__ = ("receipt", "delay_ms", "history")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    receipt: bytes
    delay_ms: int
    history: bytes
    def __init__(self, receipt: _Optional[bytes] = ..., delay_ms: _Optional[int] = ..., history: _Optional[bytes] = ...) -> None: ...

class DeferRequest(_message.Message):
    __slots__ = ("group", "deferrals")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    DEFERRALS_FIELD_NUMBER: _ClassVar[int]
    group: str
    deferrals: _containers.RepeatedCompositeFieldContainer[Deferral]
    def __init__(self, group: _Optional[str] = ..., deferrals: _Optional[_Iterable[_Union[Deferral, _Mapping]]] = ...) -> None: ...

class DeferResponse(_message.Message):
    __slots__ = ("statuses", "deliver_at_ms")
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[_consumer_pb2.ReceiptStatus]
    deliver_at_ms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, statuses: _Optional[_Iterable[_Union[_consumer_pb2.ReceiptStatus, str]]] = ..., deliver_at_ms: _Optional[_Iterable[int]] = ...) -> None: ...

class PutGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RateLoan(_message.Message):
    __slots__ = ("shard", "parts")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    shard: int
    parts: int
    def __init__(self, shard: _Optional[int] = ..., parts: _Optional[int] = ...) -> None: ...

class RateShareRequest(_message.Message):
    __slots__ = ("group", "topic", "shard_count", "lent", "borrowed", "asked_at_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SHARD_COUNT_FIELD_NUMBER: _ClassVar[int]
    LENT_FIELD_NUMBER: _ClassVar[int]
    BORROWED_FIELD_NUMBER: _ClassVar[int]
    ASKED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    shard_count: int
    lent: _containers.RepeatedCompositeFieldContainer[RateLoan]
    borrowed: _containers.RepeatedCompositeFieldContainer[RateLoan]
    asked_at_ms: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., shard_count: _Optional[int] = ..., lent: _Optional[_Iterable[_Union[RateLoan, _Mapping]]] = ..., borrowed: _Optional[_Iterable[_Union[RateLoan, _Mapping]]] = ..., asked_at_ms: _Optional[int] = ...) -> None: ...

class ShareRatesRequest(_message.Message):
    __slots__ = ("shares",)
    SHARES_FIELD_NUMBER: _ClassVar[int]
    shares: _containers.RepeatedCompositeFieldContainer[RateShareRequest]
    def __init__(self, shares: _Optional[_Iterable[_Union[RateShareRequest, _Mapping]]] = ...) -> None: ...

class RateShareState(_message.Message):
    __slots__ = ("is_known", "wanted_parts", "lent")
    IS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    WANTED_PARTS_FIELD_NUMBER: _ClassVar[int]
    LENT_FIELD_NUMBER: _ClassVar[int]
    is_known: bool
    wanted_parts: int
    lent: _containers.RepeatedCompositeFieldContainer[RateLoan]
    def __init__(self, is_known: bool = ..., wanted_parts: _Optional[int] = ..., lent: _Optional[_Iterable[_Union[RateLoan, _Mapping]]] = ...) -> None: ...

class ShareRatesResponse(_message.Message):
    __slots__ = ("shares", "now_ms")
    SHARES_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    shares: _containers.RepeatedCompositeFieldContainer[RateShareState]
    now_ms: int
    def __init__(self, shares: _Optional[_Iterable[_Union[RateShareState, _Mapping]]] = ..., now_ms: _Optional[int] = ...) -> None: ...

class PullDeadLettersRequest(_message.Message):
    __slots__ = ("topic", "queue", "offset", "max_count", "max_bytes", "before_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    BEFORE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    offset: int
    max_count: int
    max_bytes: int
    before_offset: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ..., max_count: _Optional[int] = ..., max_bytes: _Optional[int] = ..., before_offset: _Optional[int] = ...) -> None: ...

class PullDeadLettersResponse(_message.Message):
    __slots__ = ("records", "offsets", "next_offset", "max_offset")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    offsets: _containers.RepeatedScalarFieldContainer[int]
    next_offset: int
    max_offset: int
    def __init__(self, records: _Optional[bytes] = ..., offsets: _Optional[_Iterable[int]] = ..., next_offset: _Optional[int] = ..., max_offset: _Optional[int] = ...) -> None: ...

class DropDeadLettersRequest(_message.Message):
    __slots__ = ("letters",)
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    letters: _containers.RepeatedCompositeFieldContainer[DeadLetterPlace]
    def __init__(self, letters: _Optional[_Iterable[_Union[DeadLetterPlace, _Mapping]]] = ...) -> None: ...

class EndStoredRetriesRequest(_message.Message):
    __slots__ = ("group", "lanes", "entries", "discard")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    DISCARD_FIELD_NUMBER: _ClassVar[int]
    group: str
    lanes: _containers.RepeatedScalarFieldContainer[int]
    entries: _containers.RepeatedScalarFieldContainer[int]
    discard: bool
    def __init__(self, group: _Optional[str] = ..., lanes: _Optional[_Iterable[int]] = ..., entries: _Optional[_Iterable[int]] = ..., discard: bool = ...) -> None: ...

class EndStoredRetriesResponse(_message.Message):
    __slots__ = ("ended_count", "gone_count", "fault")
    ENDED_COUNT_FIELD_NUMBER: _ClassVar[int]
    GONE_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    ended_count: int
    gone_count: int
    fault: _message_pb2.Fault
    def __init__(self, ended_count: _Optional[int] = ..., gone_count: _Optional[int] = ..., fault: _Optional[_Union[_message_pb2.Fault, _Mapping]] = ...) -> None: ...

class DropDeadLettersResponse(_message.Message):
    __slots__ = ("dropped",)
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    dropped: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, dropped: _Optional[_Iterable[bool]] = ...) -> None: ...

class PutStoredScheduleRequest(_message.Message):
    __slots__ = ("record", "schedule", "create_only")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    CREATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    schedule: _schedules_pb2.Schedule
    create_only: bool
    def __init__(self, record: _Optional[bytes] = ..., schedule: _Optional[_Union[_schedules_pb2.Schedule, _Mapping]] = ..., create_only: bool = ...) -> None: ...

class PutStoredSchedulesRequest(_message.Message):
    __slots__ = ("puts",)
    PUTS_FIELD_NUMBER: _ClassVar[int]
    puts: _containers.RepeatedCompositeFieldContainer[PutStoredScheduleRequest]
    def __init__(self, puts: _Optional[_Iterable[_Union[PutStoredScheduleRequest, _Mapping]]] = ...) -> None: ...

class ChangeScheduleRequest(_message.Message):
    __slots__ = ("topic", "name", "change", "request_id", "next_count")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_COUNT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    name: str
    change: ScheduleChange
    request_id: str
    next_count: int
    def __init__(self, topic: _Optional[str] = ..., name: _Optional[str] = ..., change: _Optional[_Union[ScheduleChange, str]] = ..., request_id: _Optional[str] = ..., next_count: _Optional[int] = ...) -> None: ...

class ChangeScheduleResponse(_message.Message):
    __slots__ = ("schedule", "message_id")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    schedule: _schedules_pb2.Schedule
    message_id: str
    def __init__(self, schedule: _Optional[_Union[_schedules_pb2.Schedule, _Mapping]] = ..., message_id: _Optional[str] = ...) -> None: ...
