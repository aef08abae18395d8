"""Tables made by hand: rows of a few columns, the others null, under the data source's names and types."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from duetime_spark.jobs.backlog import transform
from duetime_spark.jobs.context import JobContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

SCHEMAS = {
    "pending": "shard INT, level INT, topic STRING, offset BIGINT, position BIGINT, size INT, due_at_ms BIGINT, "
    "is_paused BOOLEAN",
    "queue_entries": "shard INT, topic STRING, queue INT, offset BIGINT, position BIGINT, size INT, tags_code BIGINT, "
    "due_at_ms BIGINT, has_ended BOOLEAN",
    "ends": "shard INT, level INT, offset BIGINT, due_at_ms BIGINT, end STRING, position BIGINT",
    "transactions": "shard INT, offset BIGINT, position BIGINT, size INT, state STRING, end_position BIGINT, "
    "id STRING, group STRING, topic STRING, prepared_at_ms BIGINT",
    "transaction_ends": "shard INT, offset BIGINT, end STRING, position BIGINT, topic STRING, queue INT, "
    "queue_offset BIGINT",
    "occurrences": "shard INT, topic STRING, schedule STRING, made_at_ms BIGINT, planned_at_ms BIGINT, "
    "is_delivered BOOLEAN, level INT, offset BIGINT, position BIGINT, stored_at_ms BIGINT, is_last BOOLEAN, "
    "next_at_ms BIGINT",
    "lanes": "shard INT, level INT, delay_ms BIGINT, min_offset BIGINT, watermark BIGINT, max_offset BIGINT, "
    "pending BIGINT, snapshot_position BIGINT, snapshot_at_ms BIGINT, judged_from BIGINT",
    "messages": "shard INT, topic STRING, queue INT, offset BIGINT, position BIGINT, size INT, id STRING, tags STRING, "
    "keys STRING, level INT, real_topic STRING, real_queue INT, lane_level INT, lane_offset BIGINT, "
    "lane_due_at_ms BIGINT, born_at_ms BIGINT, stored_at_ms BIGINT, born_host STRING, store_host STRING, flag INT, "
    "sys_flag INT, reconsume_times INT, prepared_offset BIGINT, body_crc INT, body_size INT, body BINARY, "
    "properties MAP<STRING,STRING>, damage STRING",
    "deliveries": "shard INT, group STRING, topic STRING, queue_topic STRING, queue INT, offset BIGINT, lease BIGINT, "
    "attempt INT, received_at_ms BIGINT, ended_at_ms BIGINT, end STRING",
    "gone": "shard INT, topic STRING, queue INT, offset BIGINT",
    "findings": "shard INT, path STRING, position BIGINT, size BIGINT, words STRING",
}


def frame(spark: SparkSession, table: str, rows: Iterable[dict[str, Any]]) -> DataFrame:
    names = [column.split()[0] for column in SCHEMAS[table].split(", ")]
    listed = list(rows)
    assert not {name for row in listed for name in row} - set(names)
    columns = {name: [row.get(name) for row in listed] for name in names}
    return spark.createDataFrame(pa.table(columns, to_arrow_schema(StructType.fromDDL(SCHEMAS[table]))))


def context(spark: SparkSession, tables: dict[str, list[dict[str, Any]]], **settings: Any) -> JobContext:
    """A job's context over tables made by hand; those that are not named are empty."""

    def table(name: str, columns: str) -> DataFrame:
        if name == "pending_minutes":
            entries = frame(spark, "pending", tables.get("pending", []))
            return transform(entries, made.moments).select(*columns.split(","))
        return frame(spark, name, tables.get(name, [])).select(*columns.split(","))

    names = [column.split()[0] for column in SCHEMAS["lanes"].split(", ")]
    lanes = [{name: row.get(name) for name in names} for row in tables.get("lanes", [])]
    made = JobContext(spark, table, sorted(lanes, key=lambda row: (row["shard"], row["level"])), **settings)
    return made
