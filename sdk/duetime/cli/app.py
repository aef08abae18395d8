"""The command line: its commands, and the output of their errors."""

import os
import sys
from typing import Annotated, Any

import typer
from duetime_format.faults import worded
from duetime_format.printing import echo
from duetime_format.texts import shown

import duetime
from duetime.cli.common import completed, equip
from duetime.cli.output import error_text, print_error
from duetime.cli.plugins import Commands, UsageError
from duetime.client.errors import DueTimeError, InvalidArgument, of_file
from duetime.client.trust import CA_VARIABLE

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130

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
    except UsageError as error:
        print_error(_usage(error))
        return WRONG_USAGE
    except InvalidArgument as error:
        print_error(error_text(error))
        return FAILED if error.from_server else WRONG_USAGE
    except UnicodeEncodeError as error:
        print_error(f"{shown(error.object)} can't be encoded in {error.encoding}: {error.reason}")
        return WRONG_USAGE
    except OSError as error:
        print_error(of_file(error))
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
    if type(error).__name__ in ("MissingParameter", "NoSuchOption") and error.ctx is not None:
        return f"{text.removesuffix('.')}; see `{error.ctx.command_path} --help`"
    if not hasattr(error.__cause__, "errors"):
        return text
    fault = error.__cause__.errors()[0]
    value = "" if fault["type"] == "value_error" else f"{fault['input']!r} "
    return f"{text.removesuffix(fault['msg'])}{value}{worded(fault)}"
