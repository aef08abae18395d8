"""Dead letters neither redriven nor discarded, grouped by error, with samples."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from duetime_format import record
from duetime_format.attempts import AttemptFailure
from duetime_format.names import DLQ_PREFIX
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from duetime_spark.jobs.context import JobContext

_MESSAGES = "shard,topic,queue,offset,id,stored_at_ms,born_host,reconsume_times,properties"
_SAMPLES = 3
_GROUP = ("group", "topic", "signature", "attempts", "producer")
# The order matters: quoted parts may contain numbers, and a number is not a word of hex digits.
_MASKS = (
    (r"'[^']*'|\"[^\"]*\"|`[^`]*`", "'?'"),
    (r"(?i)\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "#"),
    (r"(?i)\b0x[0-9a-f]+\b", "#"),
    (r"(?i)\b(?=[a-f]*[0-9])[0-9a-f]{6,}\b", "#"),
    (r"[0-9]+([.,:][0-9]+)*", "#"),
)
_UNKNOWN = "unknown"
# The place, from 1, of each field of an attempt in the JSON of its property.
_PLACES = {one.name: place for place, one in enumerate(fields(AttemptFailure), 1)}


@dataclass(frozen=True, slots=True)
class DeadLetterSample:
    """A dead letter; `error` is its last attempt's message, unmasked."""

    id: str | None
    shard: int
    queue: int
    offset: int
    stored_at_ms: int
    error: str | None


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters of one consumer group with the same error.

    topic: their original topic. signature: `type: message` of the last attempt, with quoted parts, numbers and hex
    digits masked; `REJECTED` or another reason if no error is known. attempts: failed deliveries. producer: the sending
    host.
    """

    group: str
    topic: str
    signature: str
    attempts: int
    producer: str
    count: int
    first_at_ms: int
    last_at_ms: int
    samples: list[DeadLetterSample] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DeadLetterJobResult:
    """The result: groups with the most letters first. `left_out`: number of groups not listed."""

    count: int
    group_count: int
    left_out: int
    groups: list[DeadLetterGroup]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def transform(messages: DataFrame) -> DataFrame:
    """Dead letters, one a row: the columns of _GROUP and of a sample."""
    properties = F.col("properties")
    history = F.from_json(properties[record.ATTEMPTS], "attempts ARRAY<ARRAY<STRING>>, left_out INT")
    letters = messages.where(F.col("topic").startswith(DLQ_PREFIX)).withColumn("history", history)
    attempts = F.col("history.attempts")
    last = letters.withColumn("last", F.try_element_at(attempts, F.lit(-1)))
    kind, words = _text("last", _PLACES["type"]), _text("last", _PLACES["message"])
    # Letters without a known error are grouped by reason.
    signature = F.coalesce(
        F.nullif(F.concat_ws(": ", kind, masked(words)), F.lit("")), properties[record.DEAD_REASON], F.lit(_UNKNOWN)
    )
    number = F.try_element_at(F.col("last"), F.lit(_PLACES["number"])).cast("int")
    return last.select(
        F.expr(f"substring(topic, {len(DLQ_PREFIX) + 1})").alias("group"),
        F.coalesce(properties[record.DLQ_ORIGIN_TOPIC], properties[record.RETRY_TOPIC], F.lit(_UNKNOWN)).alias("topic"),
        signature.alias("signature"),
        F.coalesce(number, F.col("reconsume_times")).alias("attempts"),
        F.coalesce(F.regexp_replace("born_host", r":\d+$", ""), F.lit(_UNKNOWN)).alias("producer"),
        "id",
        "shard",
        "queue",
        "offset",
        "stored_at_ms",
        words.alias("error"),
    )


def masked(words: Column) -> Column:
    """An error's message without the parts specific to one message."""
    for pattern, stand_in in _MASKS:
        words = F.regexp_replace(words, pattern, stand_in)
    return words


def _text(array: str, place: int) -> Column:
    """An element of an array of texts; null if it is empty or missing."""
    return F.nullif(F.try_element_at(F.col(array), F.lit(place)), F.lit(""))


def grouped(letters: DataFrame) -> DataFrame:
    """By _GROUP: count, first_at_ms, last_at_ms and the newest samples."""
    names = ("id", "shard", "queue", "offset", "stored_at_ms", "error")
    newest = Window.partitionBy(*_GROUP).orderBy(F.desc("stored_at_ms"), "shard", "queue", "offset")
    place = letters.withColumn("place", F.row_number().over(newest))
    sample = F.when(F.col("place") <= _SAMPLES, F.struct("place", *names))
    return place.groupBy(*_GROUP).agg(
        F.count(F.lit(1)).alias("count"),
        F.min("stored_at_ms").alias("first_at_ms"),
        F.max("stored_at_ms").alias("last_at_ms"),
        F.sort_array(F.collect_list(sample)).alias("samples"),
    )


def run(context: JobContext) -> DeadLetterJobResult:
    dead = F.col("topic").startswith(DLQ_PREFIX)
    letters = context.table("messages", _MESSAGES).where(dead)
    there = letters.join(context.gone, ["shard", "topic", "queue", "offset"], "left_anti")
    groups = grouped(transform(there)).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        sums = groups.agg(F.sum("count").alias("letters"), F.count(F.lit(1)).alias("groups")).first()
        rows = groups.orderBy(F.desc("count"), *_GROUP).limit(context.listed).collect()
    finally:
        groups.unpersist()
    listed = [
        DeadLetterGroup(**{**row.asDict(), "samples": [_sample(sample.asDict()) for sample in row["samples"]]})
        for row in rows
    ]
    count, group_count = ((sums["letters"] or 0), sums["groups"]) if sums else (0, 0)
    return DeadLetterJobResult(count, group_count, group_count - len(listed), listed)


def _sample(values: dict[str, Any]) -> DeadLetterSample:
    del values["place"]
    return DeadLetterSample(**values)
