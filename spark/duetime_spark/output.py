"""Tables of a result as files: Parquet by job, table, day and snapshot."""

import types
import typing
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from duetime_spark.moment import Moment

_PLAIN = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}


def write(spark: SparkSession, out: str, job: str, moment: Moment, result: Any, tables: Sequence[str]) -> None:
    """Writes `OUT/JOB/TABLE/day=YYYY-MM-DD/snapshot=ID/`, one file each; a second run replaces it.

    Args:
        tables: fields of the result, lists of dataclasses; an empty one writes nothing.
    """
    kinds = typing.get_type_hints(type(result))
    for table in tables:
        rows = getattr(result, table)
        if not rows:
            continue
        (row_kind,) = typing.get_args(kinds[table])
        columns = schema(row_kind)
        values = [[row[name] for row in map(asdict, rows)] for name in columns.names]
        arrays = [pa.array(column, kind) for column, kind in zip(values, columns.types, strict=True)]
        frame = spark.createDataFrame(pa.Table.from_arrays(arrays, schema=columns)).coalesce(1)
        marked = frame.withColumns({"day": F.lit(moment.day), "snapshot": F.lit(moment.id)})
        target = f"{out.rstrip('/')}/{job}/{table}"
        marked.write.mode("overwrite").partitionBy("day", "snapshot").parquet(
            target if "://" in target else Path(target).absolute().as_uri()
        )


def schema(kind: type) -> pa.Schema:
    """Arrow's schema of a dataclass of plain values, lists, maps and such dataclasses."""
    hints = typing.get_type_hints(kind)
    return pa.schema([(one.name, _arrow(hints[one.name])) for one in fields(kind)])


def _arrow(hint: Any) -> pa.DataType:
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        (hint,) = (one for one in arguments if one is not type(None))
        return _arrow(hint)
    origin = typing.get_origin(hint)
    if origin is list:
        return pa.list_(_arrow(arguments[0]))
    if origin is dict:
        return pa.map_(_arrow(arguments[0]), _arrow(arguments[1]))
    return _PLAIN.get(hint) or pa.struct(list(schema(hint)))
