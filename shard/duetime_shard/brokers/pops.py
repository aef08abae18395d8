"""Finds the messages that groups of a 5.x broker have received by POP and not acknowledged.

A POP moves the group's offset at once. The broker keeps the received messages elsewhere until they are acknowledged or
visible again:

    log        records of rmq_sys_REVIVE_LOG_*, directly or on their way there as timers: `ck` is a receive of some
               messages of one queue, `ack` and `bAck` end some of them. A change of the invisible time is another `ck`,
               and an `ack` of the first
    kvStore    with popConsumerKVServiceEnable: RocksDB, a key for each message; an acknowledgement deletes it
    config     consumerOrderInfo.json: the latest receive of each queue by an ordered group, whose offset does not move

A message that becomes visible again moves to a retry topic of its group and topic, %RETRY%group_topic, from which the
group receives by POP too. The `ck` is done once the broker's own offset in rmq_sys_REVIVE_LOG_* has reached it.

Source: RocketMQ 5.3.3 PopMessageProcessor, PopReviveService, PopCheckPoint, AckMsg, ConsumerOrderInfoManager; 5.5.1
PopConsumerRecord.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any

from duetime_format import record
from duetime_format.columns import RecordRun
from duetime_format.errors import DamagedBytes
from duetime_format.names import RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from duetime_format.properties import decode_properties
from duetime_format.record import Record

from duetime_shard import configs
from duetime_shard.batches import scan_whole
from duetime_shard.brokers import rocks
from duetime_shard.disk import LocalFiles
from duetime_shard.files import LogFiles

KEY_VALUES, FAMILY = "kvStore", "popState"
ORDERS = "consumerOrderInfo.json"
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
_REVIVE = REVIVE_PREFIX.encode()
REVIVERS = "CID_RMQ_SYS_REVIVE_GROUP"
_DEFERRED = frozenset((TIMER_TOPIC.encode(), SCHEDULE_TOPIC.encode()))
_TIME = Struct(">q")
_CHUNK_BYTES = 8 << 20
# Numbers in JSON beyond these are damage.
_I64_MAX, _OFFSETS_MAX = (1 << 63) - 1, 1 << 16


@dataclass(frozen=True, slots=True)
class Pop:
    """One receive: messages of a queue that are not acknowledged. Times are Unix ms."""

    group: str
    # A topic, or the retry topic of the group and a topic.
    queue_topic: str
    queue: int
    offsets: tuple[int, ...]
    popped_at_ms: int
    visible_at_ms: int
    # All messages from `begin` to `end` were received; others than `offsets` are acknowledged.
    begin: int
    end: int
    ordered: bool = False
    # Earlier deliveries of each message; empty: by its record.
    failed: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The value in consumerOffset.json, under configs.POPS."""
        where = {"group": self.group, "topic": self.queue_topic, "queue": self.queue, "offsets": list(self.offsets)}
        times = {"poppedAtMs": self.popped_at_ms, "visibleAtMs": self.visible_at_ms}
        span = {"begin": self.begin, "end": self.end, "ordered": self.ordered, "failed": list(self.failed)}
        return where | times | span

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Pop":
        """Raises: KeyError, TypeError, ValueError."""
        offsets, failed = (tuple(map(int, value[name])) for name in ("offsets", "failed"))
        popped_at_ms, visible_at_ms = int(value["poppedAtMs"]), int(value["visibleAtMs"])
        begin, end = int(value["begin"]), int(value["end"])
        place = str(value["group"]), str(value["topic"]), int(value["queue"])
        return cls(*place, offsets, popped_at_ms, visible_at_ms, begin, end, bool(value["ordered"]), failed)


def retry_topics(group: str, topic: str) -> tuple[str, str]:
    """The retry topics of POP for a group and a topic: by default, and with enableRetryTopicV2."""
    return f"{RETRY_PREFIX}{group}_{topic}", f"{RETRY_PREFIX}{group}+{topic}"


def origin_of(group: str, queue_topic: str) -> str:
    """The topic whose messages a topic of a POP has: the group's retry topic has those of another one."""
    for joint in "_+":
        start = f"{RETRY_PREFIX}{group}{joint}"
        if queue_topic.startswith(start):
            return queue_topic[len(start) :]
    return queue_topic


def outstanding(root: Path, offsets: Mapping[str, Any]) -> list[Pop]:
    """All of a directory, in order of the receives. `offsets`: the content of consumerOffset.json.

    Raises:
        DamagedBytes: kvStore can't be read.
        EngineMissing: nor without the library.
    """
    found = [*_in_log(root, offsets), *_in_key_values(root), *_in_orders(root)]
    committed = configs.table_of(offsets, "offsetTable")
    kept = [pop for pop in found if pop.offsets or pop.end > _committed(committed, pop)]
    return sorted(kept, key=lambda pop: (pop.popped_at_ms, pop.group, pop.queue_topic, pop.queue, pop.offsets))


def _committed(table: Mapping[str, Any], pop: Pop) -> int:
    queues = table.get(f"{pop.queue_topic}@{pop.group}")
    found = queues.get(str(pop.queue), 0) if isinstance(queues, dict) else 0
    return found if isinstance(found, int) else 0


# --- the log ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Receive:
    offsets: list[int]
    visible_at_ms: int
    acked: set[int]
    # Times that the broker has stored it again, because the messages could not be read.
    repeats: int = 0
    is_done: bool = False


# Topic, queue, first offset, group, time: all of an acknowledgement's fields that name its receive.
_Key = tuple[str, int, int, str, int]


def _in_log(root: Path, offsets: Mapping[str, Any]) -> Iterator[Pop]:
    log = LogFiles(LocalFiles(root))
    try:
        if not any(_mentions(log, base) for base in log.files):
            return
        receives: dict[_Key, _Receive] = {}
        # An acknowledgement may be stored before its receive.
        acked: dict[_Key, set[int]] = {}
        done = _revived(offsets)
        for found in _records(log):
            _see(found, receives, acked, done)
    finally:
        log.close()
    for key, receive in receives.items():
        topic, queue, _, group, popped_at_ms = key
        ended = receive.acked | acked.get(key, set())
        left = tuple(offset for offset in receive.offsets if offset not in ended)
        if not receive.is_done:
            begin, end = min(receive.offsets, default=0), max(receive.offsets, default=-1) + 1
            yield Pop(group, topic, queue, left, popped_at_ms, receive.visible_at_ms, begin, end)


def _mentions(log: LogFiles, base: int) -> bool:
    """Whether a file of the log has the name of a revive topic."""
    file, before = log.files[base], b""
    for at in range(base, file.end, _CHUNK_BYTES):
        data = file.read_file(at, _CHUNK_BYTES)
        if _REVIVE in data or _REVIVE in before + data[: len(_REVIVE)]:
            return True
        if len(data) < _CHUNK_BYTES:
            return False
        before = data[-len(_REVIVE) :]
    return False


def _records(log: LogFiles) -> Iterator[Record]:
    """The intact records of revive topics, and those on their way there."""
    for item in scan_whole(log, log.min_position):
        if isinstance(item, RecordRun):
            if _REVIVE not in item.data:
                continue
            wanted = [topic.startswith(_REVIVE) or topic in _DEFERRED for topic, _ in item.keys]
            starts, numbers = item.starts, item.key_of
            for index in range(item.count):
                if wanted[numbers[index]] and _REVIVE in item.data[starts[index] : starts[index] + item.sizes[index]]:
                    yield item.record(index)


def _revived(offsets: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """The last offset that the broker has handled, by revive topic and queue."""
    found: dict[tuple[str, int], int] = {}
    for name, queues in configs.table_of(offsets, "offsetTable").items():
        topic, _, group = name.rpartition("@")
        if topic.startswith(REVIVE_PREFIX) and group == REVIVERS and isinstance(queues, dict):
            found |= {(topic, int(queue)): offset for queue, offset in queues.items() if isinstance(offset, int)}
    return found


def _see(
    found: Record, receives: dict[_Key, _Receive], acked: dict[_Key, set[int]], done: Mapping[tuple[str, int], int]
) -> None:
    properties = decode_properties(found.properties)
    is_direct = found.topic.startswith(REVIVE_PREFIX)
    if not is_direct and not properties.get(record.REAL_TOPIC, "").startswith(REVIVE_PREFIX):
        return
    try:
        body = json.loads(found.body)
        key = _key(body)
        match properties.get(record.TAGS):
            case "ck":
                read, bits = _receive(body), _number(body, "bm")
                one = receives.get(key)
                if one is None or read.repeats > one.repeats:
                    one = receives[key] = read
                one.acked |= {offset for at, offset in enumerate(one.offsets) if bits >> at & 1}
                if is_direct and found.queue_offset <= done.get((found.topic, found.queue), -1):
                    one.is_done = True
            case "ack":
                acked.setdefault(key, set()).add(_number(body, "ao"))
            case "bAck":
                acked.setdefault(key, set()).update(map(int, body["aol"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return  # not a broker's


def _key(body: Mapping[str, Any]) -> _Key:
    return str(body["t"]), _number(body, "q"), _number(body, "so"), str(body["c"]), _number(body, "pt")


def _receive(body: Mapping[str, Any]) -> _Receive:
    visible_at_ms = _number(body, "pt") + _number(body, "it")
    return _Receive(_offsets(body), visible_at_ms, set(), int(body.get("rp") or 0))


def _offsets(body: Mapping[str, Any]) -> list[int]:
    """The offsets of a receive: filters leave gaps, which `d` has."""
    first, steps = _number(body, "so"), body.get("d")
    count = _number(body, "n")
    if count > _OFFSETS_MAX:
        raise ValueError("too many")
    return [first + int(step) for step in steps] if steps else list(range(first, first + count))


def _number(body: Mapping[str, Any], name: str) -> int:
    """Raises: KeyError, ValueError."""
    value = body[name]
    if type(value) is not int or not 0 <= value <= _I64_MAX:
        raise ValueError(name)
    return value


# --- kvStore ----------------------------------------------------------------------------------------------------------


def _in_key_values(root: Path) -> Iterator[Pop]:
    if not rocks.is_rocks(root / KEY_VALUES) or rocks.is_empty(root / KEY_VALUES):
        return
    with rocks.opened(root, KEY_VALUES) as database:
        for key, value in database.items(FAMILY):
            try:
                yield _message(key, json.loads(value))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                raise DamagedBytes(
                    f"{KEY_VALUES}: {FAMILY} has a value that is not understood: {value[:80]!r}"
                ) from None


def _message(key: bytes, value: Mapping[str, Any]) -> Pop:
    (visible_at_ms,) = _TIME.unpack_from(key)
    group, topic, kind = str(value["groupId"]), str(value["topicId"]), int(value.get("retryFlag", 0))
    if kind and not topic.startswith(RETRY_PREFIX):
        topic = retry_topics(group, topic)[min(kind, 2) - 1]
    offset, popped_at_ms = _number(value, "offset"), _number(value, "popTime")
    # A queue is received in order, so all messages before are received too.
    return Pop(group, topic, _number(value, "queueId"), (offset,), popped_at_ms, visible_at_ms, 0, offset + 1)


# --- ordered groups ---------------------------------------------------------------------------------------------------


def _in_orders(root: Path) -> Iterator[Pop]:
    table = configs.table_of(configs.read(root / "config", ORDERS), "table")
    for name, queues in table.items():
        topic, _, group = name.rpartition("@")
        for queue, order in queues.items() if isinstance(queues, dict) else ():
            try:
                yield from _ordered(group, topic, int(queue), order)
            except (ValueError, TypeError, KeyError, AttributeError):
                continue  # not a broker's


def _ordered(group: str, topic: str, queue: int, order: Mapping[str, Any]) -> Iterator[Pop]:
    """The latest receive: `o` has the first offset, then steps from it; bits of `cm` are acknowledged ones; `ot` has
    changed times, `oc` earlier deliveries."""
    first, *steps = map(int, order["o"])
    offsets = [first, *(first + step for step in steps)]
    bits, popped_at_ms = int(order.get("cm", 0)), _number(order, "popTime")
    left = tuple(offset for at, offset in enumerate(offsets) if not bits >> at & 1)
    if not left:
        return
    times, counts = configs.table_of(order, "ot"), configs.table_of(order, "oc")
    usual_ms = popped_at_ms + _number(order, "i")
    visible_at_ms = max(int(times.get(str(offset), usual_ms)) for offset in left)
    failed = tuple(int(counts.get(str(offset), 0)) for offset in left)
    yield Pop(group, topic, queue, left, popped_at_ms, visible_at_ms, first, max(offsets) + 1, True, failed)


def by_place(pops: Iterable[Pop]) -> dict[tuple[str, str, int], list[Pop]]:
    """By group, queue's topic and queue."""
    found: dict[tuple[str, str, int], list[Pop]] = {}
    for pop in pops:
        found.setdefault((pop.group, pop.queue_topic, pop.queue), []).append(pop)
    return found
