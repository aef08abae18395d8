"""Reads the files under `config/`, which use RocketMQ's JSON dialect and way of replacement.

fastjson writes maps with integer keys as `{1:120,3:7}`: the reader quotes such keys, the writer leaves them bare. A
file is replaced through `.tmp`, and the old one is kept as `.bak`; readers fall back to it. Files written by DueTime
end with `duetimeCrc32`, the CRC-32 of the rest of the file; a broker ignores it, and omits it when it writes the file.

Source: RocketMQ 4.9.3 ConfigManager, MixAll, fastjson MapSerializer.
"""

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duetime_shard.disk import LocalFiles, ShardFiles

# Matches a string, which is kept, or a bare integer key.
_STRING_OR_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)\s*:')

DELAY_OFFSETS = "delayOffset.json"
TOPICS = "topics.json"
CONSUMER_OFFSETS = "consumerOffset.json"
GROUPS = "subscriptionGroup.json"
# DueTime's own: the settings of the data. RocketMQ ignores it.
STORE = "duetimeStore.json"
# DueTime's own: the kinds of losses that an import has accepted.
ACCEPTED = "duetimeAccepted.json"
# DueTime's own: durable progress of the index files.
INDEX = "duetimeIndex.json"
# DueTime's own: the time zone rules of pending occurrences.
ZONES = "duetimeZones.json"
# Offsets of a broker with lite topics: the form of CONSUMER_OFFSETS.
LITE_OFFSETS = "lmqConsumerOffset.json"
# DueTime's own key in a broker's CONSUMER_OFFSETS: messages received by POP (pops.py), until a start takes them over.
POPS = "duetimePops"
# The same for numbers of checks of transactions (brokers/halves.py), by position of the half record.
CHECKS = "duetimeChecks"
_I32_MAX, _I64_MAX = (1 << 31) - 1, (1 << 63) - 1
CRC = "duetimeCrc32"


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A file's content; `fault`: the reason for using the backup, or for missing content. A file that never existed is
    not a fault."""

    value: dict[str, Any] | None = None
    fault: str = ""
    # Whether it has DueTime's CRC: no broker has written it since.
    is_ours: bool = False


def parse(text: str) -> dict[str, Any]:
    """Raises: ValueError: not an object in this dialect."""
    try:
        value = json.loads(text)
    except ValueError:
        value = json.loads(_STRING_OR_KEY.sub(_quoted, text))
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _quoted(match: re.Match[str]) -> str:
    return f'{match[1]}"{match[2]}":' if match[2] else match[0]


def load(directory: Path, name: str) -> LoadedConfig:
    """The file's content, or its backup's; never raises."""
    return load_from(LocalFiles(directory), name, "")


def load_from(files: ShardFiles, name: str, folder: str = "config/") -> LoadedConfig:
    """As `load`, from a shard's directory."""
    value, fault, is_ours = _read(files, folder + name)
    if not fault:
        return LoadedConfig(value, is_ours=is_ours)
    backup, backup_fault, is_ours = _read(files, f"{folder}{name}.bak")
    if backup is not None:
        return LoadedConfig(backup, f"{fault}; its backup is read", is_ours)
    if value is None and backup_fault == _GONE and fault == _GONE:
        return LoadedConfig()
    return LoadedConfig(None, f"{fault}; its backup: {backup_fault}")


def read(directory: Path, name: str) -> dict[str, Any] | None:
    """The file's content, or its backup's; None: neither is readable."""
    return load(directory, name).value


def fault_of(path: Path) -> str:
    """The fault of one file; empty: readable."""
    return _read(LocalFiles(path.parent), path.name)[1]


_GONE = "it is not there"


def _read(files: ShardFiles, path: str) -> tuple[dict[str, Any] | None, str, bool]:
    """The content without its CRC, or the fault of the file; and whether it had a CRC."""
    try:
        data = files.content(path)
        if data is None:
            return None, _GONE, False
        value = parse(data.decode())
    except OSError as error:
        return None, f"it cannot be read: {error.strerror}", False
    except (ValueError, RecursionError) as error:
        return None, f"it is not a JSON object: {error}", False
    crc = value.pop(CRC, None)
    if crc is not None and crc != crc_of(value):
        return None, f"its CRC is {crc}, {crc_of(value)} by its content", True
    return value, "", crc is not None


def crc_of(value: Mapping[str, Any]) -> int:
    """The CRC of the content, independent of spaces and the order of keys."""
    return zlib.crc32(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def delay_offsets(value: Mapping[str, Any] | None) -> dict[int, int]:
    """Next entry to deliver by level, from the content of delayOffset.json."""
    table = table_of(value, "offsetTable")
    return {int(level): offset for level, offset in table.items() if _is_number(level) and _is_count(offset)}


def topic_counts(value: Mapping[str, Any] | None) -> dict[str, int]:
    """Read queues by topic, from the content of topics.json."""
    table = table_of(value, "topicConfigTable")
    counts = {name: count_of(entry, "readQueueNums") for name, entry in table.items() if isinstance(entry, dict)}
    return {name: count if count <= _I32_MAX else 0 for name, count in counts.items()}


def groups(value: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Entries by group, from the content of subscriptionGroup.json."""
    return {name: entry for name, entry in table_of(value, GROUP_TABLE).items() if isinstance(entry, dict)}


GROUP_TABLE = "subscriptionGroupTable"


def numbered(offsets: Any) -> Any:
    """The table with queues and offsets as numbers; any other value is kept as it is, and not used."""
    try:
        return {int(queue): int(offset) for queue, offset in offsets.items()}
    except (AttributeError, TypeError, ValueError):
        return offsets


def table_of(value: Mapping[str, Any] | None, name: str) -> dict[str, Any]:
    table = (value or {}).get(name)
    return table if isinstance(table, dict) else {}


def count_of(entry: Any, name: str, default: int = 0) -> int:
    count = entry.get(name) if isinstance(entry, dict) else None
    return count if isinstance(count, int) and _is_count(count) else default


def _is_number(text: str) -> bool:
    """Whether `int` accepts it; a superscript is a digit, but not a number."""
    return text.isascii() and text.isdigit() and len(text) < 10


def _is_count(value: Any) -> bool:
    """Excludes JSON values that no broker writes, such as true and 1e400."""
    return type(value) is int and 0 <= value <= _I64_MAX
