"""The tables of the data source: their columns, with Arrow's types; times are Unix ms.

queue_entries   every message of every queue, by the units of the queues
pending         lane entries neither restored nor ended
pending_minutes the same, summed by destination and minute; several rows may have one key: sum them
messages        every record of the log (decode.py)
deliveries      messages received by groups, and the end of each delivery (deliveries.py)
ends            cancelled lane entries
transactions    every half message, and its end
transaction_ends    ends of half messages by records of the log
occurrences     records by which schedules continue
lanes           one row for each lane
findings        damage found by the snapshot
damage          damage found by reading the whole log
"""

import pyarrow as pa
from duetime_core.errors import InvalidArgument, Violation

from duetime_spark.decoding.decode import DEFAULT_COLUMNS
from duetime_spark.decoding.decode import SCHEMA as MESSAGES
from duetime_spark.decoding.deliveries import SCHEMA as DELIVERIES

_I32, _I64, _TEXT = pa.int32(), pa.int64(), pa.string()

QUEUE_ENTRIES = pa.schema(
    [
        ("shard", _I32),
        ("topic", _TEXT),
        ("queue", _I32),
        ("offset", _I64),
        ("position", _I64),
        ("size", _I32),
        # Null in lanes.
        ("tags_code", _I64),
        # Columns of lanes, null elsewhere. Ended: cancelled or replaced, by the mark in the unit.
        ("due_at_ms", _I64),
        ("has_ended", pa.bool_()),
    ]
)
PENDING = pa.schema(
    [
        ("shard", _I32),
        # Lanes of messages for any time have numbers from 1,000 on.
        ("level", _I32),
        # The destination (REAL_TOPIC); null if the record has none, is damaged or is gone.
        ("topic", _TEXT),
        ("offset", _I64),
        # Null from here on if the entry has left since the snapshot.
        ("position", _I64),
        ("size", _I32),
        ("due_at_ms", _I64),
        # The occurrence of a paused schedule, whose due time only keeps it pending. False if the entry has left.
        ("is_paused", pa.bool_()),
    ]
)
PENDING_MINUTES = pa.schema(
    [
        ("shard", _I32),
        ("level", _I32),
        ("topic", _TEXT),
        # Minutes of due times, since 1970; null if an entry has left, or its schedule is paused.
        ("minute", _I64),
        ("count", _I64),
        ("bytes", _I64),
        ("oldest_due_at_ms", _I64),
        # Due at the moment or before: option `now_ms`, or the shard's moment of the snapshot.
        ("overdue_count", _I64),
        ("overdue_bytes", _I64),
        # Null if all are overdue.
        ("next_due_at_ms", _I64),
        # All of `count`, or none.
        ("paused_count", _I64),
    ]
)
ENDS = pa.schema(
    [
        ("shard", _I32),
        ("level", _I32),
        ("offset", _I64),
        ("due_at_ms", _I64),
        # cancelled or replaced
        ("end", _TEXT),
        # The position of the record with this end.
        ("position", _I64),
    ]
)
TRANSACTIONS = pa.schema(
    [
        ("shard", _I32),
        # The half message's place in its queue and in the log.
        ("offset", _I64),
        ("position", _I64),
        ("size", _I32),
        # open, committed, rolled back, given up, or ended: by a broker, in an unknown way.
        ("state", _TEXT),
        # The position of the record that ended it; null: it is open, or the record has left or is unknown.
        ("end_position", _I64),
        # Null from here on if the half message has left, or is damaged.
        ("id", _TEXT),
        ("group", _TEXT),
        # The destination.
        ("topic", _TEXT),
        ("prepared_at_ms", _I64),
    ]
)
TRANSACTION_ENDS = pa.schema(
    [
        ("shard", _I32),
        # The half message's; null: a broker's commit, with its place in the log instead.
        ("offset", _I64),
        # As `state` of transactions.
        ("end", _TEXT),
        # The place of the record with this end, in the log and in its queue.
        ("position", _I64),
        ("topic", _TEXT),
        ("queue", _I32),
        ("queue_offset", _I64),
    ]
)
OCCURRENCES = pa.schema(
    [
        ("shard", _I32),
        # The message's topic, and the schedule's name in it.
        ("topic", _TEXT),
        ("schedule", _TEXT),
        # The schedule's creation.
        ("made_at_ms", _I64),
        # Null: it is paused.
        ("planned_at_ms", _I64),
        # Whether the record is in the topic; else it is an entry of a lane.
        ("is_delivered", pa.bool_()),
        # The entry: the record's own, or the one that it was restored from.
        ("level", _I32),
        ("offset", _I64),
        ("position", _I64),
        ("stored_at_ms", _I64),
        # Whether the schedule ends with this delivered one.
        ("is_last", pa.bool_()),
        # Planned time after a delivered one, by the rule. Null: there is none, or a zone's clock decides it.
        ("next_at_ms", _I64),
    ]
)
LANES = pa.schema(
    [
        ("shard", _I32),
        ("level", _I32),
        # Null for messages for any time.
        ("delay_ms", _I64),
        ("min_offset", _I64),
        # Lanes of messages for any time: the number of entries no longer pending.
        ("watermark", _I64),
        ("max_offset", _I64),
        ("pending", _I64),
        ("snapshot_position", _I64),
        ("snapshot_at_ms", _I64),
        # Records before this log position have left, or were a broker's: the log lacks the ends of their entries.
        ("judged_from", _I64),
    ]
)
FINDINGS = pa.schema([("shard", _I32), ("path", _TEXT), ("position", _I64), ("size", _I64), ("words", _TEXT)])

SCHEMAS = {
    "messages": MESSAGES,
    "queue_entries": QUEUE_ENTRIES,
    "pending": PENDING,
    "pending_minutes": PENDING_MINUTES,
    "deliveries": DELIVERIES,
    "ends": ENDS,
    "transactions": TRANSACTIONS,
    "transaction_ends": TRANSACTION_ENDS,
    "occurrences": OCCURRENCES,
    "lanes": LANES,
    "findings": FINDINGS,
    "damage": FINDINGS,
}


def schema_of(table: str, columns: str | None) -> pa.Schema:
    """The schema of a table, of some columns (comma-separated) or of all. Raises: InvalidArgument."""
    schema = SCHEMAS.get(table)
    if schema is None:
        known = ", ".join(sorted(SCHEMAS))
        raise InvalidArgument([Violation("table", f"there is no table {table!r}; there are {known}")])
    if columns is None:
        return chosen(table, list(DEFAULT_COLUMNS)) if table == "messages" else schema
    return chosen(table, [name.strip() for name in columns.split(",") if name.strip()])


def chosen(table: str, names: list[str]) -> pa.Schema:
    """Columns of a table, in this order. Raises: InvalidArgument."""
    schema = SCHEMAS[table]
    unknown = [name for name in names if name not in schema.names]
    if unknown or not names:
        words = f"table {table} has no column {', '.join(unknown)}" if unknown else "no column is named"
        raise InvalidArgument([Violation("columns", f"{words}; it has {', '.join(schema.names)}")])
    return pa.schema([schema.field(name) for name in names])
