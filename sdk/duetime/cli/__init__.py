"""The `duetime` command. It needs the `cli` extra; without it, one line says so."""

import gc
import os
import sys


def main() -> None:
    """Runs the command line and exits: 0, 1 for an error, 2 for wrong usage."""
    # Objects of modules stay; looking for garbage among them takes a tenth of a start.
    gc.disable()
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError:
        print("duetime: the command needs the cli extra: pip install 'duetime[cli]'", file=sys.stderr)
        raise SystemExit(1) from None
    # gRPC reads this when it is loaded; its log lines do not belong in a command's output.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from duetime.cli.app import run

    gc.freeze()
    gc.enable()
    # Characters that the terminal or pipe does not accept are escaped, and cause no error.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]

    raise SystemExit(run())
