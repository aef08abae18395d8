"""Topic and group names: RocketMQ's rules and its system topics."""

import re

from duetime_format.limits import LITE_CHARS_MAX

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
QUARANTINE_TOPIC = "DT_QUARANTINE"
# The journal of consumer groups: one queue on each shard.
GROUPS_TOPIC = "DT_GROUPS"
# Ends of pending messages that were cancelled: one queue on each shard.
CANCELLED_TOPIC = "DT_CANCELLED"
# Checks of transactions that producers have heard: one queue on each shard.
CHECKS_TOPIC = "DT_CHECKS"
# Places of messages that fall due within ms (plans.py): one queue on each shard.
PLANS_TOPIC = "DT_PLANS"
# Deletions of topics (deletions.py): one queue on each shard.
DELETED_TOPIC = "DT_DELETED"
# Changes of other state, such as topics and offsets (changes.py): one queue on each shard.
STATE_TOPIC = "DT_STATE"
# Ends of the entries of a log with copies (marks.py): one queue on each shard.
RAFT_TOPIC = "DT_RAFT"
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
# Begins RocketMQ's name of a lite topic: `%LMQ%$parent$lite`. No topic has it: `$` is not allowed in names.
LITE_PREFIX = "%LMQ%$"

# Topics of brokers: half messages, their outcomes, and timers for any time.
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
# As the first two, of brokers from 5.4 with transactions in RocksDB.
ROCKSDB_HALF_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
ROCKSDB_OP_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
# Half messages past their maximum number of checks.
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
# Topics in which a broker defers messages without lanes; kept as they are.
FOREIGN_TOPICS = frozenset({HALF_TOPIC})

# RocketMQ's own topics, which a broker creates or fills by itself, and ours.
SYSTEM_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        QUARANTINE_TOPIC,
        GROUPS_TOPIC,
        CANCELLED_TOPIC,
        CHECKS_TOPIC,
        PLANS_TOPIC,
        DELETED_TOPIC,
        STATE_TOPIC,
        RAFT_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        ROCKSDB_HALF_TOPIC,
        ROCKSDB_OP_TOPIC,
        "RMQ_SYS_TRACE_TOPIC",
        GIVEN_UP_TOPIC,
        "SELF_TEST_TOPIC",
        "TBW102",
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        # Topic of proxies since 5.0.
        "DefaultHeartBeatSyncerTopic",
    }
)
SYSTEM_PREFIXES = (RETRY_PREFIX, DLQ_PREFIX, "rmq_sys_", "DT_")
# Topics that no call reads by name: half messages are hidden until their commit, the others have a shard's own records.
CLOSED_TOPICS = frozenset(
    {
        *(HALF_TOPIC, OP_TOPIC, ROCKSDB_HALF_TOPIC, ROCKSDB_OP_TOPIC),
        *(GROUPS_TOPIC, CHECKS_TOPIC, PLANS_TOPIC, DELETED_TOPIC, STATE_TOPIC, RAFT_TOPIC),
    }
)

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


def is_name(text: str) -> bool:
    """Whether all characters are allowed in a topic or group name; the caller checks the length."""
    return _NAME.fullmatch(text) is not None


def is_system_topic(topic: str) -> bool:
    """Whether only DueTime itself writes to the topic."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIXES)


def is_internal_topic(topic: str) -> bool:
    """Whether it is a system topic that belongs to no group: only operators read it, and no group receives from it."""
    return is_system_topic(topic) and not is_group_topic(topic)


def is_group_topic(topic: str) -> bool:
    """Whether it holds a group's retries or dead letters."""
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def lite_key(topic: str, lite_topic: str) -> str:
    """RocketMQ's name of a lite topic of `topic`."""
    return f"{LITE_PREFIX}{topic}${lite_topic}"


def lite_parent_of(key: str) -> str:
    """The parent topic in its `lite_key`."""
    return key[len(LITE_PREFIX) :].rpartition("$")[0]


def is_lite_topic(text: str) -> bool:
    """Whether the text may name a lite topic."""
    return 1 <= len(text) <= LITE_CHARS_MAX and is_name(text)
