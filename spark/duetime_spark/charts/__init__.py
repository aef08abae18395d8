"""Pages of the jobs: which figures, charts and tables show a result at a glance."""

from collections.abc import Callable

from duetime_spark.charts.backlog import backlog
from duetime_spark.charts.drawing import Found
from duetime_spark.charts.lateness import lateness
from duetime_spark.charts.others import audit, dead_letters, retries
from duetime_spark.report import Page

PAGES: dict[str, Callable[[Found], Page]] = {
    "backlog": backlog,
    "lateness": lateness,
    "audit": audit,
    "dead_letters": dead_letters,
    "retries": retries,
}
