"""Offsets, topics and groups of a broker, wherever it keeps them, in the form of its JSON files.

    config/consumerOffset.json, topics.json, subscriptionGroup.json     the default
    config/lmqConsumerOffset.json                                       offsets, with enableLmq
    config/consumerOffsets, topics, subscriptionGroups                  RocksDB, with storeType=defaultRocksDB
    config/metadata                                                     the same, with useSingleRocksDBForAllConfigs
    config/rdb                                                          RocksDB, with configManagerVersion=v2

A broker whose settings have changed leaves the earlier ones. The one written last counts.

Keys of `rdb`: u8 1, u16 table, u8 kind, then names with a u16 length before them; those of offsets are followed by u8 1
each, and by an i32 queue. Values are an i64 offset, or u8 1 and JSON. Big-endian.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Any

from duetime_format.errors import DamagedBytes
from duetime_format.names import SYSTEM_PREFIXES

from duetime_shard import configs
from duetime_shard.brokers import rocks
from duetime_shard.brokers.engines import (
    ALL_FOLDER,
    GROUPS_FOLDER,
    OFFSETS_FOLDER,
    SINGLE_FAMILIES,
    SINGLE_FOLDER,
    TOPICS_FOLDER,
    Loss,
)
from duetime_shard.shard import LMQ_PREFIX

OFFSET_TABLE, TOPIC_TABLE, LITE_TABLE = "offsetTable", "topicConfigTable", "lmqOffsetTable"
_DEFAULT = "default"
# Tables and kinds of records in `rdb`.
_OFFSETS, _PULL_OFFSETS, _TOPICS, _GROUPS = 1, 2, 3, 4
_HEAD, _LENGTH, _QUEUE = Struct(">BHB"), Struct(">H"), Struct(">i")
_VERSION_KIND, _DATA_KIND = 1, 2
_JSON = b"\x01"
# Groups that brokers create themselves.
_BROKERS_GROUPS = ("CID_", "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "SCHEDULE_CONSUMER")


@dataclass(slots=True)
class BrokerConfig:
    """Contents of the three JSON files; None: the directory has the file itself. `sources`: where they come from."""

    offsets: dict[str, Any] | None = None
    topics: dict[str, Any] | None = None
    groups: dict[str, Any] | None = None
    sources: list[str] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def engines(root: Path) -> list[str]:
    """The places other than the default that have offsets, topics or groups."""
    config = root / "config"
    folders = [OFFSETS_FOLDER, TOPICS_FOLDER, GROUPS_FOLDER, SINGLE_FOLDER, ALL_FOLDER]
    found = [name for name in folders if rocks.is_rocks(config / name)]
    return [*found, configs.LITE_OFFSETS] if has_lite_offsets(root) else found


def has_lite_offsets(root: Path) -> bool:
    """Whether the file of a broker with lite topics has the offsets of all groups. After an import it has only those
    of lite topics."""
    path = root / "config" / configs.LITE_OFFSETS
    return path.exists() and OFFSET_TABLE in (configs.read(path.parent, path.name) or {OFFSET_TABLE: None})


def read(root: Path) -> BrokerConfig:
    """Reads them; unreadable ones are losses. Raises: EngineMissing."""
    found, config = BrokerConfig(), root / "config"
    there = engines(root)
    kinds: list[tuple[str, str, str, tuple[str, ...]]] = [
        ("offsets", configs.CONSUMER_OFFSETS, OFFSET_TABLE, (OFFSETS_FOLDER, configs.LITE_OFFSETS)),
        ("topics", configs.TOPICS, TOPIC_TABLE, (TOPICS_FOLDER,)),
        ("groups", configs.GROUPS, configs.GROUP_TABLE, (GROUPS_FOLDER,)),
    ]
    for kind, file, table, places in kinds:
        candidates = [place for place in (ALL_FOLDER, SINGLE_FOLDER, *places) if place in there]
        if (config / file).exists():
            candidates.append(file)
        if not candidates or candidates == [file]:
            continue
        # The first of equal times.
        chosen = max(candidates, key=lambda place: _written_ns(config / place))
        if len(candidates) > 1:
            found.notes.append(f"{kind} are in {' and '.join(f'config/{one}' for one in candidates)}: {chosen} counts")
        if chosen == file:
            continue
        found.sources.append(f"config/{chosen}")
        try:
            content = _content(root, chosen, kind, table)
        except DamagedBytes as error:
            found.losses.append(Loss(kind, error.text))
            continue
        setattr(found, kind, content)
    _check_empty(root, found)
    return found


def _written_ns(path: Path) -> int:
    if path.is_file():
        return path.stat().st_mtime_ns
    return max((one.stat().st_mtime_ns for one in path.iterdir() if one.is_file()), default=0)


def _content(root: Path, place: str, kind: str, table: str) -> dict[str, Any]:
    """Raises: DamagedBytes."""
    if place == configs.LITE_OFFSETS:
        loaded = configs.load(root / "config", place)
        if loaded.value is None:
            raise DamagedBytes(f"config/{place}: {loaded.fault}")
        return loaded.value
    name = f"config/{place}"
    with rocks.opened(root, name) as database:
        items = list(database.items(SINGLE_FAMILIES[kind] if place == SINGLE_FOLDER else _DEFAULT))
    readers: Mapping[str, Callable[[list[tuple[bytes, bytes]]], dict[str, Any]]] = (
        {"offsets": _offsets_of_all, "topics": _topics_of_all, "groups": _groups_of_all}
        if place == ALL_FOLDER
        else {"offsets": _offsets, "topics": _named, "groups": _named}
    )
    try:
        content = readers[kind](items)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, AttributeError) as error:
        raise DamagedBytes(f"{name} has an entry that is not understood: {error}") from None
    except Exception as error:
        raise DamagedBytes(f"{name} can't be read: {type(error).__name__}") from None
    return content if kind == "offsets" else {table: content}


def _named(items: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {key.decode(): _object(value) for key, value in items}


def _object(value: bytes) -> dict[str, Any]:
    return configs.parse(value.decode())


def _offsets(items: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    found: dict[str, Any] = {OFFSET_TABLE: {}}
    for key, value in items:
        name, content = key.decode(), _object(value)
        queues = content.get(OFFSET_TABLE, {0: content["offset"]} if "offset" in content else None)
        if not isinstance(queues, dict):
            raise ValueError(f"{name}: {json.dumps(content)[:80]}")
        if name.startswith(LMQ_PREFIX):
            found.setdefault(LITE_TABLE, {})[name] = next(iter(queues.values()), 0)
        else:
            found[OFFSET_TABLE][name] = queues
    return found


def _records(items: list[tuple[bytes, bytes]], wanted: int) -> list[tuple[bytes, bytes]]:
    """Keys without their head, and values, of one table. Raises: ValueError: a table or a kind is unknown."""
    found = []
    for key, value in items:
        format_, table, kind = _HEAD.unpack_from(key)
        if format_ != 1 or table not in (_OFFSETS, _PULL_OFFSETS, _TOPICS, _GROUPS) or kind not in (1, 2):
            raise ValueError(f"key {key[:40].hex()}")
        if table == wanted and kind == _DATA_KIND:
            found.append((key[_HEAD.size :], value))
    return found


def _name(data: bytes, at: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    if at + length > len(data):
        raise ValueError(f"key {data[:40].hex()}")
    return data[at : at + length].decode(), at + length


def _offsets_of_all(items: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    found: dict[str, Any] = {OFFSET_TABLE: {}}
    for key, value in _records(items, _OFFSETS):
        group, at = _name(key, 0)
        topic, at = _name(key, at + 1)
        (queue,) = _QUEUE.unpack_from(key, at + 1)
        if len(value) != 8:
            raise ValueError(f"offset {value[:40].hex()}")
        found[OFFSET_TABLE].setdefault(f"{topic}@{group}", {})[str(queue)] = int.from_bytes(value, "big")
    return found


def _of_all(items: list[tuple[bytes, bytes]], table: int) -> dict[str, Any]:
    found = {}
    for key, value in _records(items, table):
        if value[:1] != _JSON:
            raise ValueError(f"value {value[:40].hex()}")
        found[_name(key, 0)[0]] = _object(value[1:])
    return found


def _topics_of_all(items: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return _of_all(items, _TOPICS)


def _groups_of_all(items: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return _of_all(items, _GROUPS)


def _check_empty(root: Path, found: BrokerConfig) -> None:
    """A broker with groups has offsets; without any, their writes may be lost with a cut file."""
    groups = configs.table_of(found.groups, configs.GROUP_TABLE) or configs.groups(
        configs.read(root / "config", configs.GROUPS)
    )
    own = [name for name in groups if not name.startswith((*_BROKERS_GROUPS, *SYSTEM_PREFIXES))]
    empty = [
        (found.offsets is not None and own and not configs.table_of(found.offsets, OFFSET_TABLE), "offsets"),
        (found.topics is not None and not configs.table_of(found.topics, TOPIC_TABLE), "topics"),
    ]
    for is_empty, kind in empty:
        if is_empty:
            found.losses.append(Loss(kind, f"{', '.join(found.sources)}: there are none, as after a cut file"))
