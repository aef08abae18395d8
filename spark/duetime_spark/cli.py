"""`duetime spark`: jobs over store directories and running stores. A plug-in of the `duetime` command."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from duetime.cli.options import grouped, show_help
from duetime.cli.output import print_json
from duetime_core.clock import SystemClock
from duetime_core.errors import DueTimeError, StartupError
from duetime_core.node.settings import DATABASE_URL_VARIABLE
from duetime_format.errors import DamagedBytes
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.printing import echo

from duetime_spark.java import find_java, is_submitted
from duetime_spark.moment import Moment, take_moment

if TYPE_CHECKING:
    from duetime_spark.running import JobOutcome

DAMAGED = 3
_PREFIX = "DUETIME_SPARK_"
# Matches the last line of a traceback: `duetime_core.errors.DataLoss: 3 places are damaged`.
_RAISED = re.compile(r"(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*: (.+)")
_PACKAGES = ("pyspark", "pyarrow", "fsspec", "plotly")
_HELP = """Find pending, late, lost and retried messages.

It reads the files of stores, outside the serving path.

A SOURCE is a store directory (in use or not; a RocketMQ broker's too), a URL known to fsspec, or grpc://HOST:PORT of a
store or a gateway. Several sources are shards of one cluster.

\b
Examples:
  duetime spark backlog duetime-data/store-0
  duetime spark audit duetime-data/store-* --strict --json
  duetime spark lateness grpc://localhost:9800 --html lateness.html
"""

app = typer.Typer(name="spark", help=_HELP, rich_markup_mode=None, add_completion=False, invoke_without_command=True)

Sources = Annotated[
    list[str],
    typer.Argument(metavar="SOURCE...", envvar="DUETIME_SPARK_SOURCES", help="Directories, URLs, grpc://HOST:PORT."),
]
Json = Annotated[bool, typer.Option("--json", envvar="DUETIME_SPARK_JSON", help="Print JSON.")]
Html = Annotated[
    Path | None, typer.Option("--html", envvar="DUETIME_SPARK_HTML", metavar="FILE", help="Write a page with charts.")
]
Out = Annotated[
    str | None,
    typer.Option(
        "--out", envvar="DUETIME_SPARK_OUT", metavar="DIR", help="Write Parquet: DIR/JOB/TABLE/day=.../snapshot=..."
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        envvar="DUETIME_SPARK_MASTER",
        metavar="URL",
        help="Spark's master. Default: this machine, all cores.",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", envvar="DUETIME_SPARK_CONF", metavar="NAME=VALUE", help="A Spark setting."),
]
Strict = Annotated[
    bool, typer.Option("--strict", envvar="DUETIME_SPARK_STRICT", help="Check every record; end with 3 for damage.")
]
Levels = Annotated[
    str,
    typer.Option(
        "--levels",
        envvar="DUETIME_DELAY_LEVELS",
        metavar="TABLE",
        help="A broker's messageDelayLevel, if it is not RocketMQ's default. DueTime's directories contain theirs.",
    ),
]
Now = Annotated[
    str | None,
    typer.Option(
        "--now",
        envvar="DUETIME_SPARK_NOW",
        metavar="TIME",
        help="The time to use as now: a time, or `now`. Default: each shard's last record.",
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        envvar=DATABASE_URL_VARIABLE,
        metavar="URL",
        help="Store the summary in this metadata database.",
        show_envvar=True,
        show_default=False,
    ),
]
Late = Annotated[
    int,
    typer.Option(
        "--late-ms", envvar="DUETIME_SPARK_LATE_MS", min=0, metavar="MS", help="Messages that take longer are late."
    ),
]
Listed = Annotated[
    int,
    typer.Option("--listed", envvar="DUETIME_SPARK_LISTED", min=1, metavar="N", help="List at most this many entries."),
]


@dataclass
class OutputOptions:
    """The forms of a job's result."""

    as_json: Json = False
    html: Html = None
    out: Out = None


@dataclass
class SparkOptions:
    """Options of the run, the same for each job."""

    strict: Strict = False
    levels: Levels = DEFAULT_DELAY_LEVELS
    master: Master = None
    conf: Conf = None


@dataclass(kw_only=True)
class _Request(OutputOptions, SparkOptions):
    """A command line."""

    job: str
    sources: list[str]
    database_url: str | None = None
    now: str | None = None
    late_ms: int = 100
    listed: int = 100


app.callback()(show_help)


@app.command()
@grouped
def backlog(
    *,
    sources: Sources,
    output: OutputOptions,
    now: Now = None,
    database_url: DatabaseUrl = None,
    run: SparkOptions,
) -> None:
    """Count pending messages, check that deliveries keep up.

    By shard, level and topic, with due times.

    \b
    Examples:
      duetime spark backlog duetime-data/store-* --html backlog.html
      duetime spark backlog /var/lib/rocketmq/store --now now --json | jq .overdue_count
    """
    _do("backlog", sources, output, run, database_url=database_url, now=now)


@app.command()
@grouped
def lateness(
    *,
    sources: Sources,
    output: OutputOptions,
    late_ms: Late = 100,
    database_url: DatabaseUrl = None,
    run: SparkOptions,
) -> None:
    """Measure how late messages were, and find causes.

    By level, topic and minute, with the slowest stage of late ones.

    \b
    Examples:
      duetime spark lateness duetime-data/store-* --html lateness.html
      duetime spark lateness grpc://localhost:9800 --late-ms 20
    """
    _do("lateness", sources, output, run, database_url=database_url, late_ms=late_ms)


@app.command()
@grouped
def audit(
    *,
    sources: Sources,
    output: OutputOptions,
    listed: Listed = 100,
    database_url: DatabaseUrl = None,
    run: SparkOptions,
) -> None:
    """Prove that each message has one end, none early.

    It covers every accepted message. With --strict it exits with 3 if the proof fails.

    \b
    Examples:
      duetime spark audit duetime-data/store-* --strict
      duetime spark audit duetime-data/store-0 --json | jq .violations
    """
    _do("audit", sources, output, run, database_url=database_url, listed=listed)


@app.command("dead_letters")
@grouped
def dead_letters(
    *,
    sources: Sources,
    output: OutputOptions,
    listed: Listed = 100,
    run: SparkOptions,
) -> None:
    """Group dead letters by error.

    It covers letters neither redriven nor discarded, with samples.

    \b
    Examples:
      duetime spark dead_letters duetime-data/store-* --html letters.html
    """
    _do("dead_letters", sources, output, run, listed=listed)


@app.command()
@grouped
def retries(
    sources: Sources,
    output: OutputOptions,
    run: SparkOptions,
) -> None:
    """Count deliveries until success, and wasted ones.

    Counts are by group and topic.

    \b
    Examples:
      duetime spark retries duetime-data/store-*
    """
    _do("retries", sources, output, run)


def main(arguments: list[str] | None = None) -> int:
    """Runs a command line without its first words, `duetime spark`; the exit code."""
    from duetime.cli.app import run

    return run(["spark", *(sys.argv[1:] if arguments is None else arguments)])


def _do(job: str, sources: list[str], output: OutputOptions, run: SparkOptions, **others: Any) -> None:
    """Checks all inputs before Spark starts."""
    request = _Request(job=job, sources=sources, **vars(output), **vars(run), **others)
    _check_variables()
    settings = _settings(request.conf)
    now_ms = None if request.now is None else _moment_ms(request.now)
    _check_levels(request.levels)
    with _errors_in_one_line():
        _check_software()
        _check_targets(request)
        if request.database_url is not None:
            _check_database(request.database_url)
        moment = take_moment(request.sources, request.levels)
        outcome = _run(request, moment, settings, now_ms)
        if request.html is not None:
            from duetime_spark.report import page

            request.html.write_text(page(outcome.to_dict()))
        if request.database_url is not None:
            _keep(request.database_url, outcome)
    found = outcome.to_dict()
    if request.as_json:
        print_json(found)
    else:
        from duetime_spark.pages import print_outcome

        print_outcome(request.job, found)
    if request.strict and (found["findings"] or not found.get("is_proven", True)):
        raise typer.Exit(DAMAGED)


def _has_session() -> bool:
    """Whether any thread of this process has started one."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        SparkSession.active()
    except PySparkRuntimeError:
        return False
    return True


def _run(request: _Request, moment: Moment, settings: dict[str, str], now_ms: int | None) -> "JobOutcome":
    from duetime_spark.jobs.registry import JOBS
    from duetime_spark.priority import give_way
    from duetime_spark.progress import TaskBars
    from duetime_spark.running import JobOptions, run
    from duetime_spark.session import start

    order = JobOptions(request.job, now_ms, request.late_ms, request.listed, request.out, is_strict=request.strict)
    is_shared = _has_session()
    if not is_shared:
        give_way(request.master, request.sources)
    spark = start(request.master, settings, is_brief=JOBS[request.job].is_brief)
    try:
        with TaskBars(spark, request.job):
            return run(spark, order, moment)
    finally:
        if not is_shared:
            spark.stop()


def _keep(database_url: str, outcome: "JobOutcome") -> None:
    from duetime_core.metadata.reports import JobReport, ShardMoment, keep

    from duetime_spark.summaries import summary_of

    moment = outcome.moment
    shards = tuple(ShardMoment(one["shard"], one["end"], one["stored_at_ms"]) for one in moment.shards)
    keep(database_url, JobReport(outcome.order.job, moment.id, _now_ms(), moment.sources, shards, summary_of(outcome)))


def _check_software() -> None:
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise StartupError(f"this needs the spark extra ({missing[0]} is missing): pip install 'duetime[spark]'")
    if not is_submitted():
        find_java()


def _check_targets(request: _Request) -> None:
    if request.html is not None and not (request.html.parent.is_dir() and not request.html.is_dir()):
        raise StartupError(
            f"can't write {request.html}: {request.html.parent} is not a directory, or the target is one"
        )
    if request.out is not None and "://" not in request.out and Path(request.out).is_file():
        raise StartupError(f"can't write into {request.out}: it is a file")


def _check_database(database_url: str) -> None:
    from duetime_core.metadata.reports import check

    check(database_url)


def _check_variables() -> None:
    """Rejects unknown variables with our prefix: a typo must not go unnoticed."""
    group: Any = typer.main.get_command(app)
    known = {option.envvar for command in group.commands.values() for option in command.params if option.envvar}
    names = os.environ  # noqa: TID251 (typer reads the known ones)
    if unknown := sorted(name for name in names if name.startswith(_PREFIX) and name not in known):
        _fail(f"{', '.join(unknown)}: not a setting of duetime spark; the settings are {', '.join(sorted(known))}")


def _check_levels(levels: str) -> None:
    try:
        DelayLevels.parse(levels)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--levels") from None


def _settings(conf: list[str] | None) -> dict[str, str]:
    found = {}
    for text in conf or []:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith("spark."):
            raise typer.BadParameter(f"{text!r} is not spark.NAME=VALUE", param_hint="--conf")
        found[name] = value
    return found


def _moment_ms(text: str) -> int:
    if text == "now":
        return _now_ms()
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        example = "a time such as 2026-01-31T12:00, local, or 2026-01-31T12:00Z, or `now`"
        raise typer.BadParameter(f"{text!r} is not {example}", param_hint="--now") from None


def _now_ms() -> int:
    return SystemClock().now_ms()


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    """Reports errors in one line and exits with 1."""
    try:
        yield
    except (DueTimeError, DamagedBytes) as error:
        _fail(error.text)
    except OSError as error:
        _fail(str(error))
    except Exception as error:
        # Spark's errors carry pages of Java stack traces.
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        _fail(_first_line(error))


def _first_line(error: Exception) -> str:
    """The error alone: the last line of a worker's traceback."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    raised = [found.group(1) for line in lines if (found := _RAISED.match(line))]
    return f"Spark: {(raised or lines or [type(error).__name__])[-1 if raised else 0]}"


def _fail(text: str) -> NoReturn:
    echo(f"duetime: {' '.join(text.split())}", err=True)
    raise typer.Exit(1) from None
