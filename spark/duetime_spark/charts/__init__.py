"""Pages of the jobs: the figures, charts and tables of a result."""

from collections.abc import Callable

from duetime_spark.charts.audit import audit
from duetime_spark.charts.backlog import backlog
from duetime_spark.charts.dead_letters import dead_letters
from duetime_spark.charts.drawing import ResultDict
from duetime_spark.charts.lateness import lateness
from duetime_spark.charts.parts import ChartPage
from duetime_spark.charts.retries import retries

PAGES: dict[str, Callable[[ResultDict], ChartPage]] = {
    "backlog": backlog,
    "lateness": lateness,
    "audit": audit,
    "dead_letters": dead_letters,
    "retries": retries,
}
