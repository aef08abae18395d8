from duetime.v1 import backlog_pb2 as _backlog_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetReportsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetReportsResponse(_message.Message):
    __slots__ = ("backlog", "lateness", "audit", "unreachable_shards")
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    LATENESS_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_SHARDS_FIELD_NUMBER: _ClassVar[int]
    backlog: _backlog_pb2.GetBacklogReportResponse
    lateness: LatenessReport
    audit: AuditReport
    unreachable_shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, backlog: _Optional[_Union[_backlog_pb2.GetBacklogReportResponse, _Mapping]] = ..., lateness: _Optional[_Union[LatenessReport, _Mapping]] = ..., audit: _Optional[_Union[AuditReport, _Mapping]] = ..., unreachable_shards: _Optional[_Iterable[int]] = ...) -> None: ...

class ReportOrigin(_message.Message):
    __slots__ = ("created_at_ms", "sources", "snapshot_id", "snapshots", "damage_count")
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    created_at_ms: int
    sources: _containers.RepeatedScalarFieldContainer[str]
    snapshot_id: str
    snapshots: _containers.RepeatedCompositeFieldContainer[_backlog_pb2.SnapshotMoment]
    damage_count: int
    def __init__(self, created_at_ms: _Optional[int] = ..., sources: _Optional[_Iterable[str]] = ..., snapshot_id: _Optional[str] = ..., snapshots: _Optional[_Iterable[_Union[_backlog_pb2.SnapshotMoment, _Mapping]]] = ..., damage_count: _Optional[int] = ...) -> None: ...

class LatenessReport(_message.Message):
    __slots__ = ("origin", "late_ms", "count", "p50_ms", "p99_ms", "p999_ms", "max_ms", "early_count", "late_count", "late_accept", "late_scan", "late_consumer", "undated_count")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    LATE_MS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    P50_MS_FIELD_NUMBER: _ClassVar[int]
    P99_MS_FIELD_NUMBER: _ClassVar[int]
    P999_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_MS_FIELD_NUMBER: _ClassVar[int]
    EARLY_COUNT_FIELD_NUMBER: _ClassVar[int]
    LATE_COUNT_FIELD_NUMBER: _ClassVar[int]
    LATE_ACCEPT_FIELD_NUMBER: _ClassVar[int]
    LATE_SCAN_FIELD_NUMBER: _ClassVar[int]
    LATE_CONSUMER_FIELD_NUMBER: _ClassVar[int]
    UNDATED_COUNT_FIELD_NUMBER: _ClassVar[int]
    origin: ReportOrigin
    late_ms: int
    count: int
    p50_ms: int
    p99_ms: int
    p999_ms: int
    max_ms: int
    early_count: int
    late_count: int
    late_accept: int
    late_scan: int
    late_consumer: int
    undated_count: int
    def __init__(self, origin: _Optional[_Union[ReportOrigin, _Mapping]] = ..., late_ms: _Optional[int] = ..., count: _Optional[int] = ..., p50_ms: _Optional[int] = ..., p99_ms: _Optional[int] = ..., p999_ms: _Optional[int] = ..., max_ms: _Optional[int] = ..., early_count: _Optional[int] = ..., late_count: _Optional[int] = ..., late_accept: _Optional[int] = ..., late_scan: _Optional[int] = ..., late_consumer: _Optional[int] = ..., undated_count: _Optional[int] = ...) -> None: ...

class AuditReport(_message.Message):
    __slots__ = ("origin", "is_proven", "accepted", "expired", "pending", "restored", "dead", "cancelled", "replaced", "missing", "early", "violations", "transactions", "lanes", "live_count", "drift")
    class ViolationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    IS_PROVEN_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    EARLY_FIELD_NUMBER: _ClassVar[int]
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    LIVE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DRIFT_FIELD_NUMBER: _ClassVar[int]
    origin: ReportOrigin
    is_proven: bool
    accepted: int
    expired: int
    pending: int
    restored: int
    dead: int
    cancelled: int
    replaced: int
    missing: int
    early: int
    violations: _containers.ScalarMap[str, int]
    transactions: AuditedTransactions
    lanes: _containers.RepeatedCompositeFieldContainer[_backlog_pb2.LaneDrift]
    live_count: int
    drift: int
    def __init__(self, origin: _Optional[_Union[ReportOrigin, _Mapping]] = ..., is_proven: bool = ..., accepted: _Optional[int] = ..., expired: _Optional[int] = ..., pending: _Optional[int] = ..., restored: _Optional[int] = ..., dead: _Optional[int] = ..., cancelled: _Optional[int] = ..., replaced: _Optional[int] = ..., missing: _Optional[int] = ..., early: _Optional[int] = ..., violations: _Optional[_Mapping[str, int]] = ..., transactions: _Optional[_Union[AuditedTransactions, _Mapping]] = ..., lanes: _Optional[_Iterable[_Union[_backlog_pb2.LaneDrift, _Mapping]]] = ..., live_count: _Optional[int] = ..., drift: _Optional[int] = ...) -> None: ...

class AuditedTransactions(_message.Message):
    __slots__ = ("accepted", "expired", "open", "committed", "rolled_back", "given_up", "ended")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    expired: int
    open: int
    committed: int
    rolled_back: int
    given_up: int
    ended: int
    def __init__(self, accepted: _Optional[int] = ..., expired: _Optional[int] = ..., open: _Optional[int] = ..., committed: _Optional[int] = ..., rolled_back: _Optional[int] = ..., given_up: _Optional[int] = ..., ended: _Optional[int] = ...) -> None: ...
