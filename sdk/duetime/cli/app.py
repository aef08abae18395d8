"""The command line: its commands, and the output of their errors."""

import os
import sys
from typing import Annotated, Any

import typer
from duetime_format.faults import worded

import duetime
from duetime.cli.audit import audit
from duetime.cli.backlog import backlog
from duetime.cli.cancel import cancel, reschedule
from duetime.cli.certs import certs
from duetime.cli.common import completed, equip
from duetime.cli.completion import completion
from duetime.cli.consume import consume
from duetime.cli.context import context as contexts
from duetime.cli.demo import demo
from duetime.cli.dlq import dlq
from duetime.cli.find import find
from duetime.cli.groups import groups
from duetime.cli.lanes import lanes
from duetime.cli.output import echo, error_text, print_error
from duetime.cli.pending import pending
from duetime.cli.plugins import Commands
from duetime.cli.pull import pull
from duetime.cli.quotas import quotas
from duetime.cli.reports import reports
from duetime.cli.send import send
from duetime.cli.show import show
from duetime.cli.top import top
from duetime.cli.topics import topics
from duetime.cli.trace import trace
from duetime.cli.transactions import transactions
from duetime.cli.up import up
from duetime.client.errors import DueTimeError, InvalidArgument
from duetime.client.trust import CA_VARIABLE

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130

# Click's class; newer versions of typer contain their own copy of click.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_HELP = """DueTime: messages that arrive later.

\b
Examples:
  duetime up --demo
  duetime send orders "cancel 42" --delay 1h30m
  duetime pull orders --follow
  duetime consume orders --group billing --exec './settle.sh'

Exit codes: 0: done. 1: not done, or only in part. 2: wrong usage, nothing was tried. 130: Ctrl-C.
"""

app = typer.Typer(
    name="duetime",
    cls=Commands,
    help=_HELP,
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
app.command()(top)
app.add_typer(lanes, name="lanes")
app.command()(demo)
app.command()(backlog)
app.command()(reports)
app.command()(audit)
app.add_typer(certs, name="certs")
app.add_typer(contexts, name="context")
app.command()(completion)


@app.callback()
def _all_commands(
    context: typer.Context,
    tls_ca: Annotated[str, typer.Option(metavar="FILE", help="Connect by TLS and trust this CA (PEM).")] = "",
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if show_version:
        echo(f"duetime {duetime.__version__}")
        raise typer.Exit
    if tls_ca:
        os.environ[CA_VARIABLE] = tls_ca
    if context.invoked_subcommand is None:
        echo(context.get_help())


def run(arguments: list[str] | None = None) -> int:
    """Runs a command line and returns the exit code. An error is one line on standard error."""
    given = completed(sys.argv[1:] if arguments is None else arguments)
    try:
        return equip(typer.main.get_command(app)).main(given, prog_name="duetime", standalone_mode=False) or 0
    except _UsageError as error:
        print_error(_usage(error))
        return WRONG_USAGE
    except InvalidArgument as error:
        print_error(error_text(error))
        return FAILED if error.from_server else WRONG_USAGE
    except OSError as error:
        print_error(_of_file(error))
        return FAILED
    except DueTimeError as error:
        print_error(str(error))
        return FAILED
    except SystemExit:
        # Click exits like this when the reader closes the output pipe; that is not an error.
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED


def _usage(error: Any) -> str:
    """The error's text; in our words for errors that typer takes from pydantic."""
    text: str = error.format_message()
    if not hasattr(error.__cause__, "errors"):
        return text
    fault = error.__cause__.errors()[0]
    value = "" if fault["type"] == "value_error" else f"{fault['input']!r} "
    return f"{text.removesuffix(fault['msg'])}{value}{worded(fault)}"


def _of_file(error: OSError) -> str:
    """The error's text without the system's error number."""
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror.lower()}"
