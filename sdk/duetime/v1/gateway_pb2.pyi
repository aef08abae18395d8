from duetime.v1 import audit_pb2 as _audit_pb2
from duetime.v1 import backlog_pb2 as _backlog_pb2
from duetime.v1 import consumer_pb2 as _consumer_pb2
from duetime.v1 import export_pb2 as _export_pb2
from duetime.v1 import leases_pb2 as _leases_pb2
from duetime.v1 import message_pb2 as _message_pb2
from duetime.v1 import pending_pb2 as _pending_pb2
from duetime.v1 import quotas_pb2 as _quotas_pb2
from duetime.v1 import reports_pb2 as _reports_pb2
from duetime.v1 import retry_pb2 as _retry_pb2
from duetime.v1 import schedules_pb2 as _schedules_pb2
from duetime.v1 import subscriptions_pb2 as _subscriptions_pb2
from duetime.v1 import transactions_pb2 as _transactions_pb2
from duetime.v1 import webhooks_pb2 as _webhooks_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PullStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PULL_STATUS_UNSPECIFIED: _ClassVar[PullStatus]
    PULL_STATUS_FOUND: _ClassVar[PullStatus]
    PULL_STATUS_NO_NEW: _ClassVar[PullStatus]
    PULL_STATUS_NO_MATCH: _ClassVar[PullStatus]
    PULL_STATUS_OFFSET_OUT_OF_RANGE: _ClassVar[PullStatus]

class PullEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PULL_ENCODING_MESSAGES: _ClassVar[PullEncoding]
    PULL_ENCODING_RECORDS: _ClassVar[PullEncoding]

class MessageState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MESSAGE_STATE_UNSPECIFIED: _ClassVar[MessageState]
    MESSAGE_STATE_STORED: _ClassVar[MessageState]
    MESSAGE_STATE_PENDING: _ClassVar[MessageState]
    MESSAGE_STATE_QUARANTINED: _ClassVar[MessageState]
    MESSAGE_STATE_CANCELLED: _ClassVar[MessageState]
    MESSAGE_STATE_DEAD: _ClassVar[MessageState]
    MESSAGE_STATE_PREPARED: _ClassVar[MessageState]
    MESSAGE_STATE_GIVEN_UP: _ClassVar[MessageState]
    MESSAGE_STATE_ROLLED_BACK: _ClassVar[MessageState]

class TopicType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOPIC_TYPE_ANY: _ClassVar[TopicType]
    TOPIC_TYPE_NORMAL: _ClassVar[TopicType]
    TOPIC_TYPE_FIFO: _ClassVar[TopicType]
    TOPIC_TYPE_DELAY: _ClassVar[TopicType]
    TOPIC_TYPE_TRANSACTION: _ClassVar[TopicType]
    TOPIC_TYPE_LITE: _ClassVar[TopicType]
    TOPIC_TYPE_PRIORITY: _ClassVar[TopicType]
PULL_STATUS_UNSPECIFIED: PullStatus
PULL_STATUS_FOUND: PullStatus
PULL_STATUS_NO_NEW: PullStatus
PULL_STATUS_NO_MATCH: PullStatus
PULL_STATUS_OFFSET_OUT_OF_RANGE: PullStatus
PULL_ENCODING_MESSAGES: PullEncoding
PULL_ENCODING_RECORDS: PullEncoding
MESSAGE_STATE_UNSPECIFIED: MessageState
MESSAGE_STATE_STORED: MessageState
MESSAGE_STATE_PENDING: MessageState
MESSAGE_STATE_QUARANTINED: MessageState
MESSAGE_STATE_CANCELLED: MessageState
MESSAGE_STATE_DEAD: MessageState
MESSAGE_STATE_PREPARED: MessageState
MESSAGE_STATE_GIVEN_UP: MessageState
MESSAGE_STATE_ROLLED_BACK: MessageState
TOPIC_TYPE_ANY: TopicType
TOPIC_TYPE_NORMAL: TopicType
TOPIC_TYPE_FIFO: TopicType
TOPIC_TYPE_DELAY: TopicType
TOPIC_TYPE_TRANSACTION: TopicType
TOPIC_TYPE_LITE: TopicType
TOPIC_TYPE_PRIORITY: TopicType

class WhoAmIRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WhoAmIResponse(_message.Message):
    __slots__ = ("user", "admin", "rights", "methods")
    USER_FIELD_NUMBER: _ClassVar[int]
    ADMIN_FIELD_NUMBER: _ClassVar[int]
    RIGHTS_FIELD_NUMBER: _ClassVar[int]
    METHODS_FIELD_NUMBER: _ClassVar[int]
    user: str
    admin: bool
    rights: _containers.RepeatedCompositeFieldContainer[Right]
    methods: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, user: _Optional[str] = ..., admin: bool = ..., rights: _Optional[_Iterable[_Union[Right, _Mapping]]] = ..., methods: _Optional[_Iterable[str]] = ...) -> None: ...

class Right(_message.Message):
    __slots__ = ("right", "kind", "pattern")
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    right: str
    kind: str
    pattern: str
    def __init__(self, right: _Optional[str] = ..., kind: _Optional[str] = ..., pattern: _Optional[str] = ...) -> None: ...

class SendRequest(_message.Message):
    __slots__ = ("messages", "packs")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PACKS_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[_message_pb2.Message]
    packs: _containers.RepeatedCompositeFieldContainer[Pack]
    def __init__(self, messages: _Optional[_Iterable[_Union[_message_pb2.Message, _Mapping]]] = ..., packs: _Optional[_Iterable[_Union[Pack, _Mapping]]] = ...) -> None: ...

class SendResponse(_message.Message):
    __slots__ = ("results", "ranges", "fault")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[_message_pb2.SendResult]
    ranges: _containers.RepeatedCompositeFieldContainer[ResultRange]
    fault: _message_pb2.Fault
    def __init__(self, results: _Optional[_Iterable[_Union[_message_pb2.SendResult, _Mapping]]] = ..., ranges: _Optional[_Iterable[_Union[ResultRange, _Mapping]]] = ..., fault: _Optional[_Union[_message_pb2.Fault, _Mapping]] = ...) -> None: ...

class Pack(_message.Message):
    __slots__ = ("topic", "tags", "delay_level", "delay_ms", "deliver_at_ms", "id_prefix", "first_number", "born_at_ms", "sizes", "bodies")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    DELAY_LEVEL_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ID_PREFIX_FIELD_NUMBER: _ClassVar[int]
    FIRST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    BORN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    tags: str
    delay_level: int
    delay_ms: int
    deliver_at_ms: int
    id_prefix: str
    first_number: int
    born_at_ms: int
    sizes: _containers.RepeatedScalarFieldContainer[int]
    bodies: bytes
    def __init__(self, topic: _Optional[str] = ..., tags: _Optional[str] = ..., delay_level: _Optional[int] = ..., delay_ms: _Optional[int] = ..., deliver_at_ms: _Optional[int] = ..., id_prefix: _Optional[str] = ..., first_number: _Optional[int] = ..., born_at_ms: _Optional[int] = ..., sizes: _Optional[_Iterable[int]] = ..., bodies: _Optional[bytes] = ...) -> None: ...

class ResultRange(_message.Message):
    __slots__ = ("count", "first")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    count: int
    first: _message_pb2.SendResult
    def __init__(self, count: _Optional[int] = ..., first: _Optional[_Union[_message_pb2.SendResult, _Mapping]] = ...) -> None: ...

class SendBatchRequest(_message.Message):
    __slots__ = ("messages", "topic", "queue", "sharding_key")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SHARDING_KEY_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[_message_pb2.Message]
    topic: str
    queue: int
    sharding_key: str
    def __init__(self, messages: _Optional[_Iterable[_Union[_message_pb2.Message, _Mapping]]] = ..., topic: _Optional[str] = ..., queue: _Optional[int] = ..., sharding_key: _Optional[str] = ...) -> None: ...

class SendBatchResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[_message_pb2.SendResult]
    def __init__(self, results: _Optional[_Iterable[_Union[_message_pb2.SendResult, _Mapping]]] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("topic", "queue", "offset", "max_count", "max_bytes", "wait_ms", "tags", "encoding", "sql", "first_bytes_max")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    FIRST_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    offset: int
    max_count: int
    max_bytes: int
    wait_ms: int
    tags: str
    encoding: PullEncoding
    sql: str
    first_bytes_max: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ..., max_count: _Optional[int] = ..., max_bytes: _Optional[int] = ..., wait_ms: _Optional[int] = ..., tags: _Optional[str] = ..., encoding: _Optional[_Union[PullEncoding, str]] = ..., sql: _Optional[str] = ..., first_bytes_max: _Optional[int] = ...) -> None: ...

class PullResponse(_message.Message):
    __slots__ = ("status", "messages", "next_offset", "min_offset", "max_offset", "records")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    status: PullStatus
    messages: _containers.RepeatedCompositeFieldContainer[_message_pb2.StoredMessage]
    next_offset: int
    min_offset: int
    max_offset: int
    records: bytes
    def __init__(self, status: _Optional[_Union[PullStatus, str]] = ..., messages: _Optional[_Iterable[_Union[_message_pb2.StoredMessage, _Mapping]]] = ..., next_offset: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., records: _Optional[bytes] = ...) -> None: ...

class QueuePosition(_message.Message):
    __slots__ = ("queue", "offset", "shard_queue")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SHARD_QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: int
    offset: int
    shard_queue: int
    def __init__(self, queue: _Optional[int] = ..., offset: _Optional[int] = ..., shard_queue: _Optional[int] = ...) -> None: ...

class PullQueuesRequest(_message.Message):
    __slots__ = ("topic", "queues", "max_count", "max_bytes", "wait_ms", "tags", "encoding", "sql", "first_bytes_max")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    FIRST_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queues: _containers.RepeatedCompositeFieldContainer[QueuePosition]
    max_count: int
    max_bytes: int
    wait_ms: int
    tags: str
    encoding: PullEncoding
    sql: str
    first_bytes_max: int
    def __init__(self, topic: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[QueuePosition, _Mapping]]] = ..., max_count: _Optional[int] = ..., max_bytes: _Optional[int] = ..., wait_ms: _Optional[int] = ..., tags: _Optional[str] = ..., encoding: _Optional[_Union[PullEncoding, str]] = ..., sql: _Optional[str] = ..., first_bytes_max: _Optional[int] = ...) -> None: ...

class PulledQueue(_message.Message):
    __slots__ = ("queue", "pull")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    queue: int
    pull: PullResponse
    def __init__(self, queue: _Optional[int] = ..., pull: _Optional[_Union[PullResponse, _Mapping]] = ...) -> None: ...

class PullQueuesResponse(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[PulledQueue]
    def __init__(self, queues: _Optional[_Iterable[_Union[PulledQueue, _Mapping]]] = ...) -> None: ...

class SearchOffsetRequest(_message.Message):
    __slots__ = ("topic", "queue", "at_ms", "earliest", "latest")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    at_ms: int
    earliest: bool
    latest: bool
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., at_ms: _Optional[int] = ..., earliest: bool = ..., latest: bool = ...) -> None: ...

class SearchOffsetResponse(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class QueryMessagesRequest(_message.Message):
    __slots__ = ("topic", "key", "from_ms", "to_ms", "max_count", "tag")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    FROM_MS_FIELD_NUMBER: _ClassVar[int]
    TO_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: str
    from_ms: int
    to_ms: int
    max_count: int
    tag: str
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[str] = ..., from_ms: _Optional[int] = ..., to_ms: _Optional[int] = ..., max_count: _Optional[int] = ..., tag: _Optional[str] = ...) -> None: ...

class QueryMessagesResponse(_message.Message):
    __slots__ = ("messages", "more")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[FoundMessage]
    more: bool
    def __init__(self, messages: _Optional[_Iterable[_Union[FoundMessage, _Mapping]]] = ..., more: bool = ...) -> None: ...

class GetMessageRequest(_message.Message):
    __slots__ = ("id", "topic")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    id: str
    topic: str
    def __init__(self, id: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class FoundMessage(_message.Message):
    __slots__ = ("message", "state", "shard", "offset_id", "lane", "entry", "before_count", "planned_at_ms")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    OFFSET_ID_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    BEFORE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PLANNED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    message: _message_pb2.StoredMessage
    state: MessageState
    shard: int
    offset_id: str
    lane: int
    entry: int
    before_count: int
    planned_at_ms: int
    def __init__(self, message: _Optional[_Union[_message_pb2.StoredMessage, _Mapping]] = ..., state: _Optional[_Union[MessageState, str]] = ..., shard: _Optional[int] = ..., offset_id: _Optional[str] = ..., lane: _Optional[int] = ..., entry: _Optional[int] = ..., before_count: _Optional[int] = ..., planned_at_ms: _Optional[int] = ...) -> None: ...

class CommitOffsetsRequest(_message.Message):
    __slots__ = ("group", "topic", "queues")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queues: _containers.RepeatedCompositeFieldContainer[QueuePosition]
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[QueuePosition, _Mapping]]] = ...) -> None: ...

class CommitOffsetsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetOffsetsRequest(_message.Message):
    __slots__ = ("group", "topic")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class GetOffsetsResponse(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueuePosition]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueuePosition, _Mapping]]] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("name", "queue_count", "max_delay_ms", "message_type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    queue_count: int
    max_delay_ms: int
    message_type: TopicType
    def __init__(self, name: _Optional[str] = ..., queue_count: _Optional[int] = ..., max_delay_ms: _Optional[int] = ..., message_type: _Optional[_Union[TopicType, str]] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("name", "queue_count", "created_at_ms", "max_delay_ms", "message_type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    queue_count: int
    created_at_ms: int
    max_delay_ms: int
    message_type: TopicType
    def __init__(self, name: _Optional[str] = ..., queue_count: _Optional[int] = ..., created_at_ms: _Optional[int] = ..., max_delay_ms: _Optional[int] = ..., message_type: _Optional[_Union[TopicType, str]] = ...) -> None: ...

class DescribeTopicRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class QueueDescription(_message.Message):
    __slots__ = ("queue", "shard", "min_offset", "max_offset")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue: int
    shard: int
    min_offset: int
    max_offset: int
    def __init__(self, queue: _Optional[int] = ..., shard: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ...) -> None: ...

class TopicDescription(_message.Message):
    __slots__ = ("topic", "queues", "pause")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    topic: Topic
    queues: _containers.RepeatedCompositeFieldContainer[QueueDescription]
    pause: _consumer_pb2.GroupPause
    def __init__(self, topic: _Optional[_Union[Topic, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[QueueDescription, _Mapping]]] = ..., pause: _Optional[_Union[_consumer_pb2.GroupPause, _Mapping]] = ...) -> None: ...

class PauseTopicRequest(_message.Message):
    __slots__ = ("name", "for_ms", "until_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FOR_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    for_ms: int
    until_ms: int
    def __init__(self, name: _Optional[str] = ..., for_ms: _Optional[int] = ..., until_ms: _Optional[int] = ...) -> None: ...

class ResumeTopicRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics", "pauses", "unreachable_shards")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PAUSES_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_SHARDS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    pauses: _containers.RepeatedCompositeFieldContainer[_consumer_pb2.GroupPause]
    unreachable_shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ..., pauses: _Optional[_Iterable[_Union[_consumer_pb2.GroupPause, _Mapping]]] = ..., unreachable_shards: _Optional[_Iterable[int]] = ...) -> None: ...

class ListLiteTopicsRequest(_message.Message):
    __slots__ = ("topic", "after", "max_count", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    after: str
    max_count: int
    group: str
    def __init__(self, topic: _Optional[str] = ..., after: _Optional[str] = ..., max_count: _Optional[int] = ..., group: _Optional[str] = ...) -> None: ...

class LiteTopic(_message.Message):
    __slots__ = ("name", "message_count", "unread_count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNREAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    message_count: int
    unread_count: int
    def __init__(self, name: _Optional[str] = ..., message_count: _Optional[int] = ..., unread_count: _Optional[int] = ...) -> None: ...

class ListLiteTopicsResponse(_message.Message):
    __slots__ = ("lite_topics",)
    LITE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    lite_topics: _containers.RepeatedCompositeFieldContainer[LiteTopic]
    def __init__(self, lite_topics: _Optional[_Iterable[_Union[LiteTopic, _Mapping]]] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("name", "force", "dry_run")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    name: str
    force: bool
    dry_run: bool
    def __init__(self, name: _Optional[str] = ..., force: bool = ..., dry_run: bool = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ("pending_count", "transaction_count", "groups")
    PENDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_COUNT_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    pending_count: int
    transaction_count: int
    groups: _containers.RepeatedCompositeFieldContainer[TopicGroup]
    def __init__(self, pending_count: _Optional[int] = ..., transaction_count: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[TopicGroup, _Mapping]]] = ...) -> None: ...

class TopicGroup(_message.Message):
    __slots__ = ("group", "unread_count", "in_flight_count", "retry_count", "dead_letter_count")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    UNREAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_COUNT_FIELD_NUMBER: _ClassVar[int]
    RETRY_COUNT_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_COUNT_FIELD_NUMBER: _ClassVar[int]
    group: str
    unread_count: int
    in_flight_count: int
    retry_count: int
    dead_letter_count: int
    def __init__(self, group: _Optional[str] = ..., unread_count: _Optional[int] = ..., in_flight_count: _Optional[int] = ..., retry_count: _Optional[int] = ..., dead_letter_count: _Optional[int] = ...) -> None: ...

class GetRouteRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class QueueRoute(_message.Message):
    __slots__ = ("queue", "shard")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    queue: int
    shard: int
    def __init__(self, queue: _Optional[int] = ..., shard: _Optional[int] = ...) -> None: ...

class Route(_message.Message):
    __slots__ = ("topic", "queues")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queues: _containers.RepeatedCompositeFieldContainer[QueueRoute]
    def __init__(self, topic: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[QueueRoute, _Mapping]]] = ...) -> None: ...

class ListLanesRequest(_message.Message):
    __slots__ = ("ahead_ms",)
    AHEAD_MS_FIELD_NUMBER: _ClassVar[int]
    ahead_ms: int
    def __init__(self, ahead_ms: _Optional[int] = ...) -> None: ...

class Lane(_message.Message):
    __slots__ = ("shard", "level", "delay_ms", "pending_count", "oldest_due_at_ms", "next_due_at_ms", "watermark", "max_offset", "owner", "paused", "late_p50_ms", "late_p99_ms", "restored_count", "quarantined_count", "due_count")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    PENDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_DUE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    NEXT_DUE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    LATE_P50_MS_FIELD_NUMBER: _ClassVar[int]
    LATE_P99_MS_FIELD_NUMBER: _ClassVar[int]
    RESTORED_COUNT_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_COUNT_FIELD_NUMBER: _ClassVar[int]
    DUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    shard: int
    level: int
    delay_ms: int
    pending_count: int
    oldest_due_at_ms: int
    next_due_at_ms: int
    watermark: int
    max_offset: int
    owner: str
    paused: bool
    late_p50_ms: float
    late_p99_ms: float
    restored_count: int
    quarantined_count: int
    due_count: int
    def __init__(self, shard: _Optional[int] = ..., level: _Optional[int] = ..., delay_ms: _Optional[int] = ..., pending_count: _Optional[int] = ..., oldest_due_at_ms: _Optional[int] = ..., next_due_at_ms: _Optional[int] = ..., watermark: _Optional[int] = ..., max_offset: _Optional[int] = ..., owner: _Optional[str] = ..., paused: bool = ..., late_p50_ms: _Optional[float] = ..., late_p99_ms: _Optional[float] = ..., restored_count: _Optional[int] = ..., quarantined_count: _Optional[int] = ..., due_count: _Optional[int] = ...) -> None: ...

class PauseLaneRequest(_message.Message):
    __slots__ = ("level", "shard")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    level: int
    shard: int
    def __init__(self, level: _Optional[int] = ..., shard: _Optional[int] = ...) -> None: ...

class PauseLaneResponse(_message.Message):
    __slots__ = ("shards",)
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, shards: _Optional[_Iterable[int]] = ...) -> None: ...

class ListLanesResponse(_message.Message):
    __slots__ = ("lanes", "unreachable_shards")
    LANES_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_SHARDS_FIELD_NUMBER: _ClassVar[int]
    lanes: _containers.RepeatedCompositeFieldContainer[Lane]
    unreachable_shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lanes: _Optional[_Iterable[_Union[Lane, _Mapping]]] = ..., unreachable_shards: _Optional[_Iterable[int]] = ...) -> None: ...
