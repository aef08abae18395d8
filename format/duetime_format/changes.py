"""Changes of a shard's state besides its messages. The body of a record of DT_STATE, queue 0: JSON, a row for each.

    [["offsets", "orders@billing", {"0": 1700, "3": 12}], ["offsets", "orders@audit", null]]

A row has the kind of state, a key, and the new value; null removes the key. Rows count in the order of the log, and may
be applied twice. Rows of unknown kinds are for later releases, and are skipped.

    offsets     `topic@group`: next offset by queue, for the named queues only
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from duetime_format.errors import DamagedBytes

OFFSETS = "offsets"
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

    def clear(self) -> None:
        self._found.clear()


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
        if change.kind == OFFSETS and not _are_offsets(change.value):
            raise DamagedBytes(f"offsets of {change.key[:255]!r} can't be read")
    return [change for change in found if change.kind == OFFSETS]


def _are_offsets(value: Any) -> bool:
    return value is None or (
        type(value) is dict
        and all(queue.isascii() and queue.isdigit() and len(queue) < 10 for queue in value)
        and all(type(offset) is int and 0 <= offset < 1 << 63 for offset in value.values())
    )
