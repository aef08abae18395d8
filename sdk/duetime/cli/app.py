"""The command line: its commands, and how their errors are printed."""

import sys

import typer

from duetime.cli.audit import audit
from duetime.cli.backlog import backlog
from duetime.cli.cancel import cancel, reschedule
from duetime.cli.consume import consume
from duetime.cli.demo import demo
from duetime.cli.dlq import dlq
from duetime.cli.find import find
from duetime.cli.groups import groups
from duetime.cli.lanes import lanes
from duetime.cli.pending import pending
from duetime.cli.plugins import Commands
from duetime.cli.pull import pull
from duetime.cli.quotas import quotas
from duetime.cli.send import send
from duetime.cli.show import show
from duetime.cli.topics import topics
from duetime.cli.trace import trace
from duetime.cli.transactions import transactions
from duetime.cli.up import up
from duetime.client.errors import DueTimeError

INTERRUPTED = 130

# Click's class; newer versions of typer contain their own copy of click.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_HELP = """DueTime: messages that arrive later.

\b
Examples:
  duetime up --demo
  duetime send orders "cancel 42" --delay 1h30m
  duetime pull orders --follow
  duetime consume orders --group billing --exec './settle.sh'
"""

app = typer.Typer(
    name="duetime",
    cls=Commands,
    help=_HELP,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
)
app.command()(up)
app.command()(send)
app.command()(pull)
app.command()(consume)
app.command()(cancel)
app.command()(reschedule)
app.command()(pending)
app.command()(show)
app.command()(find)
app.command()(trace)
app.add_typer(topics, name="topics")
app.add_typer(groups, name="groups")
app.add_typer(quotas, name="quotas")
app.add_typer(dlq, name="dlq")
app.add_typer(transactions, name="transactions")
app.command()(lanes)
app.command()(demo)
app.command()(backlog)
app.command()(audit)


@app.callback()
def _no_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def run(arguments: list[str] | None = None) -> int:
    """Runs a command line; the exit code. An error is one line on standard error."""
    try:
        return app(arguments, standalone_mode=False) or 0
    except _UsageError as error:
        _print_error(error.format_message())  # type: ignore[attr-defined]
        return 2
    except (DueTimeError, OSError) as error:
        _print_error(str(error))
        return 1
    except SystemExit:
        # Click's way out when the reader of our output closes the pipe, which is no error.
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED


def _print_error(text: str) -> None:
    """On one line. The error of a process of the cluster names the process already."""
    line = " ".join(text.split())
    print(line if line.startswith("duetime ") else f"duetime: {line}", file=sys.stderr)
