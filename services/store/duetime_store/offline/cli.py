"""`duetime store`: commands on store directories. A plug-in of the `duetime` command, with the same output."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from duetime.cli.options import show_help
from duetime.cli.output import STYLE, Form, print_json
from duetime_core.errors import DueTimeError, InvalidArgument
from duetime_core.node.manners import giving_way_in
from duetime_format.errors import DamagedBytes
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.printing import echo
from duetime_shard import shard as state
from duetime_shard.brokers.engines import refused
from duetime_shard.disk import LocalFiles
from duetime_shard.files import LogFiles
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from duetime_store.offline import members, units
from duetime_store.offline.export import ExportTarget, export_directory
from duetime_store.offline.pages import print_summary
from duetime_store.offline.replicating import replicate
from duetime_store.offline.report import VerifyReport
from duetime_store.offline.summary import summary
from duetime_store.offline.transfer import import_directory, shard_directory, source_files, used_bytes
from duetime_store.offline.verify import verify

_LINES_AT_ONCE = 1_000
_HELP = """Inspect, check, import, export store directories.

Works on directories of RocketMQ and DueTime. `members` works on the copies of a running shard.

\b
Examples:
  duetime store inspect /var/lib/rocketmq/store
  duetime store verify duetime-data/store-0
  duetime store import /var/lib/rocketmq/store --data duetime-data
"""

app = typer.Typer(name="store", help=_HELP, rich_markup_mode=None, add_completion=False, invoke_without_command=True)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="A store directory: RocketMQ's storePathRootDir.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Levels = Annotated[
    str,
    typer.Option(
        "--delay-levels",
        envvar="DUETIME_DELAY_LEVELS",
        metavar="TABLE",
        help="A broker's messageDelayLevel, if not RocketMQ's default. DueTime's directories contain theirs.",
    ),
]
app.callback()(show_help)
app.add_typer(members.app)


@app.command()
def inspect(
    directory: Directory,
    topic: Annotated[str | None, typer.Option(metavar="NAME", help="This topic only.")] = None,
    as_json: Json = False,
    as_units: Annotated[bool, typer.Option("--units", help="List each message of each queue.")] = False,
    levels: Levels = DEFAULT_DELAY_LEVELS,
) -> None:
    """Show the contents of a store directory. Nothing is written and no lock taken: it may be in use.

    Queues are shown in line with the log: with messages that a killed broker had not yet dispatched.

    \b
    Examples:
      duetime store inspect /var/lib/rocketmq/store
      duetime store inspect duetime-data/store-0 --topic orders --units --json
    """
    with errors_printed(), giving_way_in(directory):
        table = parse_levels(levels)
        with Bars() as bars:
            found = state.read(directory, table, bars.of_log(directory, "reading"))
    if as_units:
        _print_units(found, topic, as_json=as_json)
        return
    shown = summary(found, topic=topic, listed=as_json)
    if as_json:
        print_json(shown)
    else:
        print_summary(shown)


@app.command("verify")
def verify_directory(directory: Directory, as_json: Json = False, levels: Levels = DEFAULT_DELAY_LEVELS) -> None:
    """Check every verifiable byte of a store directory.

    That covers log, queues, index, config and checkpoint.

    Nothing is written and no lock taken: it may be in use. Prints a line for each damage: file, byte, fault, message.
    Traces of a kill, such as a torn record at the end, are noted, and are not damage. State of a broker that DueTime
    can't read is listed as a loss. Exits with 1 on damage or loss.

    \b
    Examples:
      duetime store verify /var/lib/rocketmq/store
      duetime store verify duetime-data/store-0 --json | jq .damages
    """
    with errors_printed(), giving_way_in(directory):
        table = parse_levels(levels)
        with Bars() as bars:
            report = verify(directory, table, bars.of_log(directory, "verifying"))
    if as_json:
        print_json(report.as_json())
    else:
        _print_report(directory, report)
    if not report.is_sound or report.losses:
        raise typer.Exit(1)


def _print_report(directory: Path, report: VerifyReport) -> None:
    for line in (*report.damages, *report.notes, *(f"loss of {loss}" for loss in report.losses)):
        echo(str(line))
    if report.damage_count > len(report.damages):
        echo(f"and {report.damage_count - len(report.damages):,} more")
    outcome = "sound" if report.is_sound else f"{report.damage_count:,} damages"
    outcome += f", {len(report.losses):,} losses" if report.losses else ""
    echo(
        f"{directory}: {outcome}; {report.records:,} records of {report.record_bytes:,} bytes, "
        f"{report.units:,} queue units, {report.index_entries:,} index entries"
        + (f", {report.schedules:,} schedules ({report.paused_schedules:,} paused)" if report.schedules else "")
    )


Data = Annotated[
    Path, typer.Option("--data", metavar="DATA", help="The cluster's data directory, as given to `duetime up`.")
]
Shard = Annotated[int, typer.Option(min=0, max=65_535, help="The shard's number.")]
AcceptDamage = Annotated[bool, typer.Option("--accept-damage", help="Continue despite damage.")]
AcceptLoss = Annotated[
    list[str] | None,
    typer.Option("--accept-loss", metavar="KIND", help="Continue without this state, which verify lists; repeatable."),
]


@app.command("import")
def import_shard(
    directory: Directory,
    data: Data,
    shard: Shard = 0,
    accept_damage: AcceptDamage = False,
    accept_loss: AcceptLoss = None,
    as_json: Json = False,
    levels: Levels = DEFAULT_DELAY_LEVELS,
) -> None:
    """Take a store directory into a cluster's data.

    It becomes a shard. It is verified, then copied; DIR stays as it is.

    Topics, groups, offsets, pending messages, open transactions and messages received by POP are included, wherever
    the broker keeps them. State that can't be taken over is rejected by its kind, unless --accept-loss names that.

    A directory in use is copied as if its broker had been killed: stop the broker first to lose none of its further
    work.

    \b
    Examples:
      duetime store import /var/lib/rocketmq/store --data duetime-data
      duetime up --data duetime-data
    """
    target = shard_directory(data, shard)
    with errors_printed(), giving_way_in(directory):
        table = parse_levels(levels)
        with Bars() as bars:
            report = import_directory(
                directory,
                target,
                table,
                accept_damage=accept_damage,
                accept_loss=frozenset(accept_loss or ()),
                verifying=bars.of_log(directory, "verifying"),
                copying=bars.bar("copying", used_bytes(source_files(directory))),
            )
    lost = list(dict.fromkeys(loss.kind for loss in refused(report.losses, frozenset(accept_loss or ()))))
    damaged = not report.is_sound and not accept_damage
    if as_json:
        print_json({"imported": None if damaged or lost else str(target), **report.as_json()})
    else:
        _print_report(directory, report)
        ways = ["--accept-damage imports it as it is"] if damaged else []
        ways += [f"{' '.join(f'--accept-loss {kind}' for kind in lost)} imports it without that"] if lost else []
        echo(f"nothing is imported; {', '.join(ways)}" if ways else f"imported as {target}")
    if damaged or lost:
        raise typer.Exit(1)


class Broker(StrEnum):
    """Versions of RocketMQ with different timer support."""

    V5 = "5"
    V4_9 = "4.9"


@app.command("export")
def export_shard(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory to write; must be empty or absent.")],
    data: Data,
    shard: Shard = 0,
    broker: Annotated[Broker, typer.Option("--for", help="The broker that is to open it.")] = Broker.V5,
    timers_to: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --for 4.9: the file for messages for any time, as JSON lines."),
    ] = None,
    lose_delays: Annotated[
        bool, typer.Option("--lose-delays", help="Let open transactions lose their delay, which brokers do not keep.")
    ] = False,
    accept_damage: AcceptDamage = False,
    as_json: Json = False,
) -> None:
    """Write a shard as a directory that RocketMQ opens.

    The store may be stopped or in use.

    Prints the settings that the broker needs for it. The directory is verified before it gets its name.

    RocketMQ 5.x delivers pending messages for any time itself, with timerRocksDBEnable or without. 4.9 does not: if
    there are any, the export is rejected, unless --timers-to names a file for them.

    The broker asks the producers of open transactions, but keeps no delay for them. If one has a delay, the export is
    rejected, unless --lose-delays allows delivery on commit.

    \b
    Examples:
      duetime store export /var/lib/rocketmq/store --data duetime-data
      duetime store export /var/lib/rocketmq/store --data duetime-data --for 4.9 --timers-to timers.jsonl
    """
    source = shard_directory(data, shard)
    has_timers = broker is not Broker.V4_9
    if timers_to is not None and (has_timers or timers_to.exists()):
        why = "already exists" if timers_to.exists() else "is for --for 4.9: a 5.x broker delivers them itself"
        raise typer.BadParameter(why, param_hint="--timers-to")
    target = ExportTarget(has_timers, timers_to, may_lose_delays=lose_delays)
    with errors_printed("--data"), giving_way_in(source):
        table = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
        with Bars() as bars:
            made = export_directory(
                source,
                directory,
                table,
                accept_damage=accept_damage,
                broker=target,
                progress=bars.of_log(source, "reading"),
            )
    if as_json:
        empty = {"pending": made.empty_pending, "others": made.empty_others}
        what: dict[str, object] = {"records": made.records, "end": made.end, "settings": made.settings}
        what["emptyBodies"] = empty
        what |= {"timers": made.timers, "silenced": made.silenced, "transactions": made.transactions}
        verified = {"warnings": made.warnings, "damageCount": made.report.damage_count}
        print_json({"exported": str(directory), **what, **verified})
        return
    for line in (*map(str, made.report.damages), *(f"warning: {text}" for text in made.warnings)):
        echo(line, err=True)
    if made.timers:
        echo(f"{made.timers:,} messages for any time are pending" + (f", in {timers_to}" if timers_to else ""))
    if made.transactions:
        echo(f"{made.transactions:,} transactions are open: the broker asks their producers")
    echo(f"{directory}: {made.records:,} records, log up to {made.end:,}; a broker needs")
    for name, value in made.settings.items():
        echo(f"{name}={value}")


@app.command("replicate")
def replicate_directory(
    directory: Directory,
    group: Annotated[int, typer.Option(metavar="GROUP", help="A number that no other group has.", min=1)],
    number: Annotated[int, typer.Option(metavar="NUMBER", help="The copy's number.", min=1, max=65_535)],
    address: Annotated[str, typer.Option(metavar="HOST:PORT", help="Its address for the other copies.")],
    is_new_group: Annotated[
        bool, typer.Option("--new-group", help="Take a copy out of a group whose majority is lost for good.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a store directory the first copy of a group.

    The directory must have been stopped in good order. Its log gets a record at the end. Start it with --copies,
    --copy-number and --copies-group. Then add the other copies by `duetime store members add`.

    With --new-group the directory is a copy of another group, whose majority is lost for good. Use the copy with the
    most entries, and never use the lost ones again. Its unanswered entries count. Entries of the lost copies alone are
    missing.

    \b
    Examples:
      duetime store replicate duetime-data/store-0 --group 5280421 --number 1 --address 10.0.0.1:9821
      duetime store replicate /srv/duetime/b --group 5280422 --number 2 --address 10.0.0.2:9821 --new-group
    """
    with errors_printed():
        made = replicate(directory, group, number, address, is_new_group=is_new_group)
    if as_json:
        former = {"committed": made.committed, "kept": made.kept} if made.kept >= 0 else None
        print_json({"replicated": str(directory), "index": made.index, "end": made.end, "former": former})
        return
    echo(f"{directory}: copy {number} of group {group}, its log up to {made.end:,} is entry {made.index:,}")
    if made.kept >= 0:
        echo(
            f"of the former group, entries up to {made.committed:,} were committed; those up to {made.kept:,} count "
            "too, and may not have been answered; later ones are missing, if there were any"
        )


def _print_units(found: state.DirectoryState, topic: str | None, *, as_json: bool) -> None:
    batch: list[str] = []
    as_yaml = STYLE.get().form is Form.YAML
    for line in units.lines(found, topic):
        if as_yaml:
            print_json(json.loads(line))
            continue
        batch.append(line if as_json else _plain(json.loads(line)))
        if len(batch) >= _LINES_AT_ONCE:
            echo("\n".join(batch))
            batch.clear()
    if batch:
        echo("\n".join(batch))


def _plain(unit: dict[str, Any]) -> str:
    place = f"{unit['topic']} {unit['queueId']} {unit['queueOffset']} at {unit['physicalOffset']}, {unit['size']} bytes"
    if "damage" in unit:
        return f"{place}: {unit['damage']}"
    return f"{place}, stored {unit['storeTimestamp']}, id {unit['uniqKey'] or unit['msgId']}"


def parse_levels(text: str) -> DelayLevels:
    try:
        return DelayLevels.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--delay-levels") from None


@contextmanager
def errors_printed(argument: str = "DIR") -> Iterator[None]:
    """Prints errors as the command does: wrong arguments as wrong usage (exit code 2), others as one line (1).

    `argument`: the one that names the store directory.
    """
    try:
        yield
    except InvalidArgument as error:
        raise typer.BadParameter(error.violations[0].description, param_hint=argument) from None
    except (DueTimeError, DamagedBytes) as error:
        echo(f"duetime: {error.text}", err=True)
        raise typer.Exit(1) from None


class Bars:
    """Progress bars on standard error, one below the other, if it is a terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        words = TextColumn("{task.description}")
        columns = (words, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True) if console.is_terminal else None

    def __enter__(self) -> "Bars":
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def of_log(self, directory: Path, words: str) -> state.Progress:
        """A bar of positions in a directory's log."""
        log = LogFiles(LocalFiles(directory))
        log.close()
        return self.bar(words, log.size, log.min_position)

    def bar(self, words: str, total: int, first: int = 0) -> state.Progress:
        progress = self._progress
        if progress is None:
            return state.no_progress
        task = progress.add_task(words, total=total)
        return lambda at: progress.update(task, completed=at - first)
