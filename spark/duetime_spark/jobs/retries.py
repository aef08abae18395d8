"""Deliveries needed for success, and wasted ones."""

from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duetime_spark.jobs.context import JobContext

_DELIVERIES = "group,topic,attempt,end"


@dataclass(frozen=True, slots=True)
class RetrySummary:
    """Deliveries of one topic's messages to one group, as far back as the log goes.

    succeeded: acknowledged; `by_attempt` counts them by the successful attempt, 1 is the first. Wasted: failed ones,
    ones with an expired lease, and the last ones before a dead letter (`dead`). `returned` were given back uncounted,
    `open` have not ended. `lapsed` messages had expired and are no deliveries.
    """

    group: str
    topic: str
    deliveries: int
    succeeded: int
    failed: int
    expired: int
    dead: int
    returned: int
    open: int
    lapsed: int
    wasted: int
    wasted_share: float
    attempts_per_success: float | None
    by_attempt: dict[int, int]


@dataclass(frozen=True, slots=True)
class RetryJobResult:
    """The result, by group and topic."""

    deliveries: int
    succeeded: int
    wasted: int
    lapsed: int
    groups: list[RetrySummary]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def transform(deliveries: DataFrame) -> DataFrame:
    """(group, topic, attempt, end, count). A copy in %RETRY%group continues the message's count."""
    return deliveries.groupBy("group", "topic", "attempt", "end").agg(F.count(F.lit(1)).alias("count"))


def run(context: JobContext) -> RetryJobResult:
    found: dict[tuple[str, str], dict[tuple[str, int], int]] = {}
    for row in transform(context.table("deliveries", _DELIVERIES)).collect():
        found.setdefault((row["group"], row["topic"]), {})[row["end"], row["attempt"]] = row["count"]
    groups = [_retries(group, topic, counts) for (group, topic), counts in sorted(found.items())]
    return RetryJobResult(
        deliveries=sum(one.deliveries for one in groups),
        succeeded=sum(one.succeeded for one in groups),
        wasted=sum(one.wasted for one in groups),
        lapsed=sum(one.lapsed for one in groups),
        groups=groups,
    )


def _retries(group: str, topic: str, counts: dict[tuple[str, int], int]) -> RetrySummary:
    def ended(name: str) -> int:
        return sum(count for (end, _), count in counts.items() if end == name)

    lapsed, succeeded = ended("lapsed"), ended("acked")
    deliveries = sum(counts.values()) - lapsed
    wasted = ended("failed") + ended("expired") + ended("dead")
    return RetrySummary(
        group=group,
        topic=topic,
        deliveries=deliveries,
        succeeded=succeeded,
        failed=ended("failed"),
        expired=ended("expired"),
        dead=ended("dead"),
        returned=ended("returned"),
        open=ended("open"),
        lapsed=lapsed,
        wasted=wasted,
        wasted_share=round(wasted / deliveries, 4) if deliveries else 0.0,
        attempts_per_success=round((succeeded + wasted) / succeeded, 3) if succeeded else None,
        by_attempt={attempt: count for (end, attempt), count in sorted(counts.items()) if end == "acked"},
    )
