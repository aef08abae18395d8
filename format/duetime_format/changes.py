"""Changes of a shard's state besides its messages. The body of a record of DT_STATE, queue 0: JSON, a row for each.

    [["offsets", "orders@billing", {"0": 1700, "3": 12}], ["offsets", "orders@audit", null],
     ["topics", "orders", [8, "FIFO"]], ["groups", "billing", [15, false]],
     ["pauses", "orders@billing", [1700000000000, 0]]]

A row has the kind of state, a key, and the new value; null removes the key. Rows count in the order of the log, and may
be applied twice. Rows of unknown kinds are for later releases, and are skipped.

    offsets     `topic@group`: next offset by queue, for the named queues only
    topics      topic: queue count, and message type by RocketMQ's name, or empty; a deletion removes it (deletions.py)
    groups      group: retries after the first delivery, whether it is ordered
    pauses      `topic@group`, both may be empty: begin and end, in Unix ms; end 0: none
    levels      empty: the delay levels of a leader of a shard with copies, and the Unix ms from which they apply
    cut         empty: all copies of a shard delete the segments of their logs before this position
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from duetime_format.errors import DamagedBytes
from duetime_format.levels import DelayLevels

OFFSETS, TOPICS, GROUPS, PAUSES, LEVELS, CUT = "offsets", "topics", "groups", "pauses", "levels", "cut"
# Kinds whose values name only the entries to be changed.
PARTIAL_KINDS = frozenset({OFFSETS})
# Maximum bytes of rows in one record, but at least one row.
BODY_BYTES = 256 * 1024


class StateChange(NamedTuple):
    """One row. `value`: any JSON with text keys; None removes the key."""

    kind: str
    key: str
    value: Any


class StateChanges:
    """Changes in their order, without those that later ones replace."""

    def __init__(self, changes: Iterable[StateChange] = ()) -> None:
        # A removal, and the value after it.
        self._found: dict[tuple[str, str], list[StateChange]] = {}
        for change in changes:
            self.add(change)

    def __iter__(self) -> Iterator[StateChange]:
        return (change for changes in self._found.values() for change in changes)

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, change: StateChange) -> None:
        """Adds the latest change."""
        name = change.kind, change.key
        known = self._found.get(name)
        if known is None or change.value is None or change.kind not in PARTIAL_KINDS:
            self._found[name] = [change]
        elif known[-1].value is None:
            known.append(change)
        else:
            known[-1] = change._replace(value={**known[-1].value, **change.value})

    def drop(self, kind: str, key: str) -> None:
        """Drops the changes of a key."""
        self._found.pop((kind, key), None)

    def of(self, kind: str) -> Iterator[StateChange]:
        """Those of one kind."""
        return (change for change in self if change.kind == kind)


def bodies(changes: Iterable[StateChange]) -> Iterator[bytes]:
    """The bodies of the records that hold the changes."""
    rows: list[str] = []
    size = 0
    for change in changes:
        row = json.dumps(change, separators=(",", ":"))
        if rows and size + len(row) > BODY_BYTES:
            yield _body(rows)
            rows, size = [], 0
        rows.append(row)
        size += len(row)
    if rows:
        yield _body(rows)


def _body(rows: list[str]) -> bytes:
    return f"[{','.join(rows)}]".encode()


def decode(body: bytes) -> list[StateChange]:
    """The changes of known kinds. Raises: DamagedBytes: the bytes are no changes."""
    try:
        found = [StateChange(*row) for row in json.loads(body)]
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedBytes("it has no changes of state") from error
    for change in found:
        if type(change.kind) is not str or type(change.key) is not str:
            raise DamagedBytes("it has a change of state without kind or key")
        is_sound = _SOUND.get(change.kind)
        if is_sound is not None and change.value is not None and not is_sound(change.value):
            raise DamagedBytes(f"{change.kind} of {change.key[:255]!r} can't be read")
    return [change for change in found if change.kind in _SOUND]


def _are_offsets(value: Any) -> bool:
    return (
        type(value) is dict
        and all(queue.isascii() and queue.isdigit() and len(queue) < 10 for queue in value)
        and all(map(_is_count, value.values()))
    )


def _is_topic(value: Any) -> bool:
    return type(value) is list and len(value) == 2 and _is_count(value[0]) and type(value[1]) is str


def _is_group(value: Any) -> bool:
    return type(value) is list and len(value) == 2 and type(value[0]) is int and type(value[1]) is bool


def _is_pause(value: Any) -> bool:
    return type(value) is list and len(value) == 2 and all(map(_is_count, value))


def _are_levels(value: Any) -> bool:
    if type(value) is not list or len(value) != 2 or type(value[0]) is not str or not _is_count(value[1]):
        return False
    try:
        DelayLevels.parse(value[0])
    except ValueError:
        return False
    return True


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


# The known kinds, and the check of their values.
_SOUND: dict[str, Callable[[Any], bool]] = {
    OFFSETS: _are_offsets,
    TOPICS: _is_topic,
    GROUPS: _is_group,
    PAUSES: _is_pause,
    LEVELS: _are_levels,
    CUT: _is_count,
}
