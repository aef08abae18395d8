"""DueTime's data pipeline on Spark: a data source for store directories and running stores, and jobs on it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duetime_spark.shards.snapshot import take_snapshots
    from duetime_spark.source import register

__all__ = ["register", "take_snapshots"]
_MODULES = {"register": "source", "take_snapshots": "shards.snapshot"}


def __getattr__(name: str) -> Any:
    """Imports PySpark only when needed, so that a wrong command line is reported at once."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
