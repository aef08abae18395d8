"""The tables of the metadata database. Each change needs a migration (`migrations/versions`)."""

from typing import cast

from duetime_format.limits import GROUP_CHARS_MAX, TOPIC_CHARS_MAX
from sqlalchemy import BigInteger, ForeignKey, Index, Integer, String, Table, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

MEMBER_CHARS_MAX = 255
ADDRESS_CHARS_MAX = 255
# More than enough for 64 delays of up to ten characters, and options.
POLICY_CHARS_MAX = 1_024
JOB_CHARS_MAX = 64
SNAPSHOT_ID_CHARS_MAX = 128
QUOTA_KIND_CHARS_MAX = 16
QUOTA_NAME_CHARS_MAX = 255
# Limits of texts of the audit log, and of its shorter ones.
AUDIT_CHARS_MAX = 255
AUDIT_NAME_CHARS_MAX = 64
# A user's name after `user `, or a host.
OWNER_CHARS_MAX = 160
USER_CHARS_MAX = 120
TOKEN_ID_CHARS = 12
ACCESS_KEY_CHARS = 24
PATTERN_CHARS_MAX = TOPIC_CHARS_MAX
WEBHOOK_CHARS_MAX = 64
PAUSE_REASON_CHARS_MAX = 255


class MetadataBase(DeclarativeBase):
    """The schema in the code."""


def table_of(model: type[MetadataBase]) -> Table:
    """The table for statements that run about once a second: built once and without the ORM, which is most of the cost
    of a short one."""
    return cast("Table", model.__table__)


class TopicModel(MetadataBase):
    """A topic. Written by gateways, and by retry services for the topics of groups."""

    __tablename__ = "topics"

    name: Mapped[str] = mapped_column(String(TOPIC_CHARS_MAX), primary_key=True)
    queue_count: Mapped[int]
    created_at_ms: Mapped[int] = mapped_column(BigInteger)
    # Longest delay of its messages; 0: ten years.
    max_delay_ms: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    # A number of duetime.v1.TopicType.
    message_type: Mapped[int] = mapped_column(default=0, server_default="0")
    # Distinguishes it from a deleted topic of its name: TopicGenerationModel's value at creation.
    generation: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    # 1: shards are deleting it; hidden from all other calls.
    is_deleting: Mapped[int] = mapped_column(default=0, server_default="0")
    # The caller that made it, as `duetime_core.access.callers.sharer` names it; empty: nobody knows.
    owner: Mapped[str] = mapped_column(String(OWNER_CHARS_MAX), default="", server_default="")


class TopicGenerationModel(MetadataBase):
    """One row: the generation of new topics. Each deletion increments it, which notifies gateways."""

    __tablename__ = "topic_generation"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    generation: Mapped[int] = mapped_column(BigInteger)


class TopicQueueModel(MetadataBase):
    """The route: the shard of each queue of a topic."""

    __tablename__ = "topic_queues"

    # Checked at commit, so that rows of one transaction may come in any order.
    topic: Mapped[str] = mapped_column(
        String(TOPIC_CHARS_MAX),
        ForeignKey("topics.name", ondelete="CASCADE", deferrable=True, initially="DEFERRED"),
        primary_key=True,
    )
    queue: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    shard: Mapped[int]
    # The queue's number on its shard, if different: for topics from several brokers' directories.
    shard_queue: Mapped[int | None]


class GroupModel(MetadataBase):
    """A consumer group's settings. Written by gateways."""

    __tablename__ = "groups"

    name: Mapped[str] = mapped_column(String(GROUP_CHARS_MAX), primary_key=True)
    # A number of duetime.v1.GroupStart, and its time; 0: the earliest.
    start: Mapped[int]
    start_at_ms: Mapped[int] = mapped_column(BigInteger)
    ordered: Mapped[bool]
    # Text form of duetime_core.rpc.retry_policy.
    retry: Mapped[str] = mapped_column(String(POLICY_CHARS_MAX))
    created_at_ms: Mapped[int] = mapped_column(BigInteger)
    # As of a topic.
    owner: Mapped[str] = mapped_column(String(OWNER_CHARS_MAX), default="", server_default="")
    # Text form of duetime_core.rpc.group_limits; empty: it never had any.
    limits: Mapped[str] = mapped_column(Text, default="", server_default="")


class ProducerGroupModel(MetadataBase):
    """A group of producers that has prepared a transaction. Written by gateways."""

    __tablename__ = "producer_groups"

    name: Mapped[str] = mapped_column(String(GROUP_CHARS_MAX), primary_key=True)
    created_at_ms: Mapped[int] = mapped_column(BigInteger)
    # As a topic's.
    owner: Mapped[str] = mapped_column(String(OWNER_CHARS_MAX), default="", server_default="")


class QuotaModel(MetadataBase):
    """The quota of a user or a topic. Written by gateways."""

    __tablename__ = "quotas"

    # `user` or `topic`.
    kind: Mapped[str] = mapped_column(String(QUOTA_KIND_CHARS_MAX), primary_key=True)
    name: Mapped[str] = mapped_column(String(QUOTA_NAME_CHARS_MAX), primary_key=True)
    # JSON: {"messages_per_s": 0, ...}.
    limits: Mapped[str] = mapped_column(Text)


class GatewayModel(MetadataBase):
    """A gateway that keeps quotas, alive while its heartbeat increases. Written by itself; removed by itself or as
    dead."""

    __tablename__ = "gateways"

    member_id: Mapped[str] = mapped_column(String(MEMBER_CHARS_MAX), primary_key=True)
    # A counter, see SchedulerModel.
    heartbeat: Mapped[int] = mapped_column(BigInteger)
    # JSON: the recent use of each quota.
    use: Mapped[str] = mapped_column(Text)


class SchedulerModel(MetadataBase):
    """A scheduler, alive while its heartbeat increases. Written by itself; removed by itself or as dead."""

    __tablename__ = "schedulers"

    member_id: Mapped[str] = mapped_column(String(MEMBER_CHARS_MAX), primary_key=True)
    address: Mapped[str] = mapped_column(String(ADDRESS_CHARS_MAX))
    # A counter, not a time: members observe it with their own monotonic clocks, so clock skew between machines cannot
    # make a live member look dead.
    heartbeat: Mapped[int] = mapped_column(BigInteger)
    started_at_ms: Mapped[int] = mapped_column(BigInteger)


class LaneLeaseModel(MetadataBase):
    """The scheduler of a lane. `owner` changes only together with `epoch`; an empty owner: none."""

    __tablename__ = "lane_leases"

    shard: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    level: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    owner: Mapped[str] = mapped_column(String(MEMBER_CHARS_MAX), default="")
    epoch: Mapped[int] = mapped_column(BigInteger, default=0)
    paused: Mapped[bool] = mapped_column(default=False)


class DelayOffsetModel(MetadataBase):
    """The delay offset table as last published by each lane's scheduler: for people and metrics."""

    __tablename__ = "delay_offsets"

    shard: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    level: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    next_offset: Mapped[int] = mapped_column(BigInteger)
    min_offset: Mapped[int] = mapped_column(BigInteger)
    max_offset: Mapped[int] = mapped_column(BigInteger)
    published_at_ms: Mapped[int] = mapped_column(BigInteger)
    published_by: Mapped[str] = mapped_column(String(MEMBER_CHARS_MAX))


class BacklogReportModel(MetadataBase):
    """An analysis job's report on a snapshot. Written by the job; a repeated run on the snapshot replaces it."""

    __tablename__ = "backlog_reports"
    __table_args__ = (UniqueConstraint("job", "snapshot_id", name="backlog_reports_of_a_snapshot"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    job: Mapped[str] = mapped_column(String(JOB_CHARS_MAX))
    snapshot_id: Mapped[str] = mapped_column(String(SNAPSHOT_ID_CHARS_MAX))
    # Time of its latest shard.
    snapshot_at_ms: Mapped[int] = mapped_column(BigInteger)
    created_at_ms: Mapped[int] = mapped_column(BigInteger)
    # JSON: ["..."], [{"shard": 0, "position": 0, "at_ms": 0}], {...}.
    sources: Mapped[str] = mapped_column(Text)
    snapshots: Mapped[str] = mapped_column(Text)
    summary: Mapped[str] = mapped_column(Text)


class WebhookModel(MetadataBase):
    """A webhook. Written by gateways, except for the columns of reports, which workers write; both may pause it."""

    __tablename__ = "webhooks"

    name: Mapped[str] = mapped_column(String(WEBHOOK_CHARS_MAX), primary_key=True)
    topic: Mapped[str] = mapped_column(String(TOPIC_CHARS_MAX))
    group: Mapped[str] = mapped_column("consumer_group", String(GROUP_CHARS_MAX))
    url: Mapped[str] = mapped_column(Text)
    concurrency: Mapped[int]
    timeout_ms: Mapped[int]
    paused: Mapped[bool]
    # The reason of a worker; empty: a caller paused it, or nobody.
    pause_reason: Mapped[str] = mapped_column(String(PAUSE_REASON_CHARS_MAX))
    # The signing secret, encrypted, and the one before it, which is used until a time. Empty: none.
    sealed: Mapped[str] = mapped_column(String(255))
    old_sealed: Mapped[str] = mapped_column(String(255))
    old_ends_at_ms: Mapped[int] = mapped_column(BigInteger)
    created_at_ms: Mapped[int] = mapped_column(BigInteger)
    # Numbers of the last requested test and of the last one that a worker took; its result in JSON.
    test_number: Mapped[int] = mapped_column(BigInteger)
    test_taken: Mapped[int] = mapped_column(BigInteger)
    test_result: Mapped[str] = mapped_column(Text)
    # Reports of workers: their last read of this row, the last delivery and the last failure. 0: never.
    worker_seen_at_ms: Mapped[int] = mapped_column(BigInteger)
    delivered_at_ms: Mapped[int] = mapped_column(BigInteger)
    failed_at_ms: Mapped[int] = mapped_column(BigInteger)
    failure: Mapped[str] = mapped_column(Text)


class AuditModel(MetadataBase):
    """An admin act or a rejection. Written by gateways, schedulers and retry services; gateways remove the oldest."""

    __tablename__ = "audit_events"
    __table_args__ = (
        UniqueConstraint("key", name="audit_events_by_key"),
        Index("audit_events_by_time", "at_ms", "id"),
        Index("audit_events_by_kind", "is_refusal", "id"),
    )

    # SQLite generates row numbers only for the type INTEGER.
    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    key: Mapped[str] = mapped_column(String(AUDIT_NAME_CHARS_MAX))
    process: Mapped[str] = mapped_column(String(AUDIT_NAME_CHARS_MAX))
    is_refusal: Mapped[bool]
    # Columns of duetime_core.audit.events.AuditedCall.
    at_ms: Mapped[int] = mapped_column(BigInteger)
    user: Mapped[str] = mapped_column(String(AUDIT_CHARS_MAX))
    host: Mapped[str] = mapped_column(String(AUDIT_CHARS_MAX))
    peer: Mapped[str] = mapped_column(String(AUDIT_CHARS_MAX))
    method: Mapped[str] = mapped_column(String(AUDIT_CHARS_MAX))
    resource: Mapped[str] = mapped_column(String(AUDIT_CHARS_MAX))
    status: Mapped[str] = mapped_column(String(AUDIT_NAME_CHARS_MAX))
    reason: Mapped[str] = mapped_column(String(AUDIT_CHARS_MAX))
    left_out_count: Mapped[int] = mapped_column(BigInteger)


class UserModel(MetadataBase):
    """A user of gateways or, if its name has the prefix of groups, all members of an identity provider's group.
    Written by `duetime users`."""

    __tablename__ = "users"

    name: Mapped[str] = mapped_column(String(USER_CHARS_MAX), primary_key=True)
    # Revoked, regardless of tokens.
    revoked: Mapped[bool] = mapped_column(default=False)
    # Version of the users' changes at the last change to this user.
    version: Mapped[int] = mapped_column(BigInteger)
    created_at_ms: Mapped[int] = mapped_column(BigInteger)


def _of_user(*, primary_key: bool = False) -> Mapped[str]:
    user = ForeignKey("users.name", ondelete="CASCADE")
    return mapped_column("user_name", String(USER_CHARS_MAX), user, primary_key=primary_key)


class TokenModel(MetadataBase):
    """A token; only its hash is stored."""

    __tablename__ = "user_tokens"
    __table_args__ = (Index("user_tokens_of_a_user", "user_name"),)

    id: Mapped[str] = mapped_column(String(TOKEN_ID_CHARS), primary_key=True)
    user: Mapped[str] = _of_user()
    hashed: Mapped[str] = mapped_column(String(255))
    created_at_ms: Mapped[int] = mapped_column(BigInteger)
    # 0: never.
    expires_at_ms: Mapped[int] = mapped_column(BigInteger)


class AccessKeyModel(MetadataBase):
    """A key pair for RocketMQ's signature. Its check needs the secret, which is encrypted."""

    __tablename__ = "user_keys"
    __table_args__ = (Index("user_keys_of_a_user", "user_name"),)

    access_key: Mapped[str] = mapped_column(String(ACCESS_KEY_CHARS), primary_key=True)
    user: Mapped[str] = _of_user()
    sealed: Mapped[str] = mapped_column(String(255))
    created_at_ms: Mapped[int] = mapped_column(BigInteger)


class GrantModel(MetadataBase):
    """One right of a user, on the topics or groups that match a pattern."""

    __tablename__ = "user_grants"

    user: Mapped[str] = _of_user(primary_key=True)
    right: Mapped[str] = mapped_column(String(16), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    pattern: Mapped[str] = mapped_column(String(PATTERN_CHARS_MAX), primary_key=True)


class UsersVersionModel(MetadataBase):
    """One row, incremented by each change of users in the change's transaction. Readers see changes in the order of
    their numbers, and detect changes by reading one number."""

    __tablename__ = "users_version"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    version: Mapped[int] = mapped_column(BigInteger)
