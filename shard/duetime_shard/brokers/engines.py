"""The places of RocketMQ's state: the ones read here, and the ones whose loss has to be accepted by name.

KNOWN lists the folders of a store directory, CONFIG those below `config/`, each with the column families of a
RocketMQ 5.5.1 if it is a RocksDB, and CONFIG_FILES the JSON files there. Anything else may be an engine of a later
release: it is refused by its own name, with its contents as far as they can be seen.
"""

import fnmatch
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from duetime_format.errors import DamagedBytes
from duetime_format.names import RETRY_PREFIX

from duetime_shard import configs
from duetime_shard.brokers import pops, rocks
from duetime_shard.brokers.rocks import EngineMissing
from duetime_shard.disk import IS_FOLDER, LocalFiles

STORE_FOLDER = "rocksdbstore"
QUEUE_FOLDERS = ("consumequeue", "consumequeue_rocksdb")
TIMERS, TRANSACTIONS = "timer", "trans"
# Key in duetimeStore.json.
ENGINES_KEY = "engines"
_DEFAULT = "default"


class Loss(NamedTuple):
    """State that an import does without, if the operator accepts the loss of this kind."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True, slots=True)
class StateLocation:
    """A place and its contents. `families`: of a RocksDB there. `loss`: the kind and the reason if it is not read."""

    holds: str
    families: tuple[str, ...] = ()
    loss: Loss | None = None


_DLEDGER = Loss("dledger", "the commit log of a DLedger group: let a broker without DLedger copy it first")
_CONTROLLER = Loss("controller", "epochs of a controller's group: the end of the log may be unconfirmed")
_BATCHES = Loss("batches", "queues of messages that were sent as one batch of a BatchConsumeQueue")
_COMPACTION = Loss("compaction", "compacted messages, which the log may no longer have")
_TIERED = Loss("tiered", "messages that only the second tier of storage has")
_USERS = Loss("users", "users of a broker: create DueTime's with `duetime users`")
_RIGHTS = Loss("acls", "rights of a broker's users: create DueTime's with `duetime grants`")
_MAPPING = Loss("mapping", "static topics, whose queues are on several brokers")

KNOWN = {
    "commitlog": StateLocation("all messages"),
    "config": StateLocation("topics, groups, offsets"),
    "consumequeue": StateLocation("queues", (_DEFAULT, "offset")),
    "consumequeue_rocksdb": StateLocation("queues", (_DEFAULT, "offset")),
    "consumequeue_ext": StateLocation("bits of filters, derived from the log"),
    "index": StateLocation("keys, derived from the log"),
    STORE_FOLDER: StateLocation("index, timers, transactions", (_DEFAULT, TIMERS, TRANSACTIONS)),
    pops.KEY_VALUES: StateLocation("messages received by POP", (_DEFAULT, pops.FAMILY)),
    "timerlog": StateLocation("timers in the wheel"),
    "timers": StateLocation("DueTime's orders of timers"),
    "compaction": StateLocation("compacted topics"),
    "batchconsumequeue": StateLocation("queues of batches", loss=_BATCHES),
    "dledger-*": StateLocation("a DLedger group's log", loss=_DLEDGER),
    "*controller*": StateLocation("a controller's state", loss=_CONTROLLER),
    "jraft*": StateLocation("a controller's state", loss=_CONTROLLER),
}
FILES = {
    "epochFileCheckpoint": StateLocation("epochs", loss=_CONTROLLER),
    "config/tieredStoreMetadata.json": StateLocation("the second tier", loss=_TIERED),
}
OFFSETS_FOLDER, TOPICS_FOLDER, GROUPS_FOLDER, ALL_FOLDER = "consumerOffsets", "topics", "subscriptionGroups", "rdb"
# A family for each, with useSingleRocksDBForAllConfigs.
SINGLE_FOLDER = "metadata"
SINGLE_FAMILIES = {"offsets": "consumerOffset", "topics": "topic", "groups": "subscriptionGroup"}
_VERSIONED = (_DEFAULT, "kvDataVersion", "forbidden")
CONFIG = {
    OFFSETS_FOLDER: StateLocation("offsets of groups", _VERSIONED),
    TOPICS_FOLDER: StateLocation("topics", _VERSIONED),
    GROUPS_FOLDER: StateLocation("groups", _VERSIONED),
    ALL_FOLDER: StateLocation("offsets of groups, topics, groups", (_DEFAULT,)),
    SINGLE_FOLDER: StateLocation(
        "offsets of groups, topics, groups",
        (_DEFAULT, "forbidden", *(name + part for name in SINGLE_FAMILIES.values() for part in ("", "Version"))),
    ),
    "users": StateLocation("users", loss=_USERS),
    "acls": StateLocation("rights of users", loss=_RIGHTS),
}
# JSON files below `config/`. Filters and modes of receiving are announced by clients each time.
_SHARED = (configs.TOPICS, configs.CONSUMER_OFFSETS, configs.GROUPS, configs.DELAY_OFFSETS, configs.LITE_OFFSETS)
_BROKERS = ("consumerFilter.json", "messageRequestMode.json", "topicQueueMapping.json", "tieredStoreMetadata.json")
CONFIG_FILES = {*_SHARED, *_BROKERS, pops.ORDERS}
# DueTime's own.
_OURS = "duetime*"
_ORDERED_BY = ("orderedConsumptionLevel", "QUEUE")
# Folders that belong to the file system or to an operator.
_PASSED = (".*", "lost+found")


@dataclass(slots=True)
class EngineSurvey:
    """The engines of a directory: the contents of each RocksDB by its folder, and losses."""

    contents: dict[str, dict[str, Any]] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    # Faults of RocksDBs that the log replaces.
    damages: list[tuple[str, str]] = field(default_factory=list)


def survey(root: Path) -> EngineSurvey:
    """Raises: EngineMissing: the library to read one is not installed."""
    found = EngineSurvey()
    files = LocalFiles(root)
    for name, size in files.listed(""):
        if size == IS_FOLDER:
            _see_folder(root, name, _known(KNOWN, name), found)
    for name, size in files.listed("config"):
        if size == IS_FOLDER:
            _see_folder(root, f"config/{name}", CONFIG.get(name), found)
        elif _is_unknown(name):
            found.losses.append(Loss(f"config/{name}", f"a file of {size:,} bytes that this release does not know"))
    found.losses += [known.loss for name, known in FILES.items() if known.loss and files.exists(name)]
    found.losses += _of_files(root)
    return found


def _is_unknown(file: str) -> bool:
    """Whether a file of `config/` is JSON that no known release writes."""
    name = file.removesuffix(".bak").removesuffix(".tmp")
    return name.endswith(".json") and name not in CONFIG_FILES and not fnmatch.fnmatchcase(name, _OURS)


def _known(table: Mapping[str, StateLocation], name: str) -> StateLocation | None:
    return next((known for pattern, known in table.items() if fnmatch.fnmatchcase(name, pattern)), None)


def _see_folder(root: Path, name: str, known: StateLocation | None, found: EngineSurvey) -> None:
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in _PASSED):
        return
    if known is not None and known.loss is not None and not (name in _KINDS and rocks.is_rocks(root / name)):
        if any(path.is_file() for path in (root / name).rglob("*")):
            found.losses.append(known.loss)
        return
    if not rocks.is_rocks(root / name):
        if known is None:
            found.losses.append(Loss(name, "a folder that this release does not know"))
        return
    if rocks.is_empty(root / name):
        found.contents[name] = {}
        return
    try:
        with rocks.opened(root, name) as database:
            found.contents[name] = {family: database.count(family) for family in database.families}
            if database.cut:
                text = f"the last writes are missing: {database.cut}"
                found.losses += [Loss(kind, text) for kind in _KINDS.get(name, ())]
    except DamagedBytes as error:
        found.contents[name] = {"damage": error.text}
        _see_damage(name, known, error, found)
        return
    for family, count in found.contents[name].items():
        if count and known is not None and known.loss is not None:
            found.losses.append(known.loss)
        elif count and family not in (known.families if known is not None else ()):
            what = "a column family that this release does not know" if known else "a RocksDB that it does not know"
            found.losses.append(Loss(f"{name}/{family}", f"{what}, with {count:,} entries"))


# Kinds of state that the log does not have.
_KINDS = {
    f"config/{OFFSETS_FOLDER}": ("offsets",),
    f"config/{TOPICS_FOLDER}": ("topics",),
    f"config/{GROUPS_FOLDER}": ("groups",),
    f"config/{ALL_FOLDER}": ("offsets", "topics", "groups"),
    f"config/{SINGLE_FOLDER}": ("offsets", "topics", "groups"),
    "config/users": ("users",),
    "config/acls": ("acls",),
    pops.KEY_VALUES: ("pop",),
}


def _see_damage(name: str, known: StateLocation | None, error: DamagedBytes, found: EngineSurvey) -> None:
    """State of the log is found there; other state is lost."""
    if name in _KINDS:
        found.losses += [Loss(kind, error.text) for kind in _KINDS[name]]
    elif known is None:
        found.losses.append(Loss(name, error.text))
    else:
        found.damages.append((name, error.text))


def _of_files(root: Path) -> Iterator[Loss]:
    """Losses by the content of files."""
    folder = root / "compaction"
    if any(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.parent != folder):
        yield _COMPACTION
    for name, size in LocalFiles(root).listed("consumequeue"):
        if size == IS_FOLDER and name.startswith(RETRY_PREFIX) and "+" in name:
            yield Loss("pop", f"{name} has retries of enableRetryTopicV2, a name that DueTime does not allow")
    if configs.table_of(configs.read(root / "config", "topicQueueMapping.json"), "topicQueueMappingInfoMap"):
        yield _MAPPING
    orders = configs.read(root / "config", pops.ORDERS)
    name, usual = _ORDERED_BY
    if configs.table_of(orders, "table") and (orders or {}).get(name, usual) != usual:
        yield Loss("pop", f"config/{pops.ORDERS} has receives of ordered groups by {(orders or {}).get(name)}")


def refused(losses: Iterable[Loss], accepted: frozenset[str]) -> list[Loss]:
    return [loss for loss in losses if loss.kind not in accepted]


def fingerprint(root: Path) -> str:
    """Names and sizes of all files with offsets, topics, groups and received messages outside the default ones. Another
    value means that a broker has written there. Empty: there are none."""
    config = root / "config"
    folders = [config / name for name in CONFIG if rocks.is_rocks(config / name)]
    folders += [root / pops.KEY_VALUES] if rocks.is_rocks(root / pops.KEY_VALUES) else []
    files = [path for folder in folders for path in sorted(folder.iterdir()) if path.is_file()]
    lite = config / configs.LITE_OFFSETS
    files += [lite] if "offsetTable" in (configs.read(config, lite.name) or {}) else []
    if not files:
        return ""
    lines = [f"{path.relative_to(root)} {path.stat().st_size}" for path in files]
    lines += [f"{zlib.crc32(path.read_bytes()):08x}" for path in files if path.name == configs.LITE_OFFSETS]
    return f"{zlib.crc32(chr(10).join(lines).encode()):08x}"


def known_fingerprint(root: Path) -> str:
    """The value when this directory was taken over."""
    found = (configs.read(root / "config", configs.STORE) or {}).get(ENGINES_KEY)
    return found if isinstance(found, str) else ""


def is_taken_over(root: Path) -> bool:
    """Whether nothing there is news: this directory has it in its own files."""
    found = fingerprint(root)
    return bool(found) and found == known_fingerprint(root)


__all__ = ["EngineMissing", "Loss", "EngineSurvey", "refused", "survey"]
