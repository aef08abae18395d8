"""A directory's summary: one object, with the names of RocketMQ's tools and files."""

from dataclasses import astuple
from pathlib import Path
from struct import Struct
from typing import Any

from duetime_format.errors import DamagedBytes
from duetime_format.lanes import is_timer_lane
from duetime_shard import halves, kept
from duetime_shard.brokers import config as brokerconfig
from duetime_shard.brokers import engines, pops
from duetime_shard.brokers.config import BrokerConfig
from duetime_shard.brokers.engines import EngineMissing, Loss
from duetime_shard.brokers.pops import Pop
from duetime_shard.brokers.wheel import timers
from duetime_shard.pending import PendingLane, lanes
from duetime_shard.shard import DirectoryState, restored

from duetime_store.files import configs
from duetime_store.finding import index
from duetime_store.recovery import checkpoint

_TIMES = Struct(">qqqqq")
_TIME_NAMES = (
    "physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp", "masterFlushedOffset", "confirmPhyOffset",
)  # fmt: skip
_TOPIC_NAMES = ("readQueueNums", "writeQueueNums", "perm", "order", "topicSysFlag")
_GROUP_NAMES = ("retryMaxTimes", "retryQueueNums", "consumeEnable")


def summary(state: DirectoryState, *, topic: str | None = None, listed: bool = True) -> dict[str, Any]:
    """
    Args:
        topic: queues of this one only.
        listed: also every timer, half message and record in no queue.
    """
    root = state.root
    shown = [queue for _, queue in sorted(state.queues.items()) if topic in (None, queue.topic)]
    offsets = configs.delay_offsets(configs.read(state.config, configs.DELAY_OFFSETS))
    found, received = _brokers(root)
    groups = _group_offsets(found.offsets or kept.current(state.files, state.offsets))
    timer = timers(state, listed=listed)
    index_files = _index_files(root)
    return {
        "name": root.resolve().name,
        "writtenBy": "DueTime" if (state.config / configs.STORE).exists() else "RocketMQ",
        "abortFile": (root / "abort").exists(),
        "delayLevels": str(state.history.current),
        "sizes": _sizes(state, index_files),
        "checkpoint": _checkpoint(root),
        "commitLog": _commit_log(state, listed=listed),
        "consumeQueueUnits": sum(queue.max_offset - queue.min_offset for queue in shown),
        "queues": _queues(shown),
        "indexFiles": index_files,
        **({"recordsInNoQueue": _unqueued(state)} if listed else {}),
        "delayOffsetFile": {str(level): offset for level, offset in sorted(offsets.items())},
        **_lanes(state, offsets),
        "consumerOffset": groups,
        "topics": _table(found.topics or configs.read(state.config, configs.TOPICS), "topicConfigTable", _TOPIC_NAMES),
        "subscriptionGroups": _table(
            found.groups or configs.read(state.config, configs.GROUPS), configs.GROUP_TABLE, _GROUP_NAMES
        ),
        **({"timer": timer} if timer is not None else {}),
        **_engines(state, found, received),
        "halfMessages": halves.described(state, listed=listed),
        "damaged": [{"physicalOffset": position, "damage": words} for position, words in state.damaged],
    }


def _sizes(state: DirectoryState, index_files: list[dict[str, Any]]) -> dict[str, int]:
    queue = next((queue.files.file_bytes for queue in state.queues.values() if queue.files.file_bytes), 0)
    sizes = {"mappedFileSizeCommitLog": state.log.segment_bytes, "mappedFileSizeConsumeQueue": queue}
    return sizes | {
        name: file[name] for file in index_files for name in ("maxHashSlotNum", "maxIndexNum") if name in file
    }


def _checkpoint(root: Path) -> dict[str, Any] | None:
    """RocketMQ's fields; also ours if the file has them."""
    try:
        data = (root / "checkpoint").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if len(data) < _TIMES.size:
        return None
    found: dict[str, Any] = dict(zip(_TIME_NAMES, _TIMES.unpack_from(data), strict=True))
    ours = checkpoint.decode(data)
    if ours is not None:
        found |= {"position": ours.position, "unitCount": ours.unit_count, "watermarks": list(ours.watermarks)}
    return found


def _commit_log(state: DirectoryState, *, listed: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "minPhysicalOffset": state.min_position,
        "maxPhysicalOffset": state.end,
        "files": len(state.log.files),
        "records": state.records,
        "recordBytes": state.record_bytes,
        "blanks": len(state.blanks),
        "recordsInNoQueueCount": len(state.unqueued),
    }
    if listed:
        found["blankAtAndLength"] = [[blank.position, blank.size] for blank in state.blanks]
    return found


def _unqueued(state: DirectoryState) -> list[dict[str, Any]]:
    names = ("physicalOffset", "size", "topic", "queueId", "queueOffset", "sysFlag")
    return [dict(zip(names, astuple(left), strict=True)) for left in state.unqueued]


def _queues(shown: list[Any]) -> dict[str, dict[str, dict[str, int]]]:
    found: dict[str, dict[str, dict[str, int]]] = {}
    for queue in shown:
        found.setdefault(queue.topic, {})[str(queue.queue)] = {"min": queue.min_offset, "max": queue.max_offset}
    return found


def _lanes(state: DirectoryState, offsets: dict[int, int]) -> dict[str, Any]:
    """Pending messages per lane; offsets of delayOffset.json outside their queue's range are corrected first."""
    levels, known = restored(state), lanes(state)
    queues = {level: known[level].queue for level in levels if level in known}
    ends = {level: queue.max_offset for level, queue in queues.items()}
    lows = {level: queue.min_offset for level, queue in queues.items()}
    corrected = {
        str(level): min(max(offset, lows.get(level, 0)), ends.get(level, 0))
        for level, offset in sorted(offsets.items())
    }
    counts = {number: lane.counts() for number, lane in known.items()}
    pending = {str(level): counts.get(level, (0, 0))[0] for level in levels}
    return {
        "delayOffsetAfterLoad": corrected,
        "watermarks": {str(level): lane.watermark for level, lane in levels.items()},
        "pendingPerDelayLevel": pending,
        "pendingTotal": sum(pending.values()),
        "endedPerDelayLevel": {str(level): counts[level][1] for level in queues if counts[level][1]},
        "timerLanes": {
            str(number): _timer_lane(state, lane, *counts[number])
            for number, lane in known.items()
            if is_timer_lane(number)
        },
    }


def _timer_lane(state: DirectoryState, lane: PendingLane, pending: int, ended: int) -> dict[str, Any]:
    place = state.places.get(lane.number)
    return {
        "queueId": lane.queue.queue,
        "min": lane.queue.min_offset,
        "max": lane.queue.max_offset,
        "pending": pending,
        "ended": ended,
        # Taken from the checkpoint: all entries up to there, in order of due time, are restored or have ended.
        "dueAtMs": place.due_at_ms if place is not None else None,
        "entry": place.entry if place is not None else None,
    }


def _brokers(root: Path) -> tuple[BrokerConfig, list[Pop]]:
    """State of a broker outside its JSON files, and messages received by POP; unreadable ones are losses."""
    if engines.is_taken_over(root):
        return BrokerConfig(), []
    try:
        found = brokerconfig.read(root)
        known = configs.load(root / "config", configs.CONSUMER_OFFSETS)
        if known.is_ours and found.offsets is None:
            return found, []
        return found, pops.outstanding(root, found.offsets or known.value or {})
    except (EngineMissing, DamagedBytes) as error:
        return BrokerConfig(losses=[Loss("pop" if isinstance(error, DamagedBytes) else "engines", error.text)]), []


def _engines(state: DirectoryState, config: BrokerConfig, received: list[Pop]) -> dict[str, Any]:
    """The RocksDBs of a broker, with the number of entries by column family, and messages received by POP."""
    if (state.config / configs.STORE).exists():
        return {}
    try:
        contents = engines.survey(state.root).contents
    except EngineMissing as error:
        contents = {"": {"fault": error.text}}
    found: dict[str, Any] = {"engines": contents} if contents else {}
    if config.losses:
        found["losses"] = [loss._asdict() for loss in config.losses]
    if received:
        found["pops"] = [pop.to_dict() for pop in received]
    return found


def _group_offsets(content: dict[str, Any] | None) -> dict[str, dict[str, int]]:
    table = (content or {}).get("offsetTable")
    if not isinstance(table, dict):
        return {}
    rows = {name: queues for name, queues in sorted(table.items()) if isinstance(queues, dict)}
    return {name: {str(queue): offset for queue, offset in queues.items()} for name, queues in rows.items()}


def _table(content: dict[str, Any] | None, table: str, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """The fields `names` of each entry."""
    entries = (content or {}).get(table)
    if not isinstance(entries, dict):
        return {}
    return {
        key: {field: entry.get(field) for field in names}
        for key, entry in sorted(entries.items())
        if isinstance(entry, dict)
    }


def _index_files(root: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in index.file_paths(root / "index"):
        try:
            file = index.IndexFile(path)
        except FileNotFoundError:
            continue
        except (DamagedBytes, OSError) as error:
            found.append({"name": path.name, "damage": str(error)})
            continue
        header = file.header
        found.append(
            {
                "name": path.name,
                "maxHashSlotNum": file.shape.slot_count,
                "maxIndexNum": file.shape.entry_count,
                "beginTimestamp": header.begin_at_ms,
                "endTimestamp": header.end_at_ms,
                "beginPhyOffset": header.begin_position,
                "endPhyOffset": header.end_position,
                "usedSlots": header.used_slots,
                "entries": header.next_entry - 1,
            }
        )
        file.close()
    return found
