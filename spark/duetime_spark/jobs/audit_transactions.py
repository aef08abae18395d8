"""The proof of transactions: each half message is open or has one end, and a committed one has one message.

    accepted = expired + open + committed + rolled back + given up + ended

expired: half messages before the first one present; ended: by a broker, in an unknown way. The state comes from the
store's own marks, and is compared with the log.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass

from duetime_format.names import OP_TOPIC
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duetime_spark.jobs.context import JobContext
from duetime_spark.tables.transactions import COMMITTED, ENDED, GIVEN_UP, OPEN, ROLLED_BACK

COMMITTED_TWICE, NOT_COMMITTED, NO_MESSAGE = ("committed twice", "message of an open one", "no message")
_STATES = "shard,offset,state,end_position"
_ENDS = "shard,offset,end,position,topic,queue,queue_offset"


@dataclass(frozen=True, slots=True)
class TransactionProof:
    """The half messages of one shard."""

    shard: int
    accepted: int
    expired: int
    open: int
    committed: int
    rolled_back: int
    given_up: int
    ended: int
    violation_count: int
    is_proven: bool


@dataclass(frozen=True, slots=True)
class TransactionViolation:
    """`offset` is the half message's; `position` the real message's, or its expected one."""

    kind: str
    shard: int
    offset: int
    state: str | None
    position: int | None


def run(context: JobContext) -> tuple[list[TransactionProof], list[TransactionViolation]]:
    """Proofs by shard, and the first violations of each kind."""
    states = context.table("transactions", "shard,offset,state").groupBy("shard", "state")
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    bounds: dict[int, tuple[int, int]] = {}
    counted = states.agg(F.count(F.lit(1)).alias("count"), F.min("offset").alias("low"), F.max("offset").alias("high"))
    for row in counted.collect():
        shard = row["shard"]
        counts[shard][row["state"]] += row["count"]
        low, high = bounds.get(shard, (row["low"], row["high"]))
        bounds[shard] = min(low, row["low"]), max(high, row["high"])
    if not counts:
        return [], []
    found = _violations(context).persist()
    try:
        violations = Counter({row["shard"]: row["count"] for row in found.groupBy("shard").count().collect()})
        listed = found.orderBy("kind", "shard", "offset").limit(context.listed).collect()
    finally:
        found.unpersist()
    proofs = [_proof(shard, counts[shard], bounds[shard][1], violations[shard]) for shard in sorted(counts)]
    return proofs, [TransactionViolation(**row.asDict()) for row in listed]


def _proof(shard: int, states: Counter[str], last: int, violation_count: int) -> TransactionProof:
    return TransactionProof(
        shard=shard,
        accepted=last + 1,
        expired=last + 1 - states.total(),
        open=states[OPEN],
        committed=states[COMMITTED],
        rolled_back=states[ROLLED_BACK],
        given_up=states[GIVEN_UP],
        ended=states[ENDED],
        violation_count=violation_count,
        is_proven=not violation_count,
    )


def _violations(context: JobContext) -> DataFrame:
    """(kind, shard, offset, state, position)."""
    commits = (
        context.table("transaction_ends", _ENDS)
        .where((F.col("end") == COMMITTED) & F.col("offset").isNotNull() & (F.col("topic") != OP_TOPIC))
        .groupBy("shard", "offset")
        # Retention may have appended the message of a delayed one again: copies have one place.
        .agg(F.count_distinct("topic", "queue", "queue_offset").alias("copies"), F.min("position").alias("position"))
    )
    known = commits.join(context.table("transactions", _STATES), ["shard", "offset"], "left")
    kind = F.when(F.col("copies") > 1, COMMITTED_TWICE).when(F.col("state") != COMMITTED, NOT_COMMITTED)
    columns = ("kind", "shard", "offset", "state", "position")
    wrong = known.withColumn("kind", kind).where(F.col("kind").isNotNull()).select(*columns)
    places = (
        context.table("transaction_ends", _ENDS).select("shard", F.col("position").alias("end_position")).distinct()
    )
    marked = context.table("transactions", _STATES).where(
        (F.col("state") == COMMITTED) & F.col("end_position").isNotNull()
    )
    left = sorted(context.left())
    marked = marked.where(~F.col("shard").isin(left)) if left else marked
    lost = marked.join(places, ["shard", "end_position"], "left_anti").withColumn("kind", F.lit(NO_MESSAGE))
    return wrong.unionByName(lost.withColumnRenamed("end_position", "position").select(*columns))
