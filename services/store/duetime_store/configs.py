"""The files under `config/`, in RocketMQ's JSON dialect and with its way of replacing them.

fastjson writes maps with integer keys as `{1:120,3:7}`: the reader quotes such keys, the writer leaves them bare.
A file is replaced through `.tmp`, and the old one stays as `.bak`; a reader falls back to it.

Source: RocketMQ 4.9.3 ConfigManager, MixAll, fastjson MapSerializer.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from duetime_store.disk import Disk

_BARE_KEY = re.compile(r"([{,]\s*)(-?\d+)\s*:")

DELAY_OFFSETS = "delayOffset.json"
TOPICS = "topics.json"
CONSUMER_OFFSETS = "consumerOffset.json"
# Ours: what the data was written with. RocketMQ ignores it.
STORE = "duetimeStore.json"
# Ours too: how far the index files are on disk.
INDEX = "duetimeIndex.json"


def parse(text: str) -> dict[str, Any]:
    """Raises: ValueError for what is not an object in this dialect."""
    value = json.loads(_BARE_KEY.sub(r'\1"\2":', text))
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def render(value: Any, depth: int = 0) -> str:
    """fastjson's pretty form: tabs, string keys each on a line, integer keys together on one."""
    if not isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False)
    end = "\n" + "\t" * depth + "}"
    if all(isinstance(key, int) for key in value):
        return "{" + ",".join(f"{key}:{render(item, depth + 1)}" for key, item in value.items()) + end
    line = "\n" + "\t" * (depth + 1)
    entries = [f"{line}{json.dumps(key, ensure_ascii=False)}:{render(item, depth + 1)}" for key, item in value.items()]
    return "{" + ",".join(entries) + end


def read(directory: Path, name: str) -> dict[str, Any] | None:
    """The file's content, or its backup's; None when neither can be read."""
    for path in (directory / name, directory / f"{name}.bak"):
        try:
            return parse(path.read_text("utf-8"))
        except (OSError, ValueError):
            continue
    return None


def write(disk: Disk, directory: Path, name: str, value: Mapping[str, Any]) -> None:
    """Replaces the file; durable on return, and never missing meanwhile."""
    disk.make_directory(directory)
    path, temporary, backup = directory / name, directory / f"{name}.tmp", directory / f"{name}.bak"
    disk.write_file(temporary, render(value).encode())
    if path.exists():
        disk.unlink(backup)
        disk.link(path, backup)
    disk.replace(temporary, path)
    disk.sync_directory(directory)


def delay_offsets(value: Mapping[str, Any] | None) -> dict[int, int]:
    """Next entry to deliver by level, from the content of delayOffset.json."""
    table = (value or {}).get("offsetTable")
    if not isinstance(table, dict):
        return {}
    return {int(level): int(offset) for level, offset in table.items() if str(level).isdigit()}


def topic_counts(value: Mapping[str, Any] | None) -> dict[str, int]:
    """Queues to read by topic, from the content of topics.json."""
    table = (value or {}).get("topicConfigTable")
    if not isinstance(table, dict):
        return {}
    return {name: int(entry.get("readQueueNums", 0)) for name, entry in table.items() if isinstance(entry, dict)}


def topics(counts: Mapping[str, int], now_ms: int, counter: int) -> dict[str, Any]:
    """The content of topics.json."""
    table = {
        name: {
            "order": False,
            "perm": 6,
            "readQueueNums": count,
            "topicFilterType": "SINGLE_TAG",
            "topicName": name,
            "topicSysFlag": 0,
            "writeQueueNums": count,
        }
        for name, count in sorted(counts.items())
    }
    return {"dataVersion": {"counter": counter, "timestamp": now_ms}, "topicConfigTable": table}
