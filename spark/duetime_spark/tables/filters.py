"""Conditions of a query on columns, used by readers to skip rows: Spark checks each row again.

Rows must meet all conditions. A condition not understood here skips no rows.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

_LOW, _HIGH = -(1 << 63), (1 << 63) - 1

Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Bounds:
    """Bounds of one column: not null, in [low, high], among `values`, if given, and not among `others`."""

    low: int = _LOW
    high: int = _HIGH
    values: frozenset[int | str] | None = None
    others: frozenset[int | str] = frozenset()

    def narrow(self, values: frozenset[int | str]) -> None:
        self.values = values if self.values is None else self.values & values


@dataclass(slots=True)
class RowFilter:
    """Bounds by column."""

    columns: dict[str, Bounds] = field(default_factory=dict)

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> "RowFilter":
        wanted = cls()
        for one in filters:
            wanted._add(one)
        return wanted

    def _add(self, one: Filter) -> None:
        name = ".".join(getattr(one, "attribute", ()))
        value = getattr(one, "value", None)
        bounds = self.columns.get(name, Bounds())
        if isinstance(one, EqualTo | EqualNullSafe) and isinstance(value, int | str):
            bounds.narrow(frozenset((value,)))
        elif isinstance(one, In) and all(isinstance(each, int | str) for each in one.value):
            bounds.narrow(frozenset(one.value))
        elif isinstance(one, Not) and isinstance(one.child, EqualTo) and isinstance(one.child.value, int | str):
            name = ".".join(one.child.attribute)
            bounds = self.columns.get(name, Bounds())
            bounds.others |= {one.child.value}
        elif isinstance(one, IsNotNull):
            pass
        elif isinstance(value, bool) or not isinstance(value, int):
            return
        elif isinstance(one, GreaterThan | GreaterThanOrEqual):
            bounds.low = max(bounds.low, value + isinstance(one, GreaterThan))
        elif isinstance(one, LessThan | LessThanOrEqual):
            bounds.high = min(bounds.high, value - isinstance(one, LessThan))
        else:
            return
        self.columns[name] = bounds

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def allows(self, name: str, value: int | str) -> bool:
        """Whether a row with this value may match."""
        bounds = self.columns.get(name)
        if bounds is None:
            return True
        in_range = isinstance(value, str) or bounds.low <= value <= bounds.high
        return in_range and (bounds.values is None or value in bounds.values) and value not in bounds.others

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The matching rows of a batch."""
        kept = None
        for name, bounds in self.columns.items():
            kind = batch.schema.field(name).type if name in batch.schema.names else None
            if kind is None or not (pa.types.is_integer(kind) or pa.types.is_string(kind)):
                continue
            mask = _mask(batch.column(name), bounds)
            kept = mask if kept is None else pc.and_(kept, mask)
        return batch if kept is None else batch.filter(kept)

    def range(self, name: str) -> tuple[int, int]:
        """The lowest and the highest matching value."""
        bounds = self.columns.get(name)
        if bounds is None:
            return _LOW, _HIGH
        values = [value for value in bounds.values or () if isinstance(value, int)]
        if bounds.values is None:
            return bounds.low, bounds.high
        return max([bounds.low, min(values, default=_HIGH)]), min([bounds.high, max(values, default=_LOW)])

    def mask(self, name: str, values: npt.NDArray[np.integer]) -> Mask | None:
        """The mask of matching values; None: all."""
        bounds = self.columns.get(name)
        if bounds is None or bounds == Bounds():
            return None
        wanted: Mask = (values >= bounds.low) & (values <= bounds.high)
        if bounds.values is not None:
            wanted &= np.isin(values, [value for value in bounds.values if isinstance(value, int)])
        if bounds.others:
            wanted &= ~np.isin(values, [value for value in bounds.others if isinstance(value, int)])
        return wanted


def _mask(column: pa.Array, bounds: Bounds) -> pa.Array:
    """The mask of values within bounds; null or false without a value."""
    if pa.types.is_string(column.type):
        kind: type = str
        mask = pc.is_valid(column)
    else:
        kind, column = int, pc.cast(column, pa.int64())
        mask = pc.and_(pc.greater_equal(column, bounds.low), pc.less_equal(column, bounds.high))
    if bounds.values is not None:
        mask = pc.and_(mask, pc.is_in(column, _array(bounds.values, kind)))
    if bounds.others:
        mask = pc.and_(mask, pc.invert(pc.is_in(column, _array(bounds.others, kind))))
    return mask


def _array(values: frozenset[int | str], kind: type) -> pa.Array:
    """The values of a kind; numbers only in the range of a column."""
    if kind is str:
        return pa.array([value for value in values if isinstance(value, str)], pa.string())
    return pa.array([value for value in values if isinstance(value, int) and _LOW <= value <= _HIGH], pa.int64())
