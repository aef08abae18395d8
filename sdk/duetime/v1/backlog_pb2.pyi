from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetBacklogReportRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetBacklogReportResponse(_message.Message):
    __slots__ = ("report", "lanes", "report_count", "live_count", "drift", "unreachable_shards")
    REPORT_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    REPORT_COUNT_FIELD_NUMBER: _ClassVar[int]
    LIVE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DRIFT_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_SHARDS_FIELD_NUMBER: _ClassVar[int]
    report: BacklogReport
    lanes: _containers.RepeatedCompositeFieldContainer[LaneDrift]
    report_count: int
    live_count: int
    drift: int
    unreachable_shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, report: _Optional[_Union[BacklogReport, _Mapping]] = ..., lanes: _Optional[_Iterable[_Union[LaneDrift, _Mapping]]] = ..., report_count: _Optional[int] = ..., live_count: _Optional[int] = ..., drift: _Optional[int] = ..., unreachable_shards: _Optional[_Iterable[int]] = ...) -> None: ...

class LaneDrift(_message.Message):
    __slots__ = ("shard", "level", "report_count", "live_count", "drift")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    REPORT_COUNT_FIELD_NUMBER: _ClassVar[int]
    LIVE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DRIFT_FIELD_NUMBER: _ClassVar[int]
    shard: int
    level: int
    report_count: int
    live_count: int
    drift: int
    def __init__(self, shard: _Optional[int] = ..., level: _Optional[int] = ..., report_count: _Optional[int] = ..., live_count: _Optional[int] = ..., drift: _Optional[int] = ...) -> None: ...

class BacklogReport(_message.Message):
    __slots__ = ("job", "created_at_ms", "sources", "snapshot_id", "snapshots", "now_ms", "pending_count", "pending_bytes", "overdue_count", "overdue_by_ms", "next_due_at_ms", "forecast", "lanes", "pending", "pending_left_out", "due_minutes", "due_hours", "later_count", "paused_count")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    PENDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    PENDING_BYTES_FIELD_NUMBER: _ClassVar[int]
    OVERDUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    OVERDUE_BY_MS_FIELD_NUMBER: _ClassVar[int]
    NEXT_DUE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    FORECAST_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    PENDING_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    DUE_MINUTES_FIELD_NUMBER: _ClassVar[int]
    DUE_HOURS_FIELD_NUMBER: _ClassVar[int]
    LATER_COUNT_FIELD_NUMBER: _ClassVar[int]
    PAUSED_COUNT_FIELD_NUMBER: _ClassVar[int]
    job: str
    created_at_ms: int
    sources: _containers.RepeatedScalarFieldContainer[str]
    snapshot_id: str
    snapshots: _containers.RepeatedCompositeFieldContainer[SnapshotMoment]
    now_ms: int
    pending_count: int
    pending_bytes: int
    overdue_count: int
    overdue_by_ms: int
    next_due_at_ms: int
    forecast: BacklogForecast
    lanes: _containers.RepeatedCompositeFieldContainer[BacklogLane]
    pending: _containers.RepeatedCompositeFieldContainer[PendingTopic]
    pending_left_out: int
    due_minutes: _containers.RepeatedCompositeFieldContainer[DueCount]
    due_hours: _containers.RepeatedCompositeFieldContainer[DueCount]
    later_count: int
    paused_count: int
    def __init__(self, job: _Optional[str] = ..., created_at_ms: _Optional[int] = ..., sources: _Optional[_Iterable[str]] = ..., snapshot_id: _Optional[str] = ..., snapshots: _Optional[_Iterable[_Union[SnapshotMoment, _Mapping]]] = ..., now_ms: _Optional[int] = ..., pending_count: _Optional[int] = ..., pending_bytes: _Optional[int] = ..., overdue_count: _Optional[int] = ..., overdue_by_ms: _Optional[int] = ..., next_due_at_ms: _Optional[int] = ..., forecast: _Optional[_Union[BacklogForecast, _Mapping]] = ..., lanes: _Optional[_Iterable[_Union[BacklogLane, _Mapping]]] = ..., pending: _Optional[_Iterable[_Union[PendingTopic, _Mapping]]] = ..., pending_left_out: _Optional[int] = ..., due_minutes: _Optional[_Iterable[_Union[DueCount, _Mapping]]] = ..., due_hours: _Optional[_Iterable[_Union[DueCount, _Mapping]]] = ..., later_count: _Optional[int] = ..., paused_count: _Optional[int] = ...) -> None: ...

class SnapshotMoment(_message.Message):
    __slots__ = ("shard", "position", "at_ms")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    shard: int
    position: int
    at_ms: int
    def __init__(self, shard: _Optional[int] = ..., position: _Optional[int] = ..., at_ms: _Optional[int] = ...) -> None: ...

class BacklogLane(_message.Message):
    __slots__ = ("shard", "level", "delay_ms", "watermark", "max_offset", "pending_count", "counted")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PENDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    shard: int
    level: int
    delay_ms: int
    watermark: int
    max_offset: int
    pending_count: int
    counted: int
    def __init__(self, shard: _Optional[int] = ..., level: _Optional[int] = ..., delay_ms: _Optional[int] = ..., watermark: _Optional[int] = ..., max_offset: _Optional[int] = ..., pending_count: _Optional[int] = ..., counted: _Optional[int] = ...) -> None: ...

class PendingTopic(_message.Message):
    __slots__ = ("shard", "level", "topic", "count", "bytes", "oldest_due_at_ms", "overdue_count", "overdue_by_ms", "next_due_at_ms", "paused_count")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_DUE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    OVERDUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    OVERDUE_BY_MS_FIELD_NUMBER: _ClassVar[int]
    NEXT_DUE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_COUNT_FIELD_NUMBER: _ClassVar[int]
    shard: int
    level: int
    topic: str
    count: int
    bytes: int
    oldest_due_at_ms: int
    overdue_count: int
    overdue_by_ms: int
    next_due_at_ms: int
    paused_count: int
    def __init__(self, shard: _Optional[int] = ..., level: _Optional[int] = ..., topic: _Optional[str] = ..., count: _Optional[int] = ..., bytes: _Optional[int] = ..., oldest_due_at_ms: _Optional[int] = ..., overdue_count: _Optional[int] = ..., overdue_by_ms: _Optional[int] = ..., next_due_at_ms: _Optional[int] = ..., paused_count: _Optional[int] = ...) -> None: ...

class DueCount(_message.Message):
    __slots__ = ("at_ms", "count", "bytes")
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    at_ms: int
    count: int
    bytes: int
    def __init__(self, at_ms: _Optional[int] = ..., count: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class BacklogForecast(_message.Message):
    __slots__ = ("needed_per_s", "needed_at_ms", "measured_per_s", "measured_peak_per_s")
    NEEDED_PER_S_FIELD_NUMBER: _ClassVar[int]
    NEEDED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_PER_S_FIELD_NUMBER: _ClassVar[int]
    MEASURED_PEAK_PER_S_FIELD_NUMBER: _ClassVar[int]
    needed_per_s: float
    needed_at_ms: int
    measured_per_s: float
    measured_peak_per_s: int
    def __init__(self, needed_per_s: _Optional[float] = ..., needed_at_ms: _Optional[int] = ..., measured_per_s: _Optional[float] = ..., measured_peak_per_s: _Optional[int] = ...) -> None: ...
