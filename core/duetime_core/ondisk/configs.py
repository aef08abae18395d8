"""The files under `config/`, in RocketMQ's JSON dialect and with its way of replacing them.

fastjson writes maps with integer keys as `{1:120,3:7}`: the reader quotes such keys, the writer leaves them bare. A
file is replaced through `.tmp`, and the old one stays as `.bak`; a reader falls back to it. What DueTime writes ends
with `duetimeCrc32`, the CRC-32 of all else in the file, which a broker ignores and leaves out when it writes the file.

A broker's file is changed, never made anew: fields and entries that are not known here stay as they are.

Source: RocketMQ 4.9.3 ConfigManager, MixAll, fastjson MapSerializer.
"""

import json
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duetime_store.disk import Disk

# A string, which is left alone, or a bare integer key.
_STRING_OR_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)\s*:')

DELAY_OFFSETS = "delayOffset.json"
TOPICS = "topics.json"
CONSUMER_OFFSETS = "consumerOffset.json"
GROUPS = "subscriptionGroup.json"
# Ours: what the data was written with. RocketMQ ignores it.
STORE = "duetimeStore.json"
# Ours too: how far the index files are on disk.
INDEX = "duetimeIndex.json"
CRC = "duetimeCrc32"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file's content; `fault` says why it is the backup's or none at all. A file that was never there is no fault."""

    value: dict[str, Any] | None = None
    fault: str = ""


def parse(text: str) -> dict[str, Any]:
    """Raises: ValueError for what is not an object in this dialect."""
    value = json.loads(_STRING_OR_KEY.sub(_quoted, text))
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _quoted(match: re.Match[str]) -> str:
    return f'{match[1]}"{match[2]}":' if match[2] else match[0]


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


def load(directory: Path, name: str) -> Loaded:
    """The file's content, or its backup's; neither raises."""
    value, fault = _read(directory / name)
    if not fault:
        return Loaded(value)
    backup, backup_fault = _read(directory / f"{name}.bak")
    if backup is not None:
        return Loaded(backup, f"{fault}; its backup is read")
    if value is None and backup_fault == _GONE and fault == _GONE:
        return Loaded()
    return Loaded(None, f"{fault}; its backup: {backup_fault}")


def read(directory: Path, name: str) -> dict[str, Any] | None:
    """The file's content, or its backup's; None when neither can be read."""
    return load(directory, name).value


def fault_of(path: Path) -> str:
    """What is wrong with one file; nothing where it can be read."""
    return _read(path)[1]


_GONE = "it is not there"


def _read(path: Path) -> tuple[dict[str, Any] | None, str]:
    """The content without its CRC, or what is wrong with the file."""
    try:
        value = parse(path.read_bytes().decode())
    except FileNotFoundError:
        return None, _GONE
    except OSError as error:
        return None, f"it can't be read: {error.strerror}"
    except (ValueError, RecursionError) as error:
        return None, f"it is no JSON object: {error}"
    crc = value.pop(CRC, None)
    if crc is not None and crc != _crc(value):
        return None, f"its CRC is {crc}, {_crc(value)} by its content"
    return value, ""


def _crc(value: Mapping[str, Any]) -> int:
    """Of what the content says, whatever its spaces and the order of its keys."""
    return zlib.crc32(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def write(disk: Disk, directory: Path, name: str, value: Mapping[str, Any], *, durable: bool = True) -> None:
    """Replaces the file; durable on return, and never missing meanwhile. Only an intact one becomes the backup.

    Without `durable` a power cut may leave an older content, or none, of what can be told without it: each flush of a
    file holds up those of the log.
    """
    disk.make_directory(directory)
    path, temporary, backup = directory / name, directory / f"{name}.tmp", directory / f"{name}.bak"
    crc = _crc(parse(render(value)))
    disk.write_file(temporary, render({**value, CRC: crc}).encode(), durable=durable)
    if _read(path)[0] is not None:
        disk.unlink(backup)
        disk.link(path, backup)
    disk.replace(temporary, path)
    if durable:
        disk.sync_directory(directory)


def make_durable(disk: Disk, directory: Path, name: str) -> None:
    """What was written without `durable` is on disk on return."""
    if (directory / name).exists():
        fd = disk.open(directory / name, os.O_RDONLY)
        try:
            disk.sync(fd)
        finally:
            disk.close(fd)
        disk.sync_directory(directory)


def delay_offsets(value: Mapping[str, Any] | None) -> dict[int, int]:
    """Next entry to deliver by level, from the content of delayOffset.json."""
    table = _table(value, "offsetTable")
    return {int(level): offset for level, offset in table.items() if level.isdigit() and isinstance(offset, int)}


def topic_counts(value: Mapping[str, Any] | None) -> dict[str, int]:
    """Queues to read by topic, from the content of topics.json."""
    table = _table(value, "topicConfigTable")
    return {name: _count(entry, "readQueueNums") for name, entry in table.items() if isinstance(entry, dict)}


def with_delay_offsets(value: Mapping[str, Any] | None, offsets: Mapping[int, int], now_ms: int) -> dict[str, Any]:
    """delayOffset.json's content with other offsets; RocketMQ 4.9 has no version in it."""
    known = delay_offsets(value)
    table = known | {level: offset for level, offset in offsets.items() if offset or level in known}
    changed = {**(value or {}), "offsetTable": dict(sorted(table.items()))}
    if "dataVersion" in changed:
        changed["dataVersion"] = _raised(changed["dataVersion"], now_ms)
    return changed


def with_topics(value: Mapping[str, Any] | None, counts: Mapping[str, int], now_ms: int) -> dict[str, Any] | None:
    """topics.json's content with these topics, and queues where there are fewer; None: it has all of them."""
    table = dict(_table(value, "topicConfigTable"))
    # RocketMQ 5 has attributes in every entry.
    has_attributes = any(isinstance(entry, dict) and "attributes" in entry for entry in table.values())
    missing = {name for name, count in counts.items() if count > _count(table.get(name), "readQueueNums", -1)}
    for name in sorted(missing):
        entry = table.get(name) if isinstance(table.get(name), dict) else {"attributes": {}} if has_attributes else {}
        default = {"order": False, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicName": name, "topicSysFlag": 0}
        write_count = max(counts[name], _count(entry, "writeQueueNums"))
        queue_counts = {"readQueueNums": counts[name], "writeQueueNums": write_count}
        known = {**default, **(entry or {}), **queue_counts}
        table[name] = {field: known[field] for field in [*(entry or {}), *sorted(set(known) - set(entry or {}))]}
    if not missing and value is not None:
        return None
    version = _raised((value or {}).get("dataVersion"), now_ms)
    return {"dataVersion": version, **(value or {}), "topicConfigTable": table} | {"dataVersion": version}


def groups(value: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Entries by group, from the content of subscriptionGroup.json."""
    return {name: entry for name, entry in _table(value, _GROUP_TABLE).items() if isinstance(entry, dict)}


def with_group(value: Mapping[str, Any] | None, name: str, retries: int, ordered: bool, now_ms: int) -> dict[str, Any]:
    """subscriptionGroup.json's content with this group, or `value` itself where it has it so.

    `retries`: after the first delivery.
    """
    table = dict(_table(value, _GROUP_TABLE))
    entry = groups(value).get(name, {})
    # RocketMQ 5 has these in every entry.
    newer = any("attributes" in one for one in groups(value).values())
    default = {**_GROUP, **(_GROUP_5 if newer else {}), "groupName": name}
    set_now = {"retryMaxTimes": retries} | ({"consumeMessageOrderly": ordered} if newer or ordered else {})
    known = {**default, **entry, **set_now}
    if known == entry and value is not None:
        return dict(value)
    table[name] = {field: known[field] for field in [*entry, *sorted(set(known) - set(entry))]}
    return _with_groups(value, table, now_ms)


def without_group(value: Mapping[str, Any] | None, name: str, now_ms: int) -> dict[str, Any]:
    """subscriptionGroup.json's content without this group, or `value` itself where it has none."""
    table = dict(_table(value, _GROUP_TABLE))
    if table.pop(name, None) is None:
        return dict(value or {})
    return _with_groups(value, table, now_ms)


def _with_groups(value: Mapping[str, Any] | None, table: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    version = _raised((value or {}).get("dataVersion"), now_ms)
    return {"dataVersion": version, **(value or {}), _GROUP_TABLE: table} | {"dataVersion": version}


_GROUP_TABLE = "subscriptionGroupTable"
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


def _table(value: Mapping[str, Any] | None, name: str) -> dict[str, Any]:
    table = (value or {}).get(name)
    return table if isinstance(table, dict) else {}


def _count(entry: Any, name: str, default: int = 0) -> int:
    count = entry.get(name) if isinstance(entry, dict) else None
    return count if isinstance(count, int) else default


def _raised(version: Any, now_ms: int) -> dict[str, Any]:
    """The version of a changed file: nodes of a RocketMQ cluster take the content with the higher one."""
    known = version if isinstance(version, dict) else {}
    return {**known, "counter": _count(known, "counter") + 1, "timestamp": now_ms}
