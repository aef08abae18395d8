"""Unexpected exceptions: one caused by a call, a message or a peer's answer ends that work, but not the process.

They are logged with their trace, counted in `duetime_defects_total`, and returned as an error with the reason INTERNAL.
A loop whose own state may be wrong must not use this: it ends, and its node with it.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from duetime_core.errors import DueTimeError
from duetime_core.telemetry.logs import sparing
from duetime_core.telemetry.traces import name_of

log = sparing()

T = TypeVar("T")

# Defects of this process, by the affected work.
_counts: Counter[str] = Counter()


def defect(error: Exception, work: str, **keys: Any) -> DueTimeError:
    """Logs and counts an exception of some work. Returns an error for the caller that reveals nothing of it."""
    _counts[work] += 1
    log.error(f"defect in {work}", error=name_of(error), **keys, exc_info=error)
    return DueTimeError("internal error; see the process's log")


async def outcome(work: Callable[[], Awaitable[T]], name: str, **keys: Any) -> tuple[T | None, DueTimeError | None]:
    """Returns the result of some work, or its error: a task that raises would end its group."""
    try:
        return await work(), None
    except DueTimeError as error:
        return None, error
    except Exception as error:
        return None, defect(error, name, **keys)


class DefectCollector(Collector):
    """Exports the count of defects as a metric."""

    def collect(self) -> Iterable[CounterMetricFamily]:
        family = CounterMetricFamily(
            "duetime_defects", "Unexpected exceptions, by the work they ended", labels=["work"]
        )
        for work, count in sorted(_counts.items()):
            family.add_metric([work], count)
        yield family
