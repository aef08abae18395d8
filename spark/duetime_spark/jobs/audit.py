"""Proves that every accepted message has exactly one end, and none was early.

A lane's entries are numbered from 0 without gaps. At the snapshot each of them is one of

    expired     removed by retention, with its restored copy: entries below the lane's first, and entries whose copy
                went between the snapshot and the read
    pending     from the watermark on
    restored    below the watermark, with exactly one copy in its topic
    dead        below the watermark, with its copy in DT_QUARANTINE
    cancelled   by a row of a record of DT_CANCELLED
    replaced    by a record in its place, itself an entry of a lane (rescheduled, or replaced by key)

Anything else is a violation. Ends without a copy count as copies below. Lanes for any time have no watermark: there
pending is one more end of an entry (audit_timers.py). A lane's entries are compared with the copies in buckets of
65,536: by count, by the sums of their offsets and of the offsets' squares, and by a 64-bit digest of offset and due
time. Only differing buckets are compared entry by entry, so that an intact lane is proven without a shuffle. Copies
made by a broker have no mark of their lane: they are matched by message id.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from duetime_format.lanes import TIMER_LANE_FIRST
from duetime_format.names import QUARANTINE_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from pyspark.sql import Column, DataFrame, GroupedData, Window
from pyspark.sql import functions as F

from duetime_spark.jobs.audit_schedules import ScheduleProof, ScheduleViolation
from duetime_spark.jobs.audit_transactions import TransactionProof, TransactionViolation
from duetime_spark.jobs.columns import is_restored

BUCKET = 65_536
MISSING, TWICE, EARLY, DUE_DIFFERS, UNKNOWN = "missing", "twice", "early", "due differs", "unknown entry"
# Not a violation: retention removed the copy while the audit ran.
LEFT = "left"
RESTORED, DEAD, CANCELLED, REPLACED = ENDS = "restored", "dead", "cancelled", "replaced"
KINDS = {
    MISSING: "not pending, and no copy in its topic, and neither cancelled nor replaced",
    TWICE: "more than one copy, or restored and cancelled",
    EARLY: "stored in its topic before its due time",
    DUE_DIFFERS: "the copy names another due time than the lane",
    UNKNOWN: "a copy of an entry missing from its lane",
}


@dataclass(frozen=True, slots=True)
class OffsetBucket:
    """Entries or copies of one lane with offsets of one bucket; `first` and `last` are offsets, `squares` a sum."""

    count: int
    offsets: int
    squares: int
    digest: int
    first: int
    last: int

    @property
    def is_whole(self) -> bool:
        """Whether every offset from the first to the last is there once."""
        return (self.count, self.offsets, self.squares) == _range_sums(self.first % BUCKET, self.last % BUCKET)

    def agrees(self, other: "OffsetBucket | None") -> bool:
        mine = (self.count, self.offsets, self.squares, self.digest)
        return other is not None and mine == (other.count, other.offsets, other.squares, other.digest)


def _range_sums(first: int, last: int) -> tuple[int, int, int]:
    def squares(to: int) -> int:
        return to * (to + 1) * (2 * to + 1) // 6

    count = last - first + 1
    return count, (first + last) * count // 2, squares(last) - squares(first - 1)


@dataclass(frozen=True, slots=True)
class Proof:
    """One lane, or all of them. If nothing is wrong, accepted = expired + pending + restored + dead + cancelled +
    replaced + missing.

    Timers of a directory last written by a 5.x broker: pending entries only, since it does not count the others.
    """

    shard: int | None
    level: int | None
    accepted: int
    expired: int
    pending: int
    restored: int
    dead: int
    cancelled: int
    replaced: int
    missing: int
    early: int
    violation_count: int
    is_proven: bool

    @property
    def adds_up(self) -> bool:
        parts = self.expired + self.pending + self.restored + self.dead + self.cancelled + self.replaced + self.missing
        return parts == self.accepted


@dataclass(frozen=True, slots=True)
class AuditViolation:
    """`position` is the copy's in the log, or without a copy the lane record's."""

    kind: str
    shard: int
    level: int
    offset: int
    id: str | None
    position: int | None
    due_at_ms: int | None
    stored_at_ms: int | None


@dataclass(frozen=True, slots=True)
class AuditJobResult:
    """The result; `violations` lists the first of each kind, `violation_counts` counts all."""

    is_proven: bool
    total: Proof
    lanes: list[Proof]
    violation_counts: dict[str, int]
    violations: list[AuditViolation]
    transactions: list[TransactionProof] = field(default_factory=list)
    transaction_violations: list[TransactionViolation] = field(default_factory=list)
    schedules: list[ScheduleProof] = field(default_factory=list)
    schedule_violations: list[ScheduleViolation] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def entry_buckets(entries: DataFrame, lanes: DataFrame) -> DataFrame:
    """Entries below the watermark in rows of queue_entries, by (shard, level, bucket): the sums of a Bucket."""
    return summed(_entries(entries, lanes).groupBy("shard", "level", "bucket"))


def copy_buckets(messages: DataFrame, ends: DataFrame, lanes: DataFrame) -> DataFrame:
    """Copies with a mark of their lane, by (shard, level, bucket, zone): the sums of a Bucket, `early`, and the number
    of each of ENDS.

    zone: `kept` between the lane's first entry and its watermark, `expired` below, `ahead` above.
    """
    copies = _copies(messages, ends, lanes)
    counts = [F.count(F.when(F.col("end") == end, 1)).alias(end) for end in ENDS]
    early = F.count(F.when(is_early(), 1)).alias("early")
    return summed(copies.groupBy("shard", "level", "bucket", "zone"), *counts, early)


def differences(
    entries: DataFrame, messages: DataFrame, ends: DataFrame, lanes: DataFrame, buckets: DataFrame
) -> DataFrame:
    """Entry by entry, for some (shard, level, bucket): (shard, level, offset, position, due_at_ms, stored_at_ms, end,
    kind). kind is null if the entry has exactly one copy."""
    keys = ["shard", "level", "bucket"]
    here = F.broadcast(buckets)
    ours = _entries(entries, lanes).join(here, keys, "left_semi")
    copies = _copies(messages, ends, lanes).where("zone != 'ahead'").join(here, keys, "left_semi")
    found = copies.groupBy("shard", "level", "offset", "zone").agg(
        F.count(F.lit(1)).alias("copies"),
        F.min("position").alias("copy_position"),
        F.min_by("due_at_ms", "position").alias("copy_due_at_ms"),
        F.min_by("stored_at_ms", "position").alias("stored_at_ms"),
        F.min_by("id", "position").alias("id"),
        F.min_by("end", "position").alias("end"),
    )
    both = ours.join(found, ["shard", "level", "offset"], "full_outer")
    kind = (
        F.when(F.col("copies").isNull(), MISSING)
        .when(F.col("copies") > 1, TWICE)
        .when(F.col("position").isNull() & (F.col("zone") == "kept") & (F.col("end") != DEAD), UNKNOWN)
        .when((F.col("due_at_ms") != F.col("copy_due_at_ms")) & (F.col("end") != DEAD), DUE_DIFFERS)
    )
    return both.select(
        "shard",
        "level",
        "offset",
        "zone",
        F.coalesce("copy_position", "position").alias("position"),
        F.coalesce("copy_due_at_ms", "due_at_ms").alias("due_at_ms"),
        "stored_at_ms",
        "id",
        "end",
        kind.alias("kind"),
    )


def firsts(found: DataFrame) -> DataFrame:
    """By (shard, level): the first kept copy among the `differences`, and the first kept entry."""
    kept = found.where(F.coalesce("zone", F.lit("kept")) == "kept")
    has_copy = F.coalesce(F.col("kind") != MISSING, F.lit(True))
    has_entry = F.coalesce(F.col("kind") != UNKNOWN, F.lit(True))
    return kept.groupBy("shard", "level").agg(
        F.min(F.when(has_copy, F.col("offset"))).alias("copy"), F.min(F.when(has_entry, F.col("offset"))).alias("entry")
    )


def without_left(found: DataFrame, bounds: DataFrame) -> DataFrame:
    """`differences` of shards after their oldest segments were removed: kind LEFT for an entry whose copy went too.

    Copies and entries lie in the log in the order of entries: removed ones come before the first remaining one.
    bounds: (shard, level, copy, entry), the first of each left, for lanes of such shards.
    """
    kind, offset = F.col("kind"), F.col("offset")
    is_left = (kind == MISSING) & (offset < F.col("copy"))
    is_alone = (kind == UNKNOWN) & (offset < F.col("entry"))
    ours = F.when(is_left, F.lit(LEFT)).when(is_alone, F.lit(None)).otherwise(kind)
    return found.join(F.broadcast(bounds), ["shard", "level"], "left").withColumn("kind", ours).drop("copy", "entry")


def without_brokers(missing: DataFrame, in_lanes: DataFrame, in_topics: DataFrame) -> DataFrame:
    """Entries without a copy, with their ids; `by_broker` if a copy without a mark of a lane has that id. Both are
    rows of messages.

    Several entries with one id (retries) are matched with equally many copies. Entries without an id are matched by
    birth and body.
    """
    key = F.coalesce("id", F.concat_ws("-", F.lit("born"), "born_at_ms", "body_crc", "body_size")).alias("key")
    named = missing.drop("id").join(
        in_lanes.where(F.col("topic") == SCHEDULE_TOPIC).select(
            "shard", "position", "id", key, F.col("real_topic").alias("topic")
        ),
        ["shard", "position"],
        "left",
    )
    copies = in_topics.where(is_restored() & F.col("lane_level").isNull())
    counted = (
        copies.select("shard", "topic", key).groupBy("shard", "topic", "key").agg(F.count(F.lit(1)).alias("copies"))
    )
    turn = F.row_number().over(Window.partitionBy("shard", "topic", "key").orderBy("position"))
    joined = named.withColumn("turn", turn).join(counted, ["shard", "topic", "key"], "left")
    by_broker = F.coalesce(F.col("turn") <= F.col("copies"), F.lit(False))
    return joined.select("shard", "level", "offset", "position", "due_at_ms", "id", by_broker.alias("by_broker"))


def early(messages: DataFrame) -> DataFrame:
    """Copies stored before their due time, of all lanes."""
    return copies_of(messages).where(is_early())


def is_early() -> Column:
    """Whether a row of `copies_of` was stored before its due time."""
    return (F.col("stored_at_ms") < F.col("due_at_ms")) & (F.col("end") == RESTORED)


def _entries(entries: DataFrame, lanes: DataFrame) -> DataFrame:
    ours = entries.where(F.col("topic") == SCHEDULE_TOPIC).withColumn("level", F.col("queue") + 1)
    marks = F.broadcast(lanes.select("shard", "level", "min_offset", "watermark"))
    below = ours.join(marks, ["shard", "level"]).where(
        (F.col("offset") >= F.col("min_offset")) & (F.col("offset") < F.col("watermark"))
    )
    return below.select("shard", "level", bucket("offset"), "offset", "position", "due_at_ms")


def copies_of(messages: DataFrame) -> DataFrame:
    """Records with ends of entries: (shard, level, offset, position, id, due_at_ms, stored_at_ms, end)."""
    end = (
        F.when(F.col("topic") == QUARANTINE_TOPIC, DEAD)
        .when(F.col("topic") == TIMER_TOPIC, REPLACED)
        .otherwise(RESTORED)
    )
    return messages.where(F.col("lane_level").isNotNull()).select(
        "shard",
        F.col("lane_level").alias("level"),
        F.col("lane_offset").alias("offset"),
        "position",
        "id",
        F.col("lane_due_at_ms").alias("due_at_ms"),
        "stored_at_ms",
        end.alias("end"),
    )


def ends_of(ends: DataFrame) -> DataFrame:
    """As `copies_of`, for cancelled entries."""
    none = F.lit(None)
    return ends.select(
        *("shard", "level", "offset", "position"),
        none.cast("string").alias("id"),
        "due_at_ms",
        none.cast("bigint").alias("stored_at_ms"),
        "end",
    )


def _copies(messages: DataFrame, ends: DataFrame, lanes: DataFrame) -> DataFrame:
    """Copies in lanes of levels, each with its zone."""
    marks = F.broadcast(lanes.select("shard", "level", "min_offset", "watermark"))
    zone = (
        F.when(F.col("offset") < F.col("min_offset"), "expired")
        .when(F.col("offset") < F.col("watermark"), "kept")
        .otherwise("ahead")
    )
    both = copies_of(messages).unionByName(ends_of(ends)).where(F.col("level") < TIMER_LANE_FIRST)
    return both.join(marks, ["shard", "level"], "left").select(
        *("shard", "level", bucket("offset"), "offset", "position", "id", "due_at_ms", "stored_at_ms", "end"),
        zone.alias("zone"),
    )


def bucket(name: str) -> Column:
    return F.expr(f"{name} div {BUCKET}").alias("bucket")


def summed(groups: GroupedData, *others: Column) -> DataFrame:
    inside = F.col("offset") % BUCKET
    return groups.agg(
        F.count(F.lit(1)).alias("count"),
        F.sum(inside).alias("offsets"),
        F.sum(inside * inside).alias("squares"),
        F.bit_xor(F.xxhash64("offset", "due_at_ms")).alias("digest"),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
        *others,
    )
