"""A shard's own copy of the table in consumerOffset.json, as of a log position: config/duetimeOffsets.json.

    {"position": 4711, "contents": [CRC-32 of the broker's file, ...], "table": {"orders@billing": {"0": 1700}, ...}}

The log has each later change (duetime_format.changes). `contents` names the contents of the broker's file that the
table includes. A file with another content was written by a broker, or by the last release: its values are later than
ours, and count where they differ from the table. The others are those of the log.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from duetime_format.changes import StateChange

from duetime_shard import configs
from duetime_shard.configs import LoadedConfig
from duetime_shard.disk import ShardFiles

OFFSETS_FILE = "duetimeOffsets.json"
_TABLE = "offsetTable"
_NOTHING = object()


@dataclass(slots=True)
class KeptTable:
    """The file's content as `table`; `replayed` is the table after the log's changes from `position` on."""

    position: int = 0
    contents: tuple[int, ...] = ()
    table: dict[str, Any] = field(default_factory=dict)
    replayed: dict[str, Any] = field(default_factory=dict)

    def replay(self, position: int, change: StateChange) -> None:
        """Takes a change of a record at a log position."""
        if position >= self.position:
            apply(self.replayed, change)

    def judge(self, loaded: LoadedConfig) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """The content of the broker's file, if it counts, and the present table. `contents` then has it."""
        content = loaded.value
        if content is not None and loaded.fault and loaded.is_ours and self.contents:
            # An older content of ours.
            content = None
        if content is None or (crc := configs.crc_of(content)) in self.contents:
            return content, self.replayed
        self.contents = (crc,)
        return content, _merged(numbered(configs.table_of(content, _TABLE)), self.table, self.replayed)


def load(files: ShardFiles) -> KeptTable:
    """Reads the file; an empty table from position 0 on, if there is none."""
    value = configs.load_from(files, OFFSETS_FILE).value
    position, contents = (value or {}).get("position"), (value or {}).get("contents")
    if value is None or type(position) is not int or not isinstance(contents, list):
        return KeptTable()
    table = numbered(configs.table_of(value, "table"))
    return KeptTable(position, tuple(contents), table, dict(table))


def current(files: ShardFiles, own: KeptTable) -> dict[str, Any] | None:
    """The content of consumerOffset.json as a start would write it; None: there is none."""
    content, table = own.judge(configs.load_from(files, configs.CONSUMER_OFFSETS))
    return {**(content or {}), _TABLE: table} if table or content is not None else None


def apply(table: dict[str, Any], change: StateChange) -> None:
    """Applies a change. Rows are never changed in place: a writer may have them."""
    known = table.get(change.key)
    if change.value is None:
        table.pop(change.key, None)
    else:
        row = {int(queue): offset for queue, offset in change.value.items()}
        table[change.key] = {**(known if isinstance(known, dict) else {}), **row}


def numbered(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with queues and offsets as numbers; any other row is kept as it is, and not used."""
    return {key: configs.numbered(row) for key, row in table.items()}


def _merged(theirs: Mapping[Any, Any], known: Mapping[Any, Any], now: Mapping[Any, Any]) -> dict[Any, Any]:
    """`theirs`, with the changes from `known` to `now` of entries that are the same in `theirs` and `known`."""
    found = dict(theirs)
    for key in known.keys() | now.keys():
        before, after, other = (one.get(key, _NOTHING) for one in (known, now, theirs))
        if before == after:
            continue
        if all(isinstance(one, dict) or one is _NOTHING for one in (before, after, other)):
            row = _merged(*({} if one is _NOTHING else one for one in (other, before, after)))
            found[key] = row
            if not row:
                del found[key]
        elif other == before:
            found[key] = after
            if after is _NOTHING:
                del found[key]
    return found
