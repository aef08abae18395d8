"""Writing the files under `config/`: RocketMQ's JSON dialect, and its way of replacing them.

fastjson writes maps with integer keys as `{1:120,3:7}`: the reader quotes such keys, the writer leaves them bare. A
file is replaced through `.tmp`, and the old one stays as `.bak`. A broker's file is changed, never rebuilt: fields and
entries that are not known here stay as they are.

The core reads them (duetime_shard.configs); its functions are re-exported from here.

Source: RocketMQ 4.9.3 ConfigManager, MixAll, fastjson MapSerializer.
"""

import json
import os
from collections.abc import Mapping, Set
from pathlib import Path
from types import MappingProxyType
from typing import Any

from duetime_shard.configs import (
    ACCEPTED,
    CHECKS,
    CONSUMER_OFFSETS,
    CRC,
    DELAY_OFFSETS,
    GROUP_TABLE,
    GROUPS,
    INDEX,
    LITE_OFFSETS,
    POPS,
    STORE,
    TOPICS,
    ZONES,
    LoadedConfig,
    count_of,
    crc_of,
    delay_offsets,
    fault_of,
    groups,
    load,
    numbered,
    parse,
    read,
    table_of,
    topic_counts,
)

from duetime_store.files.disk import Disk

__all__ = [
    "ACCEPTED",
    "CHECKS",
    "CONSUMER_OFFSETS",
    "CRC",
    "DELAY_OFFSETS",
    "GROUPS",
    "GROUP_TABLE",
    "INDEX",
    "LITE_OFFSETS",
    "POPS",
    "STORE",
    "TOPICS",
    "ZONES",
    "LoadedConfig",
    "as_read",
    "crc_of",
    "delay_offsets",
    "fault_of",
    "groups",
    "load",
    "make_durable",
    "numbered",
    "parse",
    "read",
    "render",
    "table_of",
    "topic_counts",
    "topic_types",
    "with_delay_offsets",
    "with_group_offsets",
    "with_groups",
    "with_topics",
    "with_version",
    "write",
]

# The attribute of RocketMQ 5's topics for their message type.
MESSAGE_TYPE = "message.type"
_GROUP = {
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 16,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}
_GROUP_5 = {
    "attributes": {},
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
}


def render(value: Any, depth: int = 0) -> str:
    """fastjson's pretty form: tabs, string keys each on a line, integer keys together on one."""
    if not isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False)
    if not value:
        return "{}"
    end = "\n" + "\t" * depth + "}"
    if all(isinstance(key, int) for key in value):
        return "{" + ",".join(f"{key}:{render(item, depth + 1)}" for key, item in value.items()) + end
    line = "\n" + "\t" * (depth + 1)
    entries = [f"{line}{json.dumps(key, ensure_ascii=False)}:{render(item, depth + 1)}" for key, item in value.items()]
    return "{" + ",".join(entries) + end


def write(disk: Disk, directory: Path, name: str, value: Mapping[str, Any], *, durable: bool = True) -> None:
    """Replaces the file; durable on return, and never missing in between. Only an intact one becomes the backup.

    Without `durable` a power cut may leave an older content or none. That is for derived files: each flush of a file
    delays those of the log.
    """
    disk.make_directory(directory)
    path, temporary, backup = directory / name, directory / f"{name}.tmp", directory / f"{name}.bak"
    # CRC of the value as read back: with all keys as strings.
    crc = crc_of(as_read(value))
    disk.write_file(temporary, render({**value, CRC: crc}).encode(), durable=durable)
    if not fault_of(path):
        disk.unlink(backup)
        disk.link(path, backup)
    disk.replace(temporary, path)
    if durable:
        disk.sync_directory(directory)


def as_read(value: Mapping[str, Any]) -> dict[str, Any]:
    """The content as `read` returns it: with all keys as text."""
    found: dict[str, Any] = json.loads(json.dumps(value))
    return found


def make_durable(disk: Disk, directory: Path, name: str) -> None:
    """Makes a file that was written without `durable` durable."""
    if (directory / name).exists():
        fd = disk.open(directory / name, os.O_RDONLY)
        try:
            disk.sync(fd)
        finally:
            disk.close(fd)
        disk.sync_directory(directory)


def with_delay_offsets(value: Mapping[str, Any] | None, offsets: Mapping[int, int], now_ms: int) -> dict[str, Any]:
    """delayOffset.json's content with other offsets; RocketMQ 4.9 has no version in it."""
    known = delay_offsets(value)
    table = known | {level: offset for level, offset in offsets.items() if offset or level in known}
    changed = {**(value or {}), "offsetTable": dict(sorted(table.items()))}
    if "dataVersion" in changed:
        changed["dataVersion"] = _raised(changed["dataVersion"], now_ms)
    return changed


def with_group_offsets(value: Mapping[str, Any] | None, offsets: Mapping[str, Mapping[int, int]]) -> dict[str, Any]:
    """consumerOffset.json's content with other next offsets: by `topic@group`, then by queue."""
    table = {name: numbered(queues) for name, queues in table_of(value, "offsetTable").items()}
    return {**(value or {}), "offsetTable": {**table, **offsets}}


def topic_types(value: Mapping[str, Any] | None) -> dict[str, str]:
    """RocketMQ's names of message types, by topic, from the content of topics.json; 4.9 has none."""
    found = {name: _type_of(entry) for name, entry in table_of(value, "topicConfigTable").items()}
    return {name: kind for name, kind in found.items() if kind}


def _type_of(entry: Any) -> str:
    kind = table_of(entry if isinstance(entry, dict) else None, "attributes").get(MESSAGE_TYPE)
    return kind if isinstance(kind, str) else ""


def with_topics(
    value: Mapping[str, Any] | None,
    counts: Mapping[str, int],
    now_ms: int,
    types: Mapping[str, str] = MappingProxyType({}),
    removed: Set[str] = frozenset(),
) -> dict[str, Any] | None:
    """topics.json's content with these topics, at least this many queues of each, and these message types, and without
    the topics `removed`; None: that is its content already. Other attributes stay."""
    table = dict(table_of(value, "topicConfigTable"))
    gone = [name for name in sorted(removed) if table.pop(name, None) is not None]
    # RocketMQ 5 has attributes in every entry.
    has_attributes = any(isinstance(entry, dict) and "attributes" in entry for entry in table.values())
    missing = {name for name, count in counts.items() if count > count_of(table.get(name), "readQueueNums", -1)}
    missing |= {name for name in types.keys() & counts if types[name] != _type_of(table.get(name))}
    for name in sorted(missing):
        entry = table.get(name) if isinstance(table.get(name), dict) else {"attributes": {}} if has_attributes else {}
        default = {"order": False, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicName": name, "topicSysFlag": 0}
        read_count = max(counts[name], count_of(entry, "readQueueNums"))
        set_now: dict[str, Any] = {
            "readQueueNums": read_count,
            "writeQueueNums": max(counts[name], count_of(entry, "writeQueueNums")),
        }
        if kind := types.get(name):
            set_now["attributes"] = {**table_of(entry, "attributes"), MESSAGE_TYPE: kind}
        known = {**default, **(entry or {}), **set_now}
        table[name] = {field: known[field] for field in [*(entry or {}), *sorted(set(known) - set(entry or {}))]}
    if not missing and not gone and value is not None:
        return None
    version = _raised((value or {}).get("dataVersion"), now_ms)
    return {"dataVersion": version, **(value or {}), "topicConfigTable": table} | {"dataVersion": version}


def with_groups(
    value: Mapping[str, Any] | None, changes: Mapping[str, tuple[int, bool] | None], now_ms: int
) -> dict[str, Any]:
    """subscriptionGroup.json's content with these groups; `value` unchanged if it has them already.

    `changes`: by group, its retries after the first delivery and whether it is ordered; None: the group is removed.
    """
    known = groups(value)
    table = dict(table_of(value, GROUP_TABLE))
    # RocketMQ 5 has these in every entry.
    newer = any("attributes" in one for one in known.values())
    changed = False
    for name, change in changes.items():
        if change is None:
            changed |= table.pop(name, None) is not None
            continue
        entry = known.get(name, {})
        after = _group(name, entry, *change, newer=newer)
        if after != entry or value is None:
            table[name] = after
            changed = True
    return _with_groups(value, table, now_ms) if changed else dict(value or {})


def _group(name: str, entry: Mapping[str, Any], retries: int, ordered: bool, *, newer: bool) -> dict[str, Any]:
    """A group's entry; existing fields keep their order."""
    default = {**_GROUP, **(_GROUP_5 if newer else {}), "groupName": name}
    set_now = {"retryMaxTimes": retries} | ({"consumeMessageOrderly": ordered} if newer or ordered else {})
    known = {**default, **entry, **set_now}
    return {field: known[field] for field in [*entry, *sorted(set(known) - set(entry))]}


def _with_groups(value: Mapping[str, Any] | None, table: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    version = _raised((value or {}).get("dataVersion"), now_ms)
    return {"dataVersion": version, **(value or {}), GROUP_TABLE: table} | {"dataVersion": version}


def with_version(value: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    """The content with a version; one from 1 on stays."""
    known = table_of(value, "dataVersion")
    version = known if count_of(known, "counter") else {"stateVersion": 0, **_raised(known, now_ms)}
    return {"dataVersion": version, **value} | {"dataVersion": version}


def _raised(version: Any, now_ms: int) -> dict[str, Any]:
    """The version of a changed file: nodes of a RocketMQ cluster take the content with the higher one."""
    known = version if isinstance(version, dict) else {}
    return {**known, "counter": count_of(known, "counter") + 1, "timestamp": now_ms}
